"""How a figure is taken: several rounds, the median, and ratios between neighbours."""

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

MICROS = 1e6


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured cost, in microseconds."""

    name: str
    median: float
    low: float
    high: float


def measured(name: str, micros: list[float]) -> Figure:
    """Return the figure of several rounds."""
    return Figure(name, statistics.median(micros), min(micros), max(micros))


def repeated(name: str, call: Callable[[], object], *, times: int, rounds: int = 7) -> Figure:
    """Time `call`: `rounds` rounds of `times` calls each, cost per call."""
    call()
    micros = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(times):
            call()
        micros.append((time.perf_counter() - began) / times * MICROS)
    return measured(name, micros)


async def repeated_async(
    name: str, batch: Callable[[int], Awaitable[object]], *, times: int, rounds: int = 5
) -> Figure:
    """Time `batch(times)`, which makes that many calls: `rounds` rounds, cost per call."""
    await batch(10)
    micros = []
    for _ in range(rounds):
        began = time.perf_counter()
        await batch(times)
        micros.append((time.perf_counter() - began) / times * MICROS)
    return measured(name, micros)
