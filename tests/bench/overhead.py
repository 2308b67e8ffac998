"""What a tool costs by itself: the SDK's part of a call, with a kernel that answers at once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.bench.timing import Figure, repeated_async

from proctor import Agent, tool
from proctor.wire.calls import Delivery, Lease, StepReply
from proctor.wire.words import Answer

TARGET_MICROS = 100


class AtOnce:
    """An `AgentPort` whose answers are constants."""

    _proceed = StepReply(Answer.PROCEED, "step")
    _recorded = StepReply(Answer.RECORDED, "step")

    async def submit_step(self, *_: object) -> StepReply:
        return self._proceed

    async def complete_step(self, *_: object, result_json: str) -> StepReply:
        return self._recorded

    async def fail_step(self, *_: object, error_json: str) -> StepReply:
        return self._recorded

    async def complete_execution(self, *_: object, output_json: str) -> None:
        return None

    async def fail_execution(self, *_: object, reason: str) -> None:
        raise AssertionError(reason)

    async def suspend(self, *_: object) -> bool:
        raise AssertionError("nothing waits")


async def search(query: str, limit: int = 10, order: str = "new") -> list[dict[str, Any]]:
    """A body that does nothing, and returns what a search might."""
    return [{"title": query, "score": 0.5, "tags": ["a", "b"]}] * 3


async def in_a_run(handler: Callable[[], Awaitable[Figure]]) -> Figure:
    """Return what `handler` measures as an agent's handler."""
    measured: list[Figure] = []

    async def handle(_: Any) -> None:
        measured.append(await handler())

    agent = Agent("bench")
    agent.bind(handle)
    await agent.deliver(AtOnce(), Delivery("run", "bench", Lease("dispatch", 1), "null"))
    return measured[0]


def figures() -> list[Figure]:
    """Measure a bare function, and the same one as a tool."""
    governed = tool(search)

    def calls(name: str, function: Callable[..., Awaitable[Any]]) -> Callable[[], Any]:
        async def batch(times: int) -> None:
            for _ in range(times):
                await function("cedar", limit=5)

        return lambda: repeated_async(name, batch, times=5_000, rounds=7)

    return [
        asyncio.run(in_a_run(calls("a bare function", search))),
        asyncio.run(
            in_a_run(calls("the same as a tool, with a kernel that answers at once", governed))
        ),
    ]
