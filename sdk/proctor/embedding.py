"""The kernel inside this process: `async with embedded(...) as client`."""

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from proctor.agent import Agent
from proctor.client import Client
from proctor.errors import ProctorError
from proctor.tools import input_schema
from proctor.transport import AgentPort
from proctor.wire.calls import Delivery

Deliver = Callable[[AgentPort, Delivery], Awaitable[None]]
"""Runs one attempt of an agent, which asks the kernel through its first argument."""


@asynccontextmanager
async def embedded(
    *,
    agents: Sequence[Agent],
    rules: str | Path,
    database: str | Path = "proctor.db",
    synchronous: Literal["FULL", "NORMAL"] = "FULL",
    reload_requires_tests: bool = False,
    invalid_rules: Literal["deny", "last_good", "refuse"] = "deny",
) -> AsyncIterator[Client]:
    """Run the kernel in this process, on SQLite, and give a client for it.

    `rules` is a folder of `.cedar` files. When it does not load at the start, every call is
    denied with the reason until it does; with `invalid_rules="last_good"` the rules that were
    last in force on this database decide meanwhile, with `"refuse"` nothing starts.

    `database` is a file (or `":memory:"`); runs of `agents` that were under way when the last
    process ended go on at once. `synchronous`: `FULL` survives a power cut, `NORMAL` a crash of
    the process, and is faster. At the end of the block the handlers are stopped; their runs go
    on at the next start.

    An edit of the rules is in force within two seconds. One that does not load changes
    nothing but `client.policy_status()` and the log; with `reload_requires_tests`, nor does
    one that fails the tests in `rules/tests`.

    Raises:
        ProctorError: the database cannot be used, the kernel is not installed, or the rules do
            not load and `invalid_rules` is `"refuse"`.
        ValueError: no agent, two agents of one id, an agent without a handler.
    """
    async with opened(
        agents=agents,
        rules=rules,
        database=database,
        synchronous=synchronous,
        reload_requires_tests=reload_requires_tests,
        invalid_rules=invalid_rules,
        deliver=lambda agent: agent.deliver,
    ) as port:
        yield Client.over(port)


@asynccontextmanager
async def opened(
    *,
    agents: Sequence[Agent],
    rules: str | Path,
    database: str | Path,
    synchronous: Literal["FULL", "NORMAL"],
    reload_requires_tests: bool,
    invalid_rules: Literal["deny", "last_good", "refuse"],
    deliver: Callable[[Agent], Deliver],
    **more: Any,
) -> AsyncIterator[Any]:
    """Open the kernel as `embedded` does, and give its `ClientPort`.

    `deliver` returns what runs one attempt of an agent; `more` goes to the kernel as it is.
    """
    delivering: dict[str, Deliver] = {}
    for agent in agents:
        if not agent.has_handler:
            raise ValueError(f"agent {agent.id!r} has no handler; decorate one: @agent.handler")
        if agent.id in delivering:
            raise ValueError(f"two agents have the id {agent.id!r}")
        delivering[agent.id] = deliver(agent)
    if not delivering:
        raise ValueError("agents=[...] needs at least one agent")
    kernel = kernel_module("in_process")
    opening = kernel.open_kernel(
        database=str(database),
        rules=str(rules),
        synchronous=synchronous,
        reload_requires_tests=reload_requires_tests,
        invalid_rules=invalid_rules,
        published={
            str(tool.__name__): input_schema(tool) for agent in agents for tool in agent.tools
        },
        deliver=delivering,
        **more,
    )
    try:
        port = await opening.__aenter__()
    except (kernel.StoreError, kernel.RulesInvalid) as error:
        raise ProctorError(str(error)) from error
    try:
        yield port
    finally:
        await opening.__aexit__(None, None, None)


def kernel_module(name: str) -> Any:
    """Return a module of the kernel; raises ProctorError where the kernel is not installed."""
    try:
        return importlib.import_module(f"proctor_kernel.{name}")
    except ModuleNotFoundError as error:
        raise ProctorError(
            f"the kernel is not installed here ({error}); pip install 'proctor[kernel]'"
        ) from error
