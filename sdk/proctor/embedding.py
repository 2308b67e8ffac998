"""The kernel inside this process: `async with embedded(...) as client`, or `run_embedded(...)`."""

import asyncio
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
from proctor.wire.words import ExecutionStatus

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


async def run_embedded(
    handler: Callable[..., Any],
    input: Any = None,
    *,
    rules: str | Path,
    database: str | Path = ":memory:",
    key: str | None = None,
) -> Any:
    """Run a function once as an agent under `rules`, and return what it returns, as JSON has it.

    The agent is called like the function, which takes `input` as a handler does. With a
    `database` file and a `key` the run survives this process: the same call after a crash goes on
    with the run that the key stands for, and after its end returns what it returned.

    Raises:
        ProctorError: the run failed, or was cancelled; it waits for an approval, which only a
            client can decide: see `embedded`. Also what `embedded` raises.
        ValueError: a file without a key, so that nothing could go on with what it holds.
    """
    if key is None and str(database) != ":memory:":
        raise ValueError(f"run_embedded(database={str(database)!r}) needs a key for its run")
    agent = _Resting(getattr(handler, "__name__", "agent"))
    agent.bind(handler)
    async with embedded(agents=[agent], rules=rules, database=database) as client:
        run = await client.create(agent.id, input, idempotency_key=key)
        ended = asyncio.ensure_future(client.wait(run.id))
        try:
            while not ended.done():
                resting = asyncio.ensure_future(agent.rests.wait())
                await asyncio.wait([ended, resting], return_when=asyncio.FIRST_COMPLETED)
                resting.cancel()
                agent.rests.clear()
                await _refuse_to_wait_for_people(client, run.id)
        finally:
            ended.cancel()
        run = ended.result()
    if run.status is not ExecutionStatus.COMPLETED:
        raise ProctorError(f"the run of {agent.id} {run.status}: {run.failure_reason}")
    return run.output


class _Resting(Agent):
    """An agent that tells when an attempt of it is over."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(agent_id)
        self.rests = asyncio.Event()
        self.rests.set()  # a run that is taken up again may be waiting already

    async def deliver(self, port: AgentPort, delivery: Delivery) -> None:
        try:
            await super().deliver(port, delivery)
        finally:
            self.rests.set()


async def _refuse_to_wait_for_people(client: Client, execution_id: str) -> None:
    if (await client.get(execution_id)).status is not ExecutionStatus.BLOCKED:
        return
    for approval in await client.list_approvals():
        if approval.execution_id == execution_id:
            raise ProctorError(
                f"{approval.target} {approval.args} waits for an approval: {approval.reason}. "
                "Run the agent with proctor.embedded(...), and decide it with "
                "client.grant_approval(...) or client.deny_approval(...)"
            )


def kernel_module(name: str) -> Any:
    """Return a module of the kernel; raises ProctorError where the kernel is not installed."""
    try:
        return importlib.import_module(f"proctor_kernel.{name}")
    except ModuleNotFoundError as error:
        raise ProctorError(
            f"the kernel is not installed here ({error}); pip install 'proctor[kernel]'"
        ) from error
