"""Three tools called at once, two of which need a person; a crash while they are waited for."""

import asyncio
import collections
from pathlib import Path
from typing import Any

import httpx2
import pytest
import rebuno
from tests.conformance.conftest import RULES, SECRET, Served, register
from tests.conformance.test_scenarios import approval_of, name
from tests.support.postgres import Cluster
from tests.support.server import free_port, running

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("crashing", ["kernel", "agent", "nobody"])
@pytest.mark.parametrize("order", ["grant first", "deny first"])
@pytest.mark.parametrize("asked_first", [True, False])
async def test_each_body_runs_at_most_once_and_the_third_is_not_disturbed(  # noqa: C901, PLR0915  # one story
    tmp_path: Path, postgres: Cluster, crashing: str, order: str, asked_first: bool
) -> None:
    ran: collections.Counter[str] = collections.Counter()
    go_on = asyncio.Event()
    if crashing != "nobody":
        go_on.set()

    @rebuno.tool(idempotency="at_most_once")
    async def pay(amount: int) -> str:
        ran[f"pay {amount}"] += 1
        return f"paid {amount}"

    @rebuno.tool(idempotency="at_most_once")
    async def lookup() -> str:
        ran["lookup"] += 1
        await go_on.wait()
        return "found"

    async def handler(input: Any) -> Any:
        calls = [pay(1), pay(2), lookup()]
        if not asked_first:
            calls = [calls[2], calls[0], calls[1]]
        return sorted(await asyncio.gather(*calls))

    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "rules.cedar").write_text(RULES)
    port = free_port()
    database = await asyncio.to_thread(postgres.new_database)
    with running(
        "dev",
        folder=tmp_path,
        database=database,
        rules=rules,
        options=("--lease-seconds", 2, "--backoff-seconds", 0.2),
        port=port,
    ) as server:
        served = await an_agent(server.url, handler)
        agent = served.agent.agent_id
        await register(server, agent, served.port)
        async with rebuno.Client(base_url=server.url) as client:
            run = await client.create(agent, input={})
            first, second = sorted(
                await approval_of(client, run.id, count=2), key=lambda each: each.id
            )
            args = {each.id: (await call_of(server.url, each.id)) for each in (first, second)}
            granted, denied = (first, second) if order == "grant first" else (second, first)
            while not ran["lookup"]:
                await asyncio.sleep(0.01)
            if order == "grant first":
                await client.grant_approval(granted.id, decided_by="alice")
            else:
                await client.deny_approval(denied.id, decided_by="alice", rationale="no")
            if crashing == "kernel":
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
            elif crashing == "agent":
                await served.stop()
                served.agent = rebuno.Agent(agent, secret=SECRET, base_url=server.url)
                served.agent.bind(handler)
                await served.start()
            if order == "grant first":
                await client.deny_approval(denied.id, decided_by="alice", rationale="no")
            else:
                await client.grant_approval(granted.id, decided_by="alice")
            while_it_works = await client.events(run.id, limit=200)
            go_on.set()
            async with asyncio.timeout(40):
                while True:
                    ended = await client.get(run.id)
                    if ended.status.value in ("completed", "failed"):
                        break
                    await asyncio.sleep(0.05)
        await served.stop()

    amount = args[granted.id]["amount"]
    assert ended.status.value == "completed", ended.failure_reason
    assert f"paid {amount}" in ended.output
    assert "found" in ended.output
    assert [each for each in ended.output if each.startswith("pay not allowed. reason: ")]
    assert ran == {f"pay {amount}": 1, "lookup": 1}
    if crashing == "nobody":
        types = [event.type for event in while_it_works]
        assert types.count("dispatch.queued") == 1, "the third was cut off"


async def an_agent(url: str, handler: Any) -> Served:
    agent = rebuno.Agent(name(), secret=SECRET, base_url=url)
    agent.bind(handler)
    served = Served(agent)
    await served.start()
    return served


async def call_of(url: str, approval_id: str) -> Any:
    async with httpx2.AsyncClient(base_url=url) as http:
        return (await http.get(f"/v0/approvals/{approval_id}")).json()["args"]
