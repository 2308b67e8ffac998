"""The event log: `load` folds a run, `append` records what happened to it.

Group commit: appends that are asked for before the event loop comes round again are written
in one transaction. The flush runs on the loop itself; handing a SQLite commit to a thread
costs more than the commit.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proctor_kernel.core import chain
from proctor_kernel.core.events import Event
from proctor_kernel.core.evolve import evolve, fold
from proctor_kernel.core.state import State
from proctor_kernel.store import rows, statements
from proctor_kernel.store.dialect import Change, Conflict, SQLite, StoreError, StoreUnavailable


class LostRace(Exception):
    """Somebody else appended to this run first. Load it again and decide again."""


class LogBroken(StoreError):
    """The log of a run is not what was written; nothing is decided on it."""


@dataclass(slots=True)
class _Append:
    """One run's events on their way into the next flush."""

    records: tuple[chain.Record, ...]
    after: State
    recorded: asyncio.Future[None]


class Log:
    """The log of every run, on one database."""

    def __init__(self, database: SQLite) -> None:
        self._database = database
        self._waiting: list[_Append] = []

    async def load(self, execution_id: str) -> State:
        """Fold one run from its log, checking the hash chain on the way.

        A run that does not exist has `status` None.

        Raises:
            LogBroken: the chain does not hold, at the event that the message names.
            StoreUnavailable: the database could not be read.
        """
        found = [
            row_of(values)
            for values in self._database.read(
                statements.LOG_OF_EXECUTION, execution_id=execution_id
            )
        ]
        broken = chain.first_break(execution_id, found)
        if broken is not None:
            raise LogBroken(
                f"{self._database.name}: event {broken.seq} of execution {execution_id}: "
                f"{broken.problem}"
            )
        return fold(execution_id, map(rows.record, found))

    async def append(self, state: State, happened: Sequence[Event], at: int) -> State:
        """Append `happened` behind `state` and update the read tables, in one transaction.

        Returns the state after it. When this returns, the events are durable (with
        `synchronous="FULL"` they survive a power cut).

        Raises:
            LostRace: the run has events that `state` does not know. Nothing was written.
            StoreUnavailable: the database could not be written. Nothing was written.
        """
        records = chain.link(
            state.execution_id, seq=state.seq, head=state.head, happened=happened, at=at
        )
        after = state
        for record in records:
            after = evolve(after, record)
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._flush)
        append = _Append(records, after, loop.create_future())
        self._waiting.append(append)
        await append.recorded
        return after

    def _flush(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            self._database.write(_changes(batch))
        except StoreUnavailable as error:
            for append in batch:
                _settle(append, error)
        except Exception:
            # One of them lost a race or cannot be stored. Written each alone, the others
            # are not disturbed. Broad: an append without an answer would wait for ever.
            for append in batch:
                self._flush_alone(append)
        else:
            for append in batch:
                _settle(append, None)

    def _flush_alone(self, append: _Append) -> None:
        try:
            self._database.write(_changes([append]))
        except Conflict:
            _settle(append, LostRace(append.after.execution_id))
        except Exception as error:
            _settle(append, error)
        else:
            _settle(append, None)


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


def _changes(batch: Sequence[_Append]) -> list[Change]:
    executions, dispatches, steps = [], [], []
    for append in batch:
        after = append.after
        if rows.touches_execution(append.records):
            executions.append(rows.execution(after))
            dispatch = rows.dispatch(after)
            if dispatch is not None:
                dispatches.append(dispatch)
        steps += [
            rows.step(after.execution_id, after.steps[step_id])
            for step_id in rows.touched_steps(append.records)
        ]
    logged = [rows.event(record) for append in batch for record in append.records]
    return [
        Change(statements.EVENTS, logged, replace=False),
        Change(statements.EXECUTIONS, executions, replace=True),
        Change(statements.DISPATCHES, dispatches, replace=True),
        Change(statements.STEPS, steps, replace=True),
    ]
