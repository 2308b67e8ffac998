"""Is the log what was written? Every run is checked, and the checkpoints that sign them."""

import asyncio
import multiprocessing
import os
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Final

from proctor_kernel.audit import checking, ledger
from proctor_kernel.audit.checking import Unit
from proctor_kernel.audit.inspection import Finding, Inspection
from proctor_kernel.audit.ledger import Ledger, SignedRow
from proctor_kernel.audit.reading import CannotRead, Read, Snapshots, Source
from proctor_kernel.audit.signing import PublicKeys
from proctor_kernel.audit.sql import Sql
from proctor_kernel.core import checkpoints
from proctor_kernel.store import statements
from proctor_kernel.store.database import SCHEMA_HEAD
from proctor_kernel.store.migrate import REVISION

_UNIT_EVENTS: Final = 2_000
_ALONE_EVENTS_MAX: Final = 10_000
"""Fewer are checked before another process would have started."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Which runs are checked; everything, unless it is narrowed. Times in microseconds."""

    executions: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    """Runs with an event from `since` on and before `until`."""

    @property
    def is_narrow(self) -> bool:
        """True when some runs are left out."""
        return bool(self.executions) or self.since is not None or self.until is not None


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and what is not as it was written."""

    executions: int
    events: int
    findings: tuple[Finding, ...]
    checkpoints: Ledger = field(default_factory=Ledger)
    unsigned: int = 0
    """Runs that have ended and that no checkpoint names yet."""
    forgotten: int = 0
    """Runs that retention deleted, as a checkpoint or their own signature says."""

    @property
    def is_intact(self) -> bool:
        """True when everything that was checked is as it was written."""
        return not self.findings


Progress = Callable[[int, int], None]
"""Events that were checked, and how many there are."""


async def verify(
    where: str,
    *,
    scope: Scope = Scope(),
    keys: PublicKeys | None = None,
    expected: tuple[int, str] | None = None,
    jobs: int = 1,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Check the log, the read tables and the checkpoints of a database, which is only read.

    `where`: a SQLite file or `postgresql://...`, also one that a kernel is at work on. `keys`:
    whose checkpoints are believed; None: their signatures are not checked. `expected`: number and
    hash of a checkpoint that was kept elsewhere. `jobs`: processes.

    Raises:
        CannotRead: the database cannot be checked.
    """
    source = Source(where)
    sql = Sql(source.is_postgres)
    async with source.opened() as opened:
        found = _Found(keys, scope)
        async with opened.snapshot() as read:
            await _check_schema(read, sql, source)
            found.signed = await _signed(read, sql, keys, expected)
            listed = await _listed(read, sql, scope)
            found.add_all(await _rows_without_log(read, sql, scope))
        found.add_all(found.signed.findings)
        units, unreadable = _units(listed, 0 if scope.is_narrow else _UNIT_EVENTS)
        found.add_all(unreadable)
        total = sum(unit.events for unit in units)
        done = 0
        async for unit, inspections in _inspections(source, opened, sql, units, total, jobs):
            for inspection in inspections:
                found.inspected(inspection)
            done += unit.events
            progress(done, total)
        async with opened.snapshot() as read:
            # Read last: what retention deletes meanwhile is not missing.
            found.deleted(await _deleted(read, sql, keys), await _signed(read, sql, keys, None))
    return found.report()


class _Found:
    """What comes together while a database is checked."""

    def __init__(self, keys: PublicKeys | None, scope: Scope) -> None:
        self._scope = scope
        self._keys = keys
        self._findings: list[Finding] = []
        self._seen: set[str] = set()
        self._executions = self._events = self._unsigned = self._forgotten = 0
        self.signed = Ledger()

    def add_all(self, findings: Sequence[Finding]) -> None:
        """Take note of findings."""
        self._findings += findings

    def inspected(self, inspection: Inspection) -> None:
        """Take a run that was checked, and hold it to what was signed."""
        execution_id = inspection.execution_id
        self._executions += 1
        self._events += inspection.events
        self._seen.add(execution_id)
        self._findings += inspection.findings
        if inspection.findings:
            return
        finding = ledger.held_to(self.signed, execution_id, inspection.ended)
        if finding is not None:
            self._findings.append(finding)
        elif inspection.ended is not None and execution_id not in self.signed.ended:
            self._unsigned += 1

    def deleted(self, deleted: dict[str, bool], later: Ledger) -> None:
        """Look for runs that are signed and gone, in what is signed and deleted by now."""
        known = {**self.signed.forgotten, **later.forgotten}
        self._forgotten = len(known.keys() | {each for each, holds in deleted.items() if holds})
        gone = [
            each for each in self.signed.ended if each not in self._seen and self._is_asked(each)
        ]
        self._findings += ledger.missing(
            self.signed, gone, deleted={**deleted, **dict.fromkeys(known, True)}
        )
        for execution_id in self._scope.executions:
            if execution_id not in self._seen and execution_id not in self.signed.ended:
                what = "retention deleted it" if execution_id in known else "there is no such run"
                self._findings.append(Finding(execution_id, None, what))

    def report(self) -> Report:
        """Return what was found, by run and event."""
        ordered = sorted(
            dict.fromkeys(self._findings),
            key=lambda each: (each.execution_id, each.seq or 0),
        )
        return Report(
            self._executions,
            self._events,
            tuple(ordered),
            self.signed,
            self._unsigned,
            self._forgotten,
        )

    def _is_asked(self, execution_id: str) -> bool:
        if self._scope.executions:
            return execution_id in self._scope.executions
        at = self.signed.times[self.signed.ended[execution_id].checkpoint]
        since, until = self._scope.since, self._scope.until
        return (since is None or at >= since) and (until is None or at < until)


