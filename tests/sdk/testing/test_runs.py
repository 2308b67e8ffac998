"""What a failing test shows of a run."""

import re
from typing import Any

import pytest

from proctor import Agent, testing, tool

RULES = """
@id("reads") permit (principal, action == Action::"search", resource);
@id("no-shell") @reason("agents have no shell here")
forbid (principal, action == Action::"shell", resource);
@id("ask") @gate("approval") @approvers("finance")
forbid (principal, action == Action::"pay", resource);
@id("pays") permit (principal, action == Action::"pay", resource);
"""

TIMELINE = """\
run ID of clerk: blocked
  attempt 1
    search(query="cedar"): allowed by reads -> "about cedar"
  (crashed here)
  attempt 2
    search(query="cedar"): replayed -> "about cedar"
    shell(command="ls"): denied by no-shell: agents have no shell here
    pay(amount=5): put off by ask
  waits for finance: pay(amount=5)"""


@pytest.fixture(scope="module")
def run() -> testing.Run:
    @tool
    async def search(query: str) -> str:
        return f"about {query}"

    @tool
    async def shell(command: str) -> str:
        return command

    @tool
    async def pay(amount: int) -> str:
        return "paid"

    agent = Agent("clerk")

    @agent.handler
    async def work(input: Any) -> Any:
        return [await search("cedar"), await shell("ls"), await pay(5)]

    return testing.run(agent, rules=RULES, crash_after=1)


def test_the_timeline_tells_what_happened_attempt_by_attempt(run: testing.Run) -> None:
    assert str(run).replace(run.id, "ID") == TIMELINE


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        ("denied", ("search",), 'search(query="cedar") was to be denied, and allowed'),
        ("denied", ("pay",), "pay(amount=5) was to be denied, and waits for people"),
        ("allowed", ("pay",), "pay(amount=5) was to be allowed, and waits for people"),
        ("denied", ("fetch",), "'fetch' was to be denied, and was not called"),
        ("allowed", ("shell",), 'shell(command="ls") was to be allowed, and denied'),
    ],
)
def test_a_failed_check_says_what_was_instead_and_shows_the_timeline(
    run: testing.Run, check: str, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(AssertionError) as failed:
        getattr(testing, f"assert_{check}")(run, *arguments)

    assert str(failed.value) == f"{message}\n{run}"


def test_a_denial_by_another_rule_is_not_the_one_that_was_meant(run: testing.Run) -> None:
    testing.assert_denied(run, "shell", rule="no-shell")
    with pytest.raises(AssertionError, match="denied by no-shell, not by read-only"):
        testing.assert_denied(run, "shell", rule="read-only")


def test_one_step_is_one_step(run: testing.Run) -> None:
    with pytest.raises(AssertionError, match=re.escape("no step of 'fetch'")):
        run.step("fetch")
    assert run.step("search") == run.steps("search")[0]


def test_a_run_is_frozen(run: testing.Run) -> None:
    with pytest.raises(AttributeError):
        run.crashed = ()  # type: ignore[misc]
