"""The event log: `load` folds a run, `append` records what happened to it.

Group commit: appends that are asked for before the event loop comes round again are written in
one transaction, as are those that come while earlier ones are on their way. On SQLite the flush
runs on the loop itself; handing a commit to a thread costs more than the commit.
"""

import asyncio
import time  # how long a commit took, not when
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proctor.wire.words import ExecutionStatus
from proctor_kernel.core import chain, events
from proctor_kernel.core.events import Event
from proctor_kernel.core.evolve import evolve
from proctor_kernel.core.state import Note, State
from proctor_kernel.store import rows, statements
from proctor_kernel.store.database import (
    Change,
    Conflict,
    Database,
    Removal,
    StoreError,
    StoreUnavailable,
)
from proctor_kernel.store.watch import UNWATCHED, StoreWatch

FLUSHES_MAX: Final = 4
"""Flushes under way at once, where a flush waits for a server: each takes a connection."""


class LostRace(Exception):
    """Somebody else appended to this run first. Load it again and decide again."""


class LogBroken(StoreError):
    """The log of a run is not what was written; nothing is decided on it."""


@dataclass(slots=True)
class _Append:
    """One run's events on their way into the next flush."""

    records: tuple[chain.Record, ...]
    before: State
    after: State
    note: Note | None
    recorded: asyncio.Future[None]


class Log:
    """The log of every run, on one database."""

    def __init__(self, database: Database, watch: StoreWatch = UNWATCHED) -> None:
        self._database = database
        self._watch = watch
        self._waiting: list[_Append] = []
        self._flushes: set[asyncio.Task[None]] = set()

    async def load(self, known: State) -> State:
        """Return one run as its log tells it, from what is `known` of it on.

        The hash chain is checked on the way. A run that does not exist has `status` None.

        Raises:
            LogBroken: the chain does not hold, at the event that the message names.
            StoreUnavailable: the database could not be read.
        """
        found = [
            row_of(values)
            for values in await self._database.read(
                statements.EVENTS_AFTER,
                execution_id=known.execution_id,
                after_seq=known.seq,
                row_limit=_EVENTS_MAX,
            )
        ]
        broken = chain.first_break(known.execution_id, found, seq=known.seq, head=known.head)
        if broken is not None:
            self._watch.broken()
            raise LogBroken(
                f"{self._database.name}: event {broken.seq} of execution {known.execution_id}: "
                f"{broken.problem}"
            )
        state = known
        for row in found:
            state = evolve(state, rows.record(row))
        return state

    async def with_notes(self, state: State) -> State:
        """Return a run with all that its attempt has asked, also what the log does not tell."""
        if state.attempt is None:
            return state
        found = await self._database.read(
            statements.NOTES_OF_ATTEMPT,
            execution_id=state.execution_id,
            dispatch_id=state.attempt.dispatch_id,
            attempt=state.attempt.number,
            from_ordinal=state.attempt.notes,
        )
        attempt = state.attempt
        for row in found:
            attempt = attempt.noted(rows.noted(row))
        return state.changed(attempt=attempt)

    async def append(
        self, state: State, happened: Sequence[Event], at: int, note: Note | None = None
    ) -> State:
        """Append `happened` behind `state` and update the read tables, in one transaction.

        Returns the state after it, which has `note` in it too. When this returns, the events are
        durable (on SQLite with `synchronous="FULL"` they survive a power cut).

        Raises:
            LostRace: the run has events or notes that `state` does not know. Nothing was written.
            StoreUnavailable: the database could not be written.
        """
        records = chain.link(
            state.execution_id, seq=state.seq, head=state.head, happened=happened, at=at
        )
        after = state
        for record in records:
            after = evolve(after, record)
        if note is not None and state.attempt is not None and after.attempt is not None:
            after = after.changed(attempt=after.attempt.noted(note))
        if not self._waiting and len(self._flushes) < FLUSHES_MAX:
            asyncio.get_running_loop().call_soon(self._flush)
        append = _Append(records, state, after, note, asyncio.get_running_loop().create_future())
        self._waiting.append(append)
        await append.recorded
        return after

    async def note(self, state: State, note: Note) -> State:
        """Keep a note of an answer that put no event into the log; returns the state with it.

        Raises:
            LostRace: the run has events or notes that `state` does not know. Nothing was written.
        """
        attempt = state.attempt
        assert attempt is not None, "only an attempt asks"
        try:
            kept = await self._database.run(
                statements.NOTE_IF_CURRENT,
                **rows.note(state, note, attempt),
                next_seq=state.seq + 1,
            )
        except Conflict as error:
            raise LostRace(state.execution_id) from error
        if kept != 1:
            raise LostRace(state.execution_id)
        return state.changed(attempt=attempt.noted(note))

    def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        if not batch:
            return
        began = time.perf_counter()
        try:
            writing = self._database.write(_changes(batch))
        except Exception as error:
            writing = _failed(error)
        if writing is None:
            self._durable(batch, began)
            for append in batch:
                _settle(append, None)
            return
        flush = asyncio.ensure_future(self._finish(batch, writing, began))
        self._flushes.add(flush)
        flush.add_done_callback(self._flushed)

    def _flushed(self, flush: "asyncio.Task[None]") -> None:
        self._flushes.discard(flush)
        if self._waiting:
            self._flush()

    async def _finish(self, batch: list[_Append], writing: Awaitable[None], began: float) -> None:
        try:
            await writing
        except StoreUnavailable as error:
            for append in batch:
                _settle(append, error)
        except Exception:
            # One of them lost a race or cannot be stored. Written each alone, the others
            # are not disturbed. Broad: an append without an answer would wait for ever.
            for append in batch:
                await self._write_alone(append)
        else:
            self._durable(batch, began)
            for append in batch:
                _settle(append, None)

    def _durable(self, batch: Sequence[_Append], began: float) -> None:
        event_count = sum(len(append.records) for append in batch)
        self._watch.flushed(event_count, time.perf_counter() - began)

    async def _write_alone(self, append: _Append) -> None:
        began = time.perf_counter()
        try:
            writing = self._database.write(_changes([append]))
            if writing is not None:
                await writing
        except Conflict:
            _settle(append, LostRace(append.after.execution_id))
        except Exception as error:
            _settle(append, error)
        else:
            self._durable([append], began)
            _settle(append, None)


