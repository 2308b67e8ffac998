"""Checks the runs from one id to another: what one worker does at a time."""

import asyncio
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from proctor_kernel.audit.inspection import Inspection, Stored, Tables, inspect
from proctor_kernel.audit.reading import Read, Snapshots, Source
from proctor_kernel.core.chain import Row
from proctor_kernel.store.rows import Values


@dataclass(frozen=True, slots=True)
class Select:
    """A compiled select, its columns, and which of them is the run's id."""

    sql: str
    columns: tuple[str, ...]
    key: str


@dataclass(frozen=True, slots=True)
class Selects:
    """How all that there is of the runs between two ids is read; each takes the two."""

    log: Select
    tables: tuple[Select, ...]
    """In the order of `Tables`."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The runs from one id to another, both included."""

    first: str
    last: str
    events: int


async def check(
    opened: Snapshots, selects: Selects, unit: Unit, by_transaction: bool
) -> list[Inspection]:
    """Check every run of a unit, as it stands at one moment."""
    async with opened.snapshot() as read:
        log = await _by_run(read, selects.log, unit)
        tables = [await _by_run(read, select, unit) for select in selects.tables]
    return [
        inspect(
            execution_id,
            [_stored(values) for values in rows],
            Tables(*(table.get(execution_id, ()) for table in tables)),
            by_transaction=by_transaction,
        )
        for execution_id, rows in log.items()
    ]


async def _by_run(read: Read, select: Select, unit: Unit) -> dict[Any, list[Values]]:
    found: dict[Any, list[Values]] = {}
    for row in await read(select.sql, unit.first, unit.last):
        values = dict(zip(select.columns, row, strict=True))
        found.setdefault(values[select.key], []).append(values)
    return found


def _stored(values: Mapping[str, Any]) -> Stored:
    return Stored(
        Row(
            values["execution_id"],
            values["event_seq"],
            values["type"],
            values["payload"],
            values["occurred_at"],
            values["hash"],
        ),
        values["position"],
    )


class _Worker:
    """What a worker process keeps open."""

    def __init__(self, where: str, selects: Selects) -> None:
        self._source = Source(where)
        self._selects = selects
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._opened: Snapshots | None = None

    def check(self, unit: Unit) -> list[Inspection]:
        return self._runner.run(self._check(unit))

    async def _check(self, unit: Unit) -> list[Inspection]:
        if self._opened is None:
            self._opened = await self._stack.enter_async_context(self._source.opened())
        return await check(self._opened, self._selects, unit, self._source.is_postgres)


_worker: _Worker | None = None


def begin(where: str, selects: Selects) -> None:
    """Make this process a worker."""
    global _worker
    # The parent is told of Ctrl-C too, and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker = _Worker(where, selects)


def checked(unit: Unit) -> list[Inspection]:
    """Check a unit in a worker."""
    assert _worker is not None, "begin comes first"
    return _worker.check(unit)


def units(sizes: Iterable[Sequence[Any]], events_max: int) -> list[Unit]:
    """Divide runs, given in order with their lengths, into units of about so many events."""
    made: list[Unit] = []
    first = last = None
    events = 0
    for execution_id, count in sizes:
        if first is None:
            first = execution_id
        last, events = execution_id, events + count
        if events >= events_max:
            made.append(Unit(first, last, events))
            first, events = None, 0
    if first is not None and last is not None:
        made.append(Unit(first, last, events))
    return made
