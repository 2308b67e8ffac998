"""The log as it leaves: each event masked, in its place in its trace, with the spans that it ends.

Exporters see runs piece by piece. What is known of a run by then is kept while there is room, and
otherwise made again from its log, so that a process that takes over goes on with the same spans.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from proctor_kernel.audit.redact import NO_ECHOES, Echoes, Redactor
from proctor_kernel.audit.span import Span
from proctor_kernel.audit.spans import Trace, follow
from proctor_kernel.core import chain, event_json, events, identity
from proctor_kernel.core.evolve import IllegalTransition
from proctor_kernel.core.state import State
from proctor_kernel.store import rows, statements
from proctor_kernel.store.database import Database, Row
from proctor_kernel.store.log import row_of

_BETWEEN_PAUSES: Final = 10
"""Events after which others get their turn: about a millisecond."""

KNOWN_BYTES_MAX: Final = 64 * 1024 * 1024
"""Payload of the runs that are kept at hand."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where an event is in the order of commits."""

    position: int
    execution_id: str = ""
    event_seq: int = 0


@dataclass(frozen=True, slots=True)
class Leaving:
    """One event as it may leave."""

    place: Place
    record: chain.Record
    """Masked: its `payload` is what may leave; its hash is that of the log."""
    is_masked: bool
    agent_id: str
    session: str | None
    target: str
    """What the event's step calls; "" for events of the run."""
    span_id: str
    """Of the step that the event is about, or of the run."""
    spans: tuple[Span, ...]

    @property
    def trace_id(self) -> str:
        """The trace of the run."""
        return identity.trace_id(self.record.execution_id)


@dataclass(frozen=True, slots=True)
class Broken:
    """An event that cannot leave, because the log of its run is not what was written."""

    place: Place
    at: int
    problem: str


@dataclass(frozen=True, slots=True)
class _Run:
    trace: Trace
    echoes: Echoes = NO_ECHOES


class Projector:
    """Turns rows of the log into what leaves."""

    def __init__(self, database: Database, redactor: Callable[[], Redactor]) -> None:
        """`redactor` is asked for each batch, since masks change with the rules."""
        self._database = database
        self._redactor = redactor
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._bytes = 0
        self._broken: dict[str, str] = {}
        """Runs whose log is not what was written -> where and why."""

    async def project(self, found: Sequence[Row]) -> list[Leaving | Broken]:
        """Return what leaves for rows of the log, in their order.

        Within each run they must be in order, and follow those of the last call, or be any others.
        """
        redactor = self._redactor()
        leaving: list[Leaving | Broken] = []
        for number, values in enumerate(found):
            if number % _BETWEEN_PAUSES == 0:
                await asyncio.sleep(0)
            row = row_of(values)
            place = Place(values["position"], row.execution_id, row.seq)
            if row.execution_id in self._broken:
                leaving.append(Broken(place, row.at, self._broken[row.execution_id]))
                continue
            run = await self._before(row, redactor)
            try:
                after, left = _advance(run, row, place, redactor)
            except (ValueError, IllegalTransition, KeyError) as error:
                # A log that nobody can have written must not stop the others from leaving.
                self._broken.setdefault(row.execution_id, f"event {row.seq}: {error}")
                leaving.append(Broken(place, row.at, self._broken[row.execution_id]))
                continue
            self._keep(run, after)
            leaving.append(left)
        return leaving

    def forget(self) -> None:
        """Let go of everything: somebody else has shipped meanwhile."""
        self._runs.clear()
        self._broken.clear()
        self._bytes = 0

    async def _before(self, row: chain.Row, redactor: Redactor) -> _Run:
        known = self._runs.get(row.execution_id)
        if known is not None and known.trace.state.seq == row.seq - 1:
            return known
        if known is not None:
            self._drop(row.execution_id)
        run = _Run(Trace.of(row.execution_id))
        if row.seq == 1:
            return run
        earlier = await self._database.read(
            statements.EVENTS_AFTER,
            execution_id=row.execution_id,
            after_seq=0,
            row_limit=row.seq - 1,
        )
        for values in earlier:
            past = row_of(values)
            try:
                run, _ = _advance(run, past, Place(0, past.execution_id, past.seq), redactor)
            except (ValueError, IllegalTransition, KeyError):
                # The break is reported at the event that is to leave, which does not follow.
                break
        return run

    def _keep(self, before: _Run, after: _Run) -> None:
        state = after.trace.state
        if self._runs.pop(state.execution_id, None) is not None:
            self._bytes -= before.trace.state.payload_bytes
        if state.is_terminal:
            return
        self._runs[state.execution_id] = after
        self._bytes += state.payload_bytes
        while self._bytes > KNOWN_BYTES_MAX and len(self._runs) > 1:
            self._drop(next(iter(self._runs)))

    def _drop(self, execution_id: str) -> None:
        self._bytes -= self._runs.pop(execution_id).trace.state.payload_bytes


def whole_run(found: Iterable[Row], redactor: Redactor) -> Iterator[Leaving | Broken]:
    """Return what leaves for the whole log of one run, from its first event on."""
    run: _Run | None = None
    problem = ""
    for values in found:
        row = row_of(values)
        place = Place(values["position"], row.execution_id, row.seq)
        if not problem:
            run = run or _Run(Trace.of(row.execution_id))
            try:
                run, left = _advance(run, row, place, redactor)
                yield left
                continue
            except (ValueError, IllegalTransition, KeyError) as error:
                problem = f"event {row.seq}: {error}"
        yield Broken(place, row.at, problem)


def _advance(run: _Run, row: chain.Row, place: Place, redactor: Redactor) -> tuple[_Run, Leaving]:
    """Return a run after the event in `row`, and the event as it leaves.

    Raises ValueError, IllegalTransition and what a broken state raises, for a log that was edited.
    """
    state = run.trace.state
    broken = chain.first_break(row.execution_id, [row], seq=state.seq, head=state.head)
    if broken is not None:
        raise ValueError(broken.problem)
    record = rows.record(row)
    step = _step_of(record.event)
    event, echoes = redactor.event(
        record.event,
        agent_id=state.agent_id,
        target=_target(state, step),
        echoes=run.echoes,
    )
    is_masked = event is not record.event
    if is_masked:
        record = replace(record, event=event, payload=event_json.to_json(event))
    trace, spans = follow(run.trace, record)
    leaving = Leaving(
        place=place,
        record=record,
        is_masked=is_masked,
        agent_id=trace.state.agent_id,
        session=trace.state.session,
        target=_target(trace.state, step),
        span_id=identity.span_id(step or row.execution_id),
        spans=spans,
    )
    return _Run(trace, echoes), leaving


def _step_of(event: events.Event) -> str:
    found: Any = getattr(event, "step_id", "")
    return str(found)


def _target(state: State, step_id: str) -> str:
    step = state.steps.get(step_id) if step_id else None
    return "" if step is None else step.target
