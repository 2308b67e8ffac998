"""A run to call tools from: the real kernel, in memory, with everything permitted."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import proctor
from proctor import Agent, Execution, Step

Played = tuple[Execution, list[Step]]
Play = Callable[..., Awaitable[Played]]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run `handler(input)` as an agent; returns the ended run and its steps."""

    async def run(handler: Callable[[Any], Any], *policies: str) -> Played:
        folder = tmp_path / "rules"
        folder.mkdir(exist_ok=True)
        permit = '@id("all") permit (principal, action, resource);'
        (folder / "rules.cedar").write_text("\n".join([permit, *policies]))

        async def handle(input: Any) -> Any:
            return await handler(input)

        agent = Agent("tester")
        agent.bind(handle)
        async with proctor.embedded(
            agents=[agent], rules=folder, database=":memory:", synchronous="NORMAL"
        ) as client:
            created = await client.create("tester")
            ended = await client.wait(created.id, timeout=20)
            return ended, await client.list_steps(created.id)

    return run
