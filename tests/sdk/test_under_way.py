"""An attempt that has to stop: nothing it calls returns, nothing more is sent, nothing is cut off.

The handlers here do what agent frameworks do with what their tools raise (protocol 10.1).
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor import Agent, Approval, Blocked, Client, Execution, Step, tool
from proctor.wire.words import ExecutionStatus

RULES = """
@id("all") permit (principal, action, resource);
@id("ask") @gate("approval") forbid (principal, action == Action::"pay", resource);
"""

ran: collections.Counter[str] = collections.Counter()


@tool
async def pay(amount: int = 1) -> str:
    ran["pay"] += 1
    return f"paid {amount}"


@tool
async def lookup() -> str:
    ran["lookup"] += 1
    return "found"


@tool(idempotency="at_most_once")
async def slow() -> str:
    ran["slow"] += 1
    await asyncio.sleep(0.2)
    ran["slow came to its end"] += 1
    return "slow and steady"


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


Handler = Callable[[], Awaitable[Any]]
Story = tuple[list[Step], dict[str, int], Execution, list[Step]]
"""The steps and the bodies run when the run was blocked; the ended run and its steps."""

Parked = Callable[[Handler], Awaitable[Story]]


@pytest.fixture
def parked(tmp_path: Path) -> Parked:
    """Run a handler until it waits for an approval, grant what it waits for, and let it end."""

    async def run(handler: Handler) -> Story:
        (tmp_path / "rules.cedar").write_text(RULES)

        async def handle(input: Any) -> Any:
            return await handler()

        agent = Agent("payer")
        agent.bind(handle)
        async with proctor.embedded(
            agents=[agent], rules=tmp_path, database=":memory:", synchronous="NORMAL"
        ) as client:
            created = await client.create("payer")
            await stopped(client, created.id)
            steps, so_far = await client.list_steps(created.id), dict(ran)
            ending = asyncio.create_task(client.wait(created.id, timeout=10))
            while not ending.done():
                await grant_all(client)
                await asyncio.wait([ending], timeout=0.01)
            return steps, so_far, ending.result(), await client.list_steps(created.id)

    return run


async def stopped(client: Client, execution_id: str) -> None:
    """Wait until the run waits and its handler has come to an end."""
    async with asyncio.timeout(10):
        while "dispatch.discarded" not in [e.type for e in await client.events(execution_id)]:
            await asyncio.sleep(0.01)
    assert (await client.get(execution_id)).status is ExecutionStatus.BLOCKED


async def grant_all(client: Client) -> None:
    waiting: list[Approval] = await client.list_approvals()
    for each in waiting:
        await client.grant_approval(each.id, by="alice")


def targets(steps: list[Step]) -> list[tuple[str, str]]:
    return [(each.target, str(each.status)) for each in steps]


async def test_a_handler_that_catches_what_tools_raise_is_not_told_that_a_call_waits(
    parked: Parked,
) -> None:
    told: list[str] = []

    async def handler() -> list[str]:
        try:
            told.append(await pay())
        except Exception as error:
            told.append(f"tool error: {error!r}")
        told.append(await lookup())
        return told

    steps, so_far, ended, after = await parked(handler)

    assert targets(steps) == [("pay", "awaiting_approval")]
    assert so_far == {}
    assert ended.output == told == ["paid 1", "found"]
    assert targets(after) == [("pay", "succeeded"), ("lookup", "succeeded")]


async def test_a_call_made_by_a_handler_that_outlives_being_stopped_is_never_sent(
    parked: Parked,
) -> None:
    caught: list[str] = []

    async def handler() -> str:
        for each in (pay, lookup, slow):
            try:
                await each()
            except BaseException as error:
                caught.append(f"{each.__name__}: {type(error).__name__}")
        return "done"

    steps, so_far, ended, _ = await parked(handler)

    assert targets(steps) == [("pay", "awaiting_approval")]
    assert so_far == {}
    assert caught == [f"{name}: CancelledError" for name in ("pay", "lookup", "slow")]
    assert ended.output == "done"
    assert ran == {"pay": 1, "lookup": 1, "slow": 1, "slow came to its end": 1}


async def test_calls_beside_one_that_waits_are_not_cut_off_though_a_task_group_would(
    parked: Parked,
) -> None:
    async def handler() -> list[str]:
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(each()) for each in (slow, pay)]
        return [each.result() for each in calls]

    steps, so_far, ended, _ = await parked(handler)

    assert targets(steps) == [("slow", "succeeded"), ("pay", "awaiting_approval")]
    assert so_far == {"slow": 1, "slow came to its end": 1}
    assert ended.output == ["slow and steady", "paid 1"]
    assert ran == {"slow": 1, "slow came to its end": 1, "pay": 1}


async def test_a_call_that_comes_to_its_end_beside_one_that_waits_does_not_go_on_to_the_next(
    parked: Parked,
) -> None:
    async def slow_then_lookup() -> str:
        return f"{await slow()}, {await lookup()}"

    async def handler() -> list[str]:
        return await asyncio.gather(pay(), slow_then_lookup())

    steps, so_far, ended, _ = await parked(handler)

    assert targets(steps) == [("pay", "awaiting_approval"), ("slow", "succeeded")]
    assert "lookup" not in so_far
    assert ended.output == ["paid 1", "slow and steady, found"]


async def test_several_calls_at_once_may_wait_for_an_approval_each(parked: Parked) -> None:
    async def handler() -> list[str]:
        return await asyncio.gather(pay(1), pay(2))

    steps, _, ended, _ = await parked(handler)

    assert targets(steps) == [("pay", "awaiting_approval")] * 2
    assert ended.output == ["paid 1", "paid 2"]


async def test_a_body_beside_a_call_that_waits_goes_on_to_make_its_own_calls(
    parked: Parked,
) -> None:
    @tool
    async def errand() -> str:
        ran["errand"] += 1
        return f"{await slow()}, {await lookup()}"

    async def handler() -> list[str]:
        return await asyncio.gather(pay(), errand())

    steps, so_far, ended, _ = await parked(handler)

    assert sorted(targets(steps)) == [
        ("errand", "succeeded"),
        ("lookup", "succeeded"),
        ("pay", "awaiting_approval"),
        ("slow", "succeeded"),
    ]
    assert so_far == {"errand": 1, "slow": 1, "slow came to its end": 1, "lookup": 1}
    assert ended.output == ["paid 1", "slow and steady, found"]


async def test_a_body_whose_own_call_waits_stops_with_it_though_it_catches_everything(
    parked: Parked,
) -> None:
    @tool
    async def clerk() -> str:
        ran["clerk"] += 1
        try:
            return await pay()
        except Exception:
            return await lookup()

    async def handler() -> str:
        return await clerk()

    steps, so_far, ended, _ = await parked(handler)

    assert targets(steps) == [("clerk", "executing"), ("pay", "awaiting_approval")]
    assert so_far == {"clerk": 1}
    assert ended.output == "paid 1"
    assert ran == {"clerk": 2, "pay": 1}


async def test_what_a_handler_tidies_up_when_it_is_stopped_is_not_cut_off(
    parked: Parked,
) -> None:
    async def handler() -> list[str]:
        try:
            return await asyncio.gather(pay(1), pay(2))
        finally:
            await asyncio.sleep(0.05)
            ran["tidied up"] += 1

    _, so_far, ended, _ = await parked(handler)

    assert so_far == {"tidied up": 1}
    assert ended.status is ExecutionStatus.COMPLETED


async def test_tasks_that_a_handler_left_behind_are_let_go_of(parked: Parked) -> None:
    left: list[asyncio.Task[str]] = []

    async def handler() -> str:
        left.append(asyncio.create_task(lookup_after_pay()))
        while not left[-1].done():
            await asyncio.sleep(0.01)
        return left[-1].result()

    async def lookup_after_pay() -> str:
        return f"{await pay()}, {await lookup()}"

    _, so_far, ended, _ = await parked(handler)

    assert so_far == {}
    assert ended.output == "paid 1, found"
    assert [task.cancelled() for task in left] == [True, False]


async def test_a_handler_that_gives_a_waiting_call_up_is_stopped_all_the_same(
    parked: Parked,
) -> None:
    async def handler() -> list[str]:
        beside = asyncio.create_task(slow())
        try:
            told = await asyncio.wait_for(pay(), 0.05)
        except TimeoutError:
            told = await lookup()
        return [told, await beside]

    steps, so_far, ended, _ = await parked(handler)

    assert sorted(targets(steps)) == [("pay", "awaiting_approval"), ("slow", "succeeded")]
    assert so_far == {"slow": 1, "slow came to its end": 1}
    assert ended.output == ["paid 1", "slow and steady"]


async def test_control_flow_that_a_handler_raises_itself_counts(parked: Parked) -> None:
    async def handler() -> str:
        asking = asyncio.create_task(pay())
        await asyncio.wait([asking], timeout=0.2)
        if not asking.done():
            raise Blocked("a library of the handler found out")
        return asking.result()

    _, _, ended, _ = await parked(handler)

    assert ended.output == "paid 1"


async def test_a_handler_that_cancels_itself_fails_its_run(tmp_path: Path) -> None:
    (tmp_path / "rules.cedar").write_text(RULES)
    agent = Agent("payer")

    @agent.handler
    async def handler(input: Any) -> str:
        raise asyncio.CancelledError

    async with proctor.embedded(agents=[agent], rules=tmp_path, database=":memory:") as client:
        run = await client.create("payer")
        ended = await client.wait(run.id, timeout=10)

    assert ended.status is ExecutionStatus.FAILED
    assert ended.failure_reason == "agent_error: CancelledError: the handler cancelled itself"
