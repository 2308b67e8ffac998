"""Approvals of an embedded kernel: bound to the call, decided by whom the rule asks, in time."""

import asyncio
import collections
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor import Agent, Approval, Client, tool

RULES = """
@id("all") permit (principal, action, resource);
@id("ask") @gate("approval") @reason("money leaves") forbid (principal, action == Action::"pay", resource);
@id("soon") @gate("approval") @timeout("1s") forbid (principal, action == Action::"hurry", resource);
@id("four-eyes") @gate("approval") @approvers("group:finance") @quorum("2")
forbid (principal, action == Action::"transfer", resource);
"""  # noqa: E501  # a rule a line

ran: collections.Counter[str] = collections.Counter()


@tool(idempotency="at_most_once")
async def pay(amount: int) -> str:
    ran[f"pay {amount}"] += 1
    return f"paid {amount}"


@tool
async def hurry() -> str:
    raise AssertionError("nobody agreed")


@tool
async def transfer() -> str:
    return "transferred"


@tool
async def lookup() -> str:
    ran["lookup"] += 1
    await asyncio.sleep(0.3)
    return "found"


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "rules.cedar").write_text(RULES)
    return folder


def agent_of(handler: Callable[[Any], Awaitable[Any]]) -> Agent:
    agent = Agent("payer")

    @agent.handler
    async def work(input: Any) -> Any:
        return await handler(input)

    return agent


async def pending(client: Client, count: int = 1) -> list[Approval]:
    async with asyncio.timeout(10):
        while len(found := await client.list_approvals()) < count:
            await asyncio.sleep(0.01)
    return found


async def test_a_granted_call_runs_once_and_other_arguments_ask_again(
    rules: Path, tmp_path: Path
) -> None:
    async def work(input: Any) -> Any:
        await lookup()
        return [await pay(1), await pay(2)]

    async with proctor.embedded(
        agents=[agent_of(work)], rules=rules, database=tmp_path / "p.db"
    ) as client:
        run = await client.create("payer")
        (first,) = await pending(client)
        blocked = await client.get(run.id)
        await client.grant_approval(first.id, by="alice")
        async with asyncio.timeout(10):
            while (await pending(client))[0].id == first.id:
                await asyncio.sleep(0.01)
        (second,) = await pending(client)
        await client.deny_approval(second.id, by="alice", rationale="once is enough")
        ended = await client.wait(run.id, timeout=10)

    assert blocked.status == "blocked"
    assert (first.target, first.args, second.args) == ("pay", {"amount": 1}, {"amount": 2})
    assert first.reason == "money leaves"
    assert ended.output == ["paid 1", "pay not allowed. reason: once is enough"]
    assert ran == {"lookup": 1, "pay 1": 1}


@pytest.mark.parametrize("granted", [1, 2])
async def test_three_at_once_with_a_restart_in_between(
    rules: Path, tmp_path: Path, granted: int
) -> None:
    async def work(input: Any) -> Any:
        return await asyncio.gather(pay(1), lookup(), pay(2))

    def opened() -> Any:
        return proctor.embedded(agents=[agent_of(work)], rules=rules, database=tmp_path / "p.db")

    async with opened() as client:
        run = await client.create("payer")
        found = {each.args["amount"]: each.id for each in await pending(client, 2)}
        await client.grant_approval(found[granted], by="alice")
        async with asyncio.timeout(10):
            while "succeeded" not in [str(s.status) for s in await client.list_steps(run.id)]:
                await asyncio.sleep(0.01)
    async with opened() as client:
        await client.deny_approval(found[3 - granted], by="bob", rationale="no")
        ended = await client.wait(run.id, timeout=10)

    paid = {granted: f"paid {granted}", 3 - granted: "pay not allowed. reason: no"}
    assert ended.output == [paid[1], "found", paid[2]]
    assert ran == {"lookup": 1, f"pay {granted}": 1}


async def test_an_approval_expires_on_the_dot_and_cannot_be_granted_after(rules: Path) -> None:
    async def work(input: Any) -> Any:
        return await hurry()

    async with proctor.embedded(
        agents=[agent_of(work)], rules=rules, database=":memory:"
    ) as client:
        run = await client.create("payer")
        (approval,) = await pending(client)
        began = time.monotonic()
        ended = await client.wait(run.id, timeout=10)
        waited = time.monotonic() - began
        with pytest.raises(proctor.ConflictError, match="already expired"):
            await client.grant_approval(approval.id, by="late")
        (step,) = await client.list_steps(run.id)

    assert ended.output == "hurry not allowed. reason: approval_timeout"
    assert step.status == "denied"
    assert waited < 1.5