async def _check_schema(read: Read, sql: Sql, source: Source) -> None:
    (found,) = await read(sql.text(REVISION))
    if found[0] != SCHEMA_HEAD:
        raise CannotRead(
            f"{source.name}: its tables are at {found[0]}, this Proctor knows {SCHEMA_HEAD}"
        )


async def _signed(
    read: Read, sql: Sql, keys: PublicKeys | None, expected: tuple[int, str] | None
) -> Ledger:
    columns = ("number", "position", "signed_at", "body", "key_id", "signature")
    assert tuple(column.name for column in statements.CHECKPOINTS.columns) == columns
    rows = await read(sql.text(statements.ALL_CHECKPOINTS))

    def believed(key_id: str, text: str, signature: str) -> bool:
        return keys is not None and keys.holds(key_id, "checkpoint", text, signature)

    found = (SignedRow(*row[:3], *map(_text, row[3:])) for row in rows)
    return ledger.read(found, believed if keys else None, expected)


def _text(value: Any) -> str:
    # SQLite keeps anything in a column of texts.
    return value if isinstance(value, str) else ascii(value)


async def _deleted(read: Read, sql: Sql, keys: PublicKeys | None) -> dict[str, bool]:
    """Return the runs that are listed as deleted, and whether that is believed."""
    deleted = {}
    for execution_id, at, key_id, signature in await read(sql.text(statements.ALL_FORGOTTEN)):
        text = checkpoints.deletion(execution_id, at)
        deleted[execution_id] = keys is None or keys.holds(
            _text(key_id), "deletion", text, _text(signature)
        )
    return deleted


async def _listed(read: Read, sql: Sql, scope: Scope) -> list[Sequence[Any]]:
    """Return the runs to check, in order, each with the length of its log."""
    if scope.since is None and scope.until is None:
        listed = await read(sql.text(statements.LOG_SIZES))
    else:
        since = -(2**63) if scope.since is None else scope.since
        until = 2**63 - 1 if scope.until is None else scope.until
        listed = await read(sql.text(statements.LOG_SIZES_OF_TIME), since, until)
    return [row for row in listed if not scope.executions or row[0] in scope.executions]


async def _rows_without_log(read: Read, sql: Sql, scope: Scope) -> list[Finding]:
    findings = []
    for statement in statements.ROWS_WITHOUT_LOG:
        for table, execution_id in await read(sql.text(statement)):
            if not scope.executions or execution_id in scope.executions:
                findings.append(
                    Finding(str(execution_id), None, f"it has rows in {table}, and no log")
                )
    return findings


def _units(listed: Sequence[Sequence[Any]], events_max: int) -> tuple[list[Unit], list[Finding]]:
    readable, findings = [], []
    for execution_id, count in listed:
        if isinstance(execution_id, str) and _is_utf8(execution_id):
            readable.append((execution_id, count))
        else:
            problem = f"{count} events of a run whose id is not text: {execution_id!a}"
            findings.append(Finding("", None, problem))
    return checking.units(readable, events_max), findings


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


async def _inspections(
    source: Source, opened: Snapshots, sql: Sql, units: Sequence[Unit], total: int, jobs: int
) -> AsyncIterator[tuple[Unit, list[Inspection]]]:
    if jobs <= 1 or total <= _ALONE_EVENTS_MAX:
        for unit in units:
            yield unit, await checking.check(opened, sql.selects, unit, source.is_postgres)
        return
    # Spawned, not forked: a fork would share this process's connections.
    pool = ProcessPoolExecutor(
        min(jobs, len(units)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=checking.begin,
        initargs=(source.where, sql.selects),
    )
    loop = asyncio.get_running_loop()
    try:
        futures = [(unit, loop.run_in_executor(pool, checking.checked, unit)) for unit in units]
        for unit, future in futures:
            yield unit, await future
    except BrokenProcessPool as error:
        raise CannotRead(f"{source.name}: a worker ended early; try --jobs 1") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def jobs_max() -> int:
    """Return how many processes there is room for."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
