"""Both clients have the same types, one awaited and one not. Checked by mypy, never run."""

from collections.abc import AsyncGenerator, Generator
from typing import Any, assert_type

import proctor
import proctor.sync
from proctor import Approval, Event, Execution, PolicyStatus, Step


async def awaited(client: proctor.Client) -> None:
    assert_type(await client.create("clerk", {"n": 1}, session="s"), Execution)
    assert_type(await client.wait("id", timeout=3.0), Execution)
    assert_type(await client.events("id"), list[Event])
    assert_type(client.watch("id"), AsyncGenerator[Event, None])
    assert_type(client.list_executions(status="failed"), AsyncGenerator[Execution, None])
    assert_type(await client.list_steps("id"), list[Step])
    assert_type(await client.previous("id"), Any)
    assert_type(await client.policy_status(), PolicyStatus)
    assert_type(await client.list_approvals(), list[Approval])
    await client.create(3)  # type: ignore[arg-type]
    await client.create("clerk", label="s")  # type: ignore[call-arg]
    await client.grant_approval("id", "alice")  # type: ignore[call-arg]


def blocking(client: proctor.sync.Client) -> None:
    assert_type(client.create("clerk", {"n": 1}, session="s"), Execution)
    assert_type(client.wait("id", timeout=3.0), Execution)
    assert_type(client.events("id"), list[Event])
    assert_type(client.watch("id"), Generator[Event, None, None])
    assert_type(client.list_executions(status="failed"), Generator[Execution, None, None])
    assert_type(client.list_steps("id"), list[Step])
    assert_type(client.previous("id"), Any)
    assert_type(client.policy_status(), PolicyStatus)
    assert_type(client.list_approvals(), list[Approval])
    client.create(3)  # type: ignore[arg-type]
    client.create("clerk", label="s")  # type: ignore[call-arg]
    client.grant_approval("id", "alice")  # type: ignore[call-arg]


async def opened() -> None:
    async with proctor.Client("http://localhost:8080", api_key="k", timeout=3) as client:
        assert_type(client, proctor.Client)
    with proctor.sync.Client("http://localhost:8080", api_key="k") as sync_client:
        assert_type(sync_client, proctor.sync.Client)
    proctor.Client(port=1)  # type: ignore[call-arg]
    proctor.sync.Client(port=1)  # type: ignore[call-arg]
