"""What an author of agents writes to test them, and what it tells when it fails."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor import Agent, RateLimited, ToolError, step, testing, tool

RULES = """
@id("reads") permit (principal, action in [Action::"search", Action::"local"], resource);
@id("pays") permit (principal, action == Action::"pay", resource);
@id("no-shell") @reason("agents have no shell here")
forbid (principal, action == Action::"shell", resource);
@id("ask") @gate("approval") @approvers("finance") @timeout("30m") @reason("money leaves")
forbid (principal, action == Action::"pay", resource);
"""
UNGATED = '@id("all") permit (principal, action, resource);'


@tool
async def search(query: str) -> str:
    return f"about {query}"


@tool
def shell(command: str) -> str:
    raise AssertionError("never reached")


@tool
async def pay(amount: int) -> str:
    return f"paid {amount}"


@tool("wire", idempotency="at_most_once")
async def wire_money(amount: int) -> str:
    return f"wired {amount}"


def agent_of(handler: Any, agent_id: str = "clerk") -> Agent:
    agent = Agent(agent_id)
    agent.bind(handler)
    return agent


async def research(question: str) -> dict[str, Any]:
    now = await step("now", time.time)
    found = await search(question)
    return {"now": now, "found": found, "shell": await shell("ls")}


async def buy(input: Any) -> list[str]:
    return [await search("price"), await pay(5)]


async def three(input: Any) -> list[str]:
    return [await search("a"), await search("b"), await wire_money(1)]


async def test_a_run_is_returned_with_its_steps_and_decisions() -> None:
    async with testing.kernel(agents=[agent_of(research)], rules=RULES) as t:
        run = await t.run("clerk", {"question": "cedar"})

    assert run.status == "completed", run
    assert run.output["found"] == "about cedar"
    assert run.step("search").decision == "allow"
    assert [each.target for each in run.steps()] == ["now", "search", "shell"]
    assert run.bodies == {"now": 1, "search": 1}
    testing.assert_allowed(run, "search", rule="reads")
    testing.assert_denied(run, "shell", rule="no-shell")


def test_a_single_run_needs_no_loop() -> None:
    run = testing.run(agent_of(research), {"question": "cedar"}, rules=RULES)

    testing.assert_denied(run, "shell")


async def test_a_single_run_works_inside_a_running_loop() -> None:
    run = testing.run(agent_of(research), {"question": "cedar"}, rules=RULES)

    testing.assert_denied(run, "shell")


def test_rules_come_from_a_folder_too(tmp_path: Path) -> None:
    (tmp_path / "all.cedar").write_text(UNGATED)

    run = testing.run(agent_of(buy), rules=tmp_path)

    assert run.output == ["about price", "paid 5"]


async def test_a_run_waits_for_people_and_goes_on_when_one_agrees() -> None:
    async with testing.kernel(agents=[agent_of(buy)], rules=RULES) as t:
        waits = await t.run("clerk")
        with pytest.raises(proctor.ForbiddenError, match="finance"):
            await t.grant(waits, by="mallory")
        run = await t.grant(waits, by="ann", groups=["finance"])

    assert waits.status == "blocked"
    assert [(each.target, each.args) for each in waits.waits_for] == [("pay", {"amount": 5})]
    assert waits.bodies == {"search": 1}
    assert run.output == ["about price", "paid 5"]
    assert run.bodies == {"search": 1, "pay": 1}
    assert run.ran_again == ()
    assert run.waits_for == ()


def test_people_decide_in_tests_that_do_not_await() -> None:
    with testing.sync_kernel(agents=[agent_of(buy)], rules=RULES) as t:
        run = t.deny(t.run("clerk"), "pay", groups=["finance"], rationale="too much")

    assert run.output[1] == "pay not allowed. reason: too much"
    testing.assert_denied(run, "pay", rule="ask")


async def test_an_approval_runs_out_when_the_clock_is_moved() -> None:
    async with testing.kernel(agents=[agent_of(buy)], rules=RULES) as t:
        began = time.monotonic()
        waits = await t.run("clerk")
        still = await t.advance(waits, seconds=29 * 60)
        run = await t.advance(waits, seconds=61)
        took = time.monotonic() - began

    assert still.status == "blocked"
    assert run.output[1] == "pay not allowed. reason: approval_timeout"
    assert took < 5


async def test_a_limit_has_room_again_when_the_clock_is_moved() -> None:
    limited = UNGATED + (
        '@id("slow") @gate("rate_limit") @limit("1/1m") @per("execution") @wait("2m")'
        'forbid (principal, action == Action::"search", resource);'
    )

    async def twice(input: Any) -> list[str]:
        return [await search("a"), await search("b")]

    async with testing.kernel(agents=[agent_of(twice)], rules=limited) as t:
        waits = await t.run("clerk")
        run = await t.advance(waits, seconds=61)

    assert waits.status == "running"
    assert "put off" in waits.timeline
    assert run.output == ["about a", "about b"]
    assert run.bodies == {"search": 2}


async def test_rules_see_the_time_that_the_test_made(tmp_path: Path) -> None:
    until = '@id("young") permit (principal, action, resource) when { context.session.%s };'

    async def waits(input: Any) -> Any:
        return [await pay(1), await search("late")]

    rules = until % "elapsed_seconds < 3600" + (
        '@id("ask") @gate("approval") @timeout("2h") '
        'forbid (principal, action == Action::"pay", resource);'
    )
    async with testing.kernel(agents=[agent_of(waits)], rules=rules) as t:
        run = await t.advance(await t.run("clerk"), seconds=5000)
        run = await t.grant(run)

    assert "not allowed" in run.output[1]


@pytest.mark.parametrize("after", [1, 2])
async def test_a_crash_between_steps_repeats_no_body(after: int) -> None:
    async with testing.kernel(agents=[agent_of(three)], rules=UNGATED) as t:
        run = await t.run("clerk", crash_after=after)

    assert run.output == ["about a", "about b", "wired 1"]
    assert run.crashed == (1,)
    assert [call.answer for call in run.calls if call.attempt == 2][:after] == ["replay"] * after
    assert run.bodies == {"search": 2, "wire": 1}
    assert run.ran_again == ()


async def test_a_crash_after_the_last_step_replays_everything() -> None:
    async with testing.kernel(agents=[agent_of(three)], rules=UNGATED) as t:
        run = await t.run("clerk", crash_after=3)

    assert run.status == "completed"
    assert [call.body_ran for call in run.calls] == [True] * 3 + [False] * 3


async def test_a_crash_inside_a_body_runs_it_again_and_says_so() -> None:
    run = testing.run(agent_of(three), rules=UNGATED, crash_during="search")

    assert run.output == ["about a", "about b", "wired 1"]
    assert run.bodies == {"search": 3, "wire": 1}
    assert run.ran_again == ("search",)


async def test_a_crash_inside_a_body_that_must_not_run_twice_leaves_it_unknown() -> None:
    async def careful(input: Any) -> str:
        try:
            return await wire_money(1)
        except ToolError as error:
            return f"look: {error}"

    run = testing.run(agent_of(careful), rules=UNGATED, crash_during="wire")

    assert run.output.startswith("look: ")
    assert run.bodies == {"wire": 1}
    assert run.step("wire").error["reason"] == "indeterminate"


async def test_a_crash_drops_every_call_that_is_under_way() -> None:
    began = asyncio.Event()
    finished: list[str] = []

    @tool
    async def slow() -> str:
        began.set()
        await asyncio.sleep(0 if began.is_set() and finished else 3600)
        return "slow"

    @tool
    async def quick() -> str:
        await began.wait()
        finished.append("quick")
        return "quick"

    async def both(input: Any) -> list[str]:
        return list(await asyncio.gather(slow(), quick()))

    async with testing.kernel(agents=[agent_of(both)], rules=UNGATED) as t:
        run = await t.run("clerk", crash_after=1)

    assert run.output == ["slow", "quick"]
    assert run.ran_again == ("slow",)
    assert finished == ["quick"]


async def test_a_crash_that_never_comes_fails_the_test() -> None:
    async with testing.kernel(agents=[agent_of(three)], rules=UNGATED) as t:
        with pytest.raises(AssertionError, match=r"crash_after=9 never came\nrun .*: completed"):
            await t.run("clerk", crash_after=9)
        with pytest.raises(AssertionError, match="crash_during='pay' never came"):
            await t.run("clerk", crash_during="pay")
        with pytest.raises(ValueError, match="not both"):
            await t.run("clerk", crash_after=1, crash_during="pay")
        with pytest.raises(ValueError, match="at least 1"):
            await t.run("clerk", crash_after=0)


async def test_a_handler_that_hangs_is_told_with_what_it_did() -> None:
    async def hang(input: Any) -> None:
        await search("first")
        await asyncio.Event().wait()

    async with testing.kernel(agents=[agent_of(hang)], rules=UNGATED, timeout=0.2) as t:
        with pytest.raises(TimeoutError, match=r"0\.2 seconds(.|\n)*search\(query=\"first\"\)"):
            await t.run("clerk")


async def test_what_the_handler_raises_is_the_reason_of_the_failure() -> None:
    async def fail(input: Any) -> None:
        await step("roll", lambda: 4)
        raise RateLimited("too fast")

    run = testing.run(agent_of(fail), rules=UNGATED)

    assert (run.status, run.failure_reason) == ("failed", "too fast")
    assert "failed: too fast" in run.timeline


async def test_runs_do_not_see_each_other() -> None:
    async with testing.kernel(agents=[agent_of(three), agent_of(buy, "buyer")], rules=RULES) as t:
        crashed, waiting = await asyncio.gather(t.run("clerk", crash_after=1), t.run("buyer"))

    assert (crashed.crashed, waiting.crashed) == ((1,), ())
    assert (len(crashed.waits_for), len(waiting.waits_for)) == (0, 1)


def test_rules_that_do_not_load_stop_the_test_with_the_place() -> None:
    with pytest.raises(proctor.ProctorError, match=r"rules\.cedar:1.*reason"):
        testing.run(
            agent_of(buy), rules='@id("a") @resaon("x") permit (principal, action, resource);'
        )


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        pytest.param("rules", r"pass Path\('rules'\)", id="a folder as text"),
        pytest.param(Path("/nowhere/rules"), "no rules folder '/nowhere/rules'", id="no folder"),
    ],
)
def test_rules_that_are_neither_text_nor_a_folder_are_refused(
    rules: str | Path, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        testing.run(agent_of(buy), rules=rules)


async def test_deciding_what_nobody_asked_fails_with_the_timeline() -> None:
    async def two(input: Any) -> list[str]:
        return list(await asyncio.gather(pay(1), pay(2)))

    async with testing.kernel(agents=[agent_of(two), agent_of(three, "other")], rules=RULES) as t:
        run = await t.run("clerk")
        with pytest.raises(AssertionError, match=r"2 such calls wait; pass one of run\.waits_for"):
            await t.grant(run, "pay", groups=["finance"])
        with pytest.raises(AssertionError, match="'wire' was to be decided, and none waits"):
            await t.grant(run, "wire")
        first, second = run.waits_for
        run = await t.grant(run, first, groups=["finance"])
        run = await t.deny(run, second, groups=["finance"], rationale="no")

    assert run.output == ["paid 1", "pay not allowed. reason: no"]
