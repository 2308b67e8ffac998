"""Exporting: how fast the log leaves, and what governing pays for it while it does.

The receiver is a process of its own; on two processors it takes its share of what is measured.
"""

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console
from tests.bench.timing import MICROS
from tests.kernel.core.driving import step_of, submit, succeed
from tests.kernel.test_kernel import begun, kernel_on
from tests.support.otlp_receiver import Receiver

from proctor.wire.calls import Lease
from proctor_kernel import world
from proctor_kernel.audit.follow import Follower
from proctor_kernel.audit.jsonl import JsonLinesFile
from proctor_kernel.audit.leaving import Projector
from proctor_kernel.audit.otlp import OtlpSink
from proctor_kernel.audit.redact import Redactor
from proctor_kernel.audit.shipping import Sink
from proctor_kernel.core.commands import FinishExecution, Returned
from proctor_kernel.core.identity import Json
from proctor_kernel.kernel import Kernel
from proctor_kernel.store.sqlite import SQLite
from proctor_policy.masks import Mask, Masks

EVENTS = 100_000
STEPS_OF_A_RUN = 100
RESULT = '{"hits":["a page about it","another page about it","a third"],"more":true}'

MASKS = Masks((Mask(("search",), {"args": (("secret",),)}, "hash"),))


@dataclass(frozen=True, slots=True)
class Rate:
    """Events a second of one way out."""

    name: str
    events_per_second: float


def _receive(ready: Connection) -> None:
    receiver = Receiver()
    receiver.start()
    ready.send(receiver.url)
    ready.recv()


class Backend:
    """A receiver in a process of its own."""

    def __enter__(self) -> "Backend":
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_receive, args=(theirs,), daemon=True)
        self._process.start()
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = self._ours.recv()
        return self

    def stop(self) -> None:
        """Be down from now on."""
        self._process.kill()
        self._process.join()

    def __exit__(self, *_: object) -> None:
        self.stop()


async def filled(database: SQLite, total: int = EVENTS) -> int:
    """Write runs of a hundred calls each, until there are `total` events; returns how many."""
    kernel = kernel_on(database, hot_bytes_max=1 << 24)

    async def run(execution_id: str) -> int:
        lease = await begun(kernel, execution_id)
        await steps(kernel, execution_id, lease, STEPS_OF_A_RUN)
        await kernel.apply(execution_id, FinishExecution(lease, Returned(Json('{"n":1}'))))
        return (await kernel.load(execution_id)).seq

    written = number = 0
    while written < total:
        names = [f"01920000-0000-7000-8000-{number + each:012}" for each in range(10)]
        written += sum(await asyncio.gather(*map(run, names)))
        number += 10
    return written


async def steps(kernel: Kernel, execution_id: str, lease: Lease, count: int) -> None:
    """Govern `count` calls of one run, one after the other."""
    for n in range(count):
        args = f'{{"query":"what happened on day {n}","limit":10}}'
        reply = await kernel.apply(execution_id, submit(lease, args=args))
        await kernel.apply(execution_id, succeed(lease, step_of(reply), RESULT))


def following(database: SQLite, name: str, sink: Sink) -> Follower:
    """Return an exporter of a log, with masks that look at every call."""
    return Follower(
        name=name,
        sink=sink,
        database=database,
        projector=Projector(database, lambda: Redactor(MASKS, b"key")),
        holder="bench",
        now_micros=world.now_micros,
    )


async def rate(database: SQLite, name: str, sink: Sink, total: int) -> Rate:
    """Ship the whole log to a sink."""
    follower = following(database, name, sink)
    began = time.perf_counter()
    while await follower.once():
        pass
    seconds = time.perf_counter() - began
    await sink.aclose()
    return Rate(name, total / seconds)


async def hot_path(folder: Path, sink: Callable[[], Sink] | None, seconds: float = 4) -> float:
    """Return the microseconds of a governed call while an exporter runs beside it, or none."""
    database = SQLite(str(folder / f"{world.new_id()}.db"), "NORMAL")
    kernel = kernel_on(database)
    task = None
    if sink is not None:
        task = asyncio.create_task(following(database, "beside", sink()).run())
        await asyncio.sleep(0.5)
    lease = await begun(kernel, "run")
    await steps(kernel, "run", lease, 50)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        await steps(kernel, "run", lease, 50)
        done += 50
    micros = (time.perf_counter() - began) / done * MICROS
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    database.close()
    return micros


def main() -> None:
    """Measure exporting and print it."""
    console = Console()
    with tempfile.TemporaryDirectory() as name, Backend() as backend:
        folder = Path(name)
        asyncio.run(_measure(console, folder, backend))


async def _measure(console: Console, folder: Path, backend: Backend) -> None:
    database = SQLite(str(folder / "log.db"), "NORMAL")
    began = time.perf_counter()
    total = await filled(database)
    console.print(
        f"\nExporting a log of {total:,} events "
        f"({total / (time.perf_counter() - began):,.0f} events a second to write it)"
    )
    for name, sink in (
        ("otlp-traces", OtlpSink("traces")),
        ("otlp-logs", OtlpSink("logs")),
        ("jsonl", JsonLinesFile(folder / "trail.jsonl")),
    ):
        found = await rate(database, name, sink, total)
        console.print(f"  {found.name:<12} {found.events_per_second:>9,.0f} events a second")
    database.close()
    alone = [await hot_path(folder, None)]
    beside = [await hot_path(folder, lambda: OtlpSink("traces"))]
    alone.append(await hot_path(folder, None))
    beside.append(await hot_path(folder, lambda: OtlpSink("traces")))
    backend.stop()
    down = [await hot_path(folder, lambda: OtlpSink("traces")) for _ in range(2)]
    alone.append(await hot_path(folder, None))
    base = statistics.median(alone)
    console.print(
        f"  a governed call alone {base:,.0f} us; while traces leave x "
        f"{statistics.mean(beside) / base:.2f}; while the backend is down x "
        f"{statistics.mean(down) / base:.2f}"
    )


if __name__ == "__main__":
    main()
