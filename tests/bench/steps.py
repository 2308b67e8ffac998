"""What a governed step costs in this process, by durability, alone and eight at once; resuming."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

from tests.bench.timing import MICROS, Figure, measured

import proctor
from proctor import Agent, tool

RESUMED_STEPS = 10_000


@tool
async def work(n: int) -> dict[str, bool]:
    """Do nothing, so that only the governing is timed."""
    return {"ok": True}


async def in_a_run(
    folder: Path,
    synchronous: Literal["FULL", "NORMAL"],
    handler: Callable[[], Awaitable[Any]],
) -> Any:
    """Run `handler` as an agent and return what it returned."""
    agent = Agent("bench")

    async def handle(input: Any) -> Any:
        return await handler()

    agent.bind(handle)
    async with proctor.embedded(
        agents=[agent], rules=folder, database=folder / "bench.db", synchronous=synchronous
    ) as client:
        ended = await client.wait((await client.create("bench")).id)
    if ended.status != "completed":
        raise SystemExit(f"the bench run {ended.status}: {ended.failure_reason}")
    return ended.output


async def step_cost(synchronous: Literal["FULL", "NORMAL"], at_once: int) -> Figure:
    """Return the cost of one governed step with `at_once` handlers' worth of calls at a time."""
    times = 400

    async def rounds() -> list[float]:
        micros = []
        for number in range(5):
            began = time.perf_counter()
            for start in range(0, times, at_once):
                await asyncio.gather(
                    *(work(number * times + start + each) for each in range(at_once))
                )
            micros.append((time.perf_counter() - began) / times * MICROS)
        return micros

    with tempfile.TemporaryDirectory() as name:
        write_rules(Path(name))
        micros = await in_a_run(Path(name), synchronous, rounds)
    which = "one after another" if at_once == 1 else f"{at_once} at once in one run"
    return measured(f"a governed step, {synchronous}, {which}", micros)


async def resume_cost() -> Figure:
    """Return the cost per step of taking up a run of `RESUMED_STEPS`, loading included."""
    stop = asyncio.Event()
    reached = asyncio.Event()

    async def handle(input: Any) -> None:
        for number in range(RESUMED_STEPS):
            await work(number)
        reached.set()
        await stop.wait()

    agent = Agent("bench")
    agent.bind(handle)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rules(folder)
        embed = {"agents": [agent], "rules": folder, "database": folder / "bench.db"}
        async with proctor.embedded(**embed, synchronous="NORMAL") as client:  # type: ignore[arg-type]
            created = await client.create("bench")
            await reached.wait()
        reached.clear()
        began = time.perf_counter()
        async with proctor.embedded(**embed, synchronous="NORMAL") as client:  # type: ignore[arg-type]
            await reached.wait()
            micros = (time.perf_counter() - began) / RESUMED_STEPS * MICROS
            stop.set()
            await client.wait(created.id)
    return measured(f"resuming a run of {RESUMED_STEPS} steps, per step", [micros])


def write_rules(folder: Path) -> None:
    """Write one rule that permits everything and one that asks about the arguments."""
    (folder / "rules.cedar").write_text(
        '@id("all") permit (principal, action, resource);\n'
        '@id("guard") forbid (principal, action == Action::"work", resource)'
        " when { context.input.n < 0 };\n"
    )