async def _failed(error: Exception) -> None:
    raise error


# A statement needs a number; this one is every event that a log can have.
_EVENTS_MAX: Final = 2**31 - 1


def row_of(values: dict[str, Any]) -> chain.Row:
    """Turn what a select of `events` returned into a row that the chain can check."""
    return chain.Row(
        execution_id=values["execution_id"],
        seq=values["event_seq"],
        type_name=values["type"],
        payload=values["payload"],
        at=values["occurred_at"],
        hash=values["hash"],
    )


def _settle(append: _Append, error: Exception | None) -> None:
    if append.recorded.done():  # whoever asked was cancelled meanwhile
        return
    if error is None:
        append.recorded.set_result(None)
    else:
        append.recorded.set_exception(error)


def _changes(batch: Sequence[_Append]) -> list[Change | Removal]:
    executions: list[rows.Values] = []
    dispatches: list[rows.Values] = []
    steps: list[rows.Values] = []
    approvals: list[rows.Values] = []
    notes: list[rows.Values] = []
    keys: list[rows.Values] = []
    turns: list[rows.Values] = []
    turns_over: list[str] = []
    for append in batch:
        after = append.after
        if rows.touches_execution(append.records):
            executions.append(rows.execution(after))
            dispatch = rows.dispatch(after)
            if dispatch is not None and rows.touches_dispatch(append.records):
                dispatches.append(dispatch)
            if after.idempotency_key is not None and append.before.status is None:
                keys.append(
                    {
                        "agent_id": after.agent_id,
                        "key": after.idempotency_key,
                        "execution_id": after.execution_id,
                    }
                )
            if after.session is not None and _began(append):
                turns.append({"session": after.session, "execution_id": after.execution_id})
            if after.session is not None and _turn_ended(append):
                turns_over.append(after.session)
        steps += [
            rows.step(after, after.steps[step_id]) for step_id in rows.touched_steps(append.records)
        ]
        approvals += [
            rows.approval(after, after.approvals[approval_id])
            for approval_id in rows.touched_approvals(append.records)
        ]
        if append.note is not None and append.before.attempt is not None:
            notes.append(rows.note(append.before, append.note, append.before.attempt))
    ended = [append.after.execution_id for append in batch if append.after.is_terminal]
    logged = [rows.event(record) for append in batch for record in append.records]
    return [
        Change(statements.EVENTS, logged),
        Change(statements.EXECUTIONS, executions, replace=True),
        Change(statements.DISPATCHES, dispatches, replace=True),
        Change(statements.STEPS, steps, replace=True),
        Change(statements.APPROVALS, approvals, replace=True),
        Change(statements.NOTES, notes),
        Change(statements.IDEMPOTENCY_KEYS, keys),
        Change(statements.SESSION_TURNS, turns),
        *([Removal(statements.SESSION_TURNS, turns_over)] if turns_over else []),
        # What an attempt asked is of no use once its run has ended.
        *([Removal(statements.NOTES, ended)] if ended else []),
    ]


def _began(append: _Append) -> bool:
    return any(isinstance(record.event, events.ExecutionStarted) for record in append.records)


def _turn_ended(append: _Append) -> bool:
    # One that is cancelled before its turn has none to give back.
    return append.after.is_terminal and append.before.status is not ExecutionStatus.PENDING
