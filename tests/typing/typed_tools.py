"""Tools and steps keep the types of what they govern. Checked by mypy, never run."""

import asyncio
import time
from typing import assert_type

from proctor import step, tool


@tool
async def search(query: str, limit: int = 10) -> list[str]:
    return [query] * limit


@tool
def count(words: list[str]) -> int:
    return len(words)


@tool("mail.send", idempotency="at_most_once")
async def send(to: str, *, subject: str) -> bool:
    return bool(to and subject)


@tool()
def summary(text: str) -> str:
    return text


async def uses() -> None:
    # A denied tool returns a sentence, which is a str.
    assert_type(await search("cedar", limit=3), list[str] | str)
    assert_type(await count(["a"]), int | str)
    assert_type(await send("a@b.example", subject="s"), bool | str)
    assert_type(await summary("text"), str)
    task = asyncio.create_task(search("cedar"))
    assert_type(await task, list[str] | str)

    found = await search("cedar")
    found.append("more")  # type: ignore[union-attr]
    if not isinstance(found, str):
        found.append("more")

    await search(1)  # type: ignore[arg-type]
    await search("a", 1, 2)  # type: ignore[call-arg]
    await count("a")  # type: ignore[arg-type]
    await send("a@b.example", "s")  # type: ignore[call-arg]
    await summary()  # type: ignore[call-arg]


async def fetch() -> dict[str, int]:
    return {}


async def uses_steps() -> None:
    # A denied step raises.
    assert_type(await step("now", time.time), float)
    assert_type(await step("fetch", fetch), dict[str, int])
    await step(time.time, "now")  # type: ignore[call-overload]
