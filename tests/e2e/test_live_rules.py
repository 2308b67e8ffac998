"""A running kernel takes up edits of its rules, and shrugs off broken ones."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor import Agent, Client, tool

PERMIT = '@id("open") permit (principal, action, resource);\n'
FORBID = '@id("shut") @reason("closed for today") forbid (principal, action, resource);\n'


@tool
def draw() -> int:
    """Return the number of a die."""
    return 4


async def drawn(client: Client) -> Any:
    run = await client.create("player")
    return (await client.wait(run.id, timeout=10)).output


async def until(client: Client, condition: Any) -> None:
    """Wait until the status of the rules is as asked, two seconds at most."""
    async with asyncio.timeout(2):
        while not condition(await client.policy_status()):
            await asyncio.sleep(0.01)


async def test_an_edit_is_in_force_within_two_seconds_and_a_broken_one_never(
    tmp_path: Path,
) -> None:
    file = tmp_path / "rules" / "rules.cedar"
    file.parent.mkdir()
    file.write_text(PERMIT)
    agent = Agent("player")

    @agent.handler
    async def play(input: Any) -> Any:
        return await draw()

    async with proctor.embedded(
        agents=[agent], rules=file.parent, database=tmp_path / "proctor.db"
    ) as client:
        first = await drawn(client)
        file.write_text(PERMIT + FORBID)
        await until(client, lambda status: status.reloads == 1)
        second = await drawn(client)
        file.write_text(PERMIT + FORBID + "permit (principal")
        await until(client, lambda status: status.problems)
        broken = await client.policy_status()
        third = await drawn(client)
        file.write_text(PERMIT)
        await until(client, lambda status: status.reloads == 2)
        fourth = await drawn(client)

    assert first == fourth == 4
    assert second == third == "draw not allowed. reason: closed for today"
    assert "rules.cedar:3: " in broken.problems[0]
    assert broken.failing_since is not None


async def started(rules: Path, database: Path, **more: Any) -> tuple[Any, Any]:
    """Start a kernel, draw once, and return what was drawn and the status of the rules."""
    agent = Agent("player")

    @agent.handler
    async def play(input: Any) -> Any:
        return await draw()

    async with proctor.embedded(agents=[agent], rules=rules, database=database, **more) as client:
        return await drawn(client), await client.policy_status()


async def test_a_start_with_invalid_rules_does_what_was_chosen(tmp_path: Path) -> None:
    rules, database = tmp_path / "rules", tmp_path / "proctor.db"
    rules.mkdir()
    (rules / "rules.cedar").write_text(PERMIT)
    good, before = await started(rules, database)
    (rules / "rules.cedar").write_text("permit (")

    denied, _ = await started(rules, database)
    last_good, status = await started(rules, database, invalid_rules="last_good")
    nothing_yet, _ = await started(rules, tmp_path / "new.db", invalid_rules="last_good")
    with pytest.raises(proctor.ProctorError, match=r"rules\.cedar:1: "):
        await started(rules, database, invalid_rules="refuse")

    assert good == last_good == 4
    assert denied == nothing_yet
    assert "the rules did not load" in denied
    assert status.hash == before.hash
    assert "rules.cedar:1: " in status.problems[0]


async def test_an_edit_that_fails_its_tests_does_not_come_into_force_when_that_is_asked(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "rules"
    (rules / "tests").mkdir(parents=True)
    (rules / "rules.cedar").write_text(PERMIT)
    (rules / "tests" / "open.yaml").write_text("- {name: open, tool: draw, expect: allow}\n")
    agent = Agent("player")

    @agent.handler
    async def play(input: Any) -> Any:
        return await draw()

    async with proctor.embedded(
        agents=[agent],
        rules=rules,
        database=tmp_path / "proctor.db",
        reload_requires_tests=True,
    ) as client:
        (rules / "rules.cedar").write_text(PERMIT + FORBID)
        await until(client, lambda status: status.problems)
        status = await client.policy_status()
        drew = await drawn(client)

    assert drew == 4
    assert "open.yaml:1: open: draw: expected allow, got deny" in status.problems[0]


async def test_rules_are_checked_against_the_tools_that_agents_publish(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent must not decide whether rules load, so what does not fit is a warning."""

    @tool
    def pay(to: str, amount: float) -> str:
        return to

    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "rules.cedar").write_text(
        PERMIT + '@id("much") forbid (principal, action == Action::"pay", resource)\n'
        'when { context.input.amuont.greaterThan(decimal("5.0")) };\n'
        '@id("more") @reason("too much") forbid (principal, action == Action::"pay", resource)\n'
        'when { context.input.amount.greaterThan(decimal("5.0")) };\n'
    )
    agent = Agent("clerk", tools=[pay])

    @agent.handler
    async def work(input: Any) -> list[Any]:
        return [await pay("ada", 3)]

    with caplog.at_level(logging.WARNING):
        async with proctor.embedded(
            agents=[agent], rules=rules, database=tmp_path / "proctor.db"
        ) as client:
            status = await client.policy_status()

    assert status.problems == []
    assert "rules.cedar:3: 'pay' has no 'amuont'; did you mean 'amount'?" in caplog.text