async def test_four_eyes_are_of_two_people_that_the_rule_asks(rules: Path) -> None:
    async def work(input: Any) -> Any:
        return await transfer()

    async with proctor.embedded(
        agents=[agent_of(work)], rules=rules, database=":memory:"
    ) as client:
        run = await client.create("payer")
        (approval,) = await pending(client)
        with pytest.raises(proctor.ForbiddenError, match="group:finance"):
            # A name that looks like the group is not in it.
            await client.grant_approval(approval.id, by="finance")
        await client.grant_approval(approval.id, by="alice", groups=["finance"])
        with pytest.raises(proctor.ConflictError, match="agreed already"):
            await client.grant_approval(approval.id, by="alice", groups=["finance"])
        waiting = await client.get_approval(approval.id)
        await client.grant_approval(approval.id, by="bob", groups=["finance"])
        ended = await client.wait(run.id, timeout=10)

    assert (waiting.status, waiting.gates[0].granted, waiting.gates[0].quorum) == ("pending", 1, 2)
    assert ended.output == "transferred"


async def test_a_grant_lifts_its_gate_and_nothing_that_forbids_by_then(rules: Path) -> None:
    async def work(input: Any) -> Any:
        return await pay(1)

    async with proctor.embedded(
        agents=[agent_of(work)], rules=rules, database=":memory:"
    ) as client:
        run = await client.create("payer")
        (approval,) = await pending(client)
        before = (await client.policy_status()).hash
        closed = '@id("closed") @reason("closed today") forbid (principal, action, resource);'
        (rules / "closed.cedar").write_text(closed)
        async with asyncio.timeout(10):
            while (await client.policy_status()).hash == before:
                await asyncio.sleep(0.02)
        await client.grant_approval(approval.id, by="alice")
        ended = await client.wait(run.id, timeout=10)

    assert ended.output == "pay not allowed. reason: closed today"
    assert ran == {}


async def test_a_grant_does_not_count_for_a_rule_that_asks_other_people_by_then(
    rules: Path,
) -> None:
    async def work(input: Any) -> Any:
        return await pay(1)

    async with proctor.embedded(
        agents=[agent_of(work)], rules=rules, database=":memory:"
    ) as client:
        run = await client.create("payer")
        (approval,) = await pending(client)
        before = (await client.policy_status()).hash
        asks = '@id("ask") @gate("approval")'
        stricter = RULES.replace(asks, f'{asks} @approvers("bob")')
        (rules / "rules.cedar").write_text(stricter)
        async with asyncio.timeout(10):
            while (await client.policy_status()).hash == before:
                await asyncio.sleep(0.02)
        await client.grant_approval(approval.id, by="alice")
        async with asyncio.timeout(10):
            while (await client.list_approvals() or [approval])[0].id == approval.id:
                await asyncio.sleep(0.02)
        (again,) = await client.list_approvals()
        before_bob = dict(ran)
        await client.grant_approval(again.id, by="bob")
        ended = await client.wait(run.id, timeout=10)

    assert again.gates[0].approvers == ["bob"]
    assert before_bob == {}
    assert ended.output == "paid 1"


async def test_a_run_that_is_cancelled_while_it_waits_leaves_nothing_to_decide(
    rules: Path,
) -> None:
    async def work(input: Any) -> Any:
        return await pay(1)

    async with proctor.embedded(
        agents=[agent_of(work)], rules=rules, database=":memory:"
    ) as client:
        run = await client.create("payer")
        (approval,) = await pending(client)
        await client.cancel(run.id)
        after = await client.get_approval(approval.id)
        left = await client.list_approvals()

    assert (after.status, after.rationale) == ("expired", "execution_cancelled")
    assert left == []


async def test_runs_of_a_session_take_turns_and_what_one_read_taints_the_next(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "session-rules"
    folder.mkdir()
    (folder / "rules.cedar").write_text(
        """
        @id("all") permit (principal, action, resource);
        @id("no-pay-after-lookup") @reason("this session has looked something up")
        forbid (principal, action == Action::"pay", resource)
        when { context.session.tools.contains("lookup") };
        """
    )

    async def work(input: Any) -> Any:
        return await (lookup() if input == "look" else pay(1))

    async with proctor.embedded(
        agents=[agent_of(work)], rules=folder, database=":memory:"
    ) as client:
        runs = [await client.create("payer", each, session="s") for each in ("look", "pay")]
        other = await client.create("payer", "pay", session="another")
        ended = [await client.wait(run.id, timeout=10) for run in (*runs, other)]

    assert runs[1].status == "pending"
    assert [run.output for run in ended] == [
        "found",
        "pay not allowed. reason: this session has looked something up",
        "paid 1",
    ]
