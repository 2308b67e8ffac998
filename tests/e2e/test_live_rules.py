"""A running kernel takes up edits of its rules, and shrugs off broken ones."""

import asyncio
from pathlib import Path
from typing import Any

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
