"""Is one run what was written? Its log against its hashes, its read tables against its log. Pure.

Nothing is believed here: a column may hold anything that a database lets somebody put there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from proctor.wire.words import DispatchStatus
from proctor_kernel.core import chain, events
from proctor_kernel.core.evolve import IllegalTransition, evolve
from proctor_kernel.core.state import State
from proctor_kernel.store import rows
from proctor_kernel.store.rows import Values

_ENDS: Final = ("execution.completed", "execution.failed", "execution.cancelled")
_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it was written."""

    execution_id: str
    """Empty: it is not about one run."""
    seq: int | None
    """The event, where it is about one."""
    problem: str


@dataclass(frozen=True, slots=True)
class Stored:
    """One row of the log, with its place in the order of commits."""

    row: chain.Row
    position: Any


@dataclass(frozen=True, slots=True)
class Tables:
    """What the read tables have of one run."""

    executions: Sequence[Values] = ()
    dispatches: Sequence[Values] = ()
    steps: Sequence[Values] = ()
    approvals: Sequence[Values] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, as its log tells it."""

    position: int
    """Of the event that ended it."""
    seq: int
    hash: str
    """Of its last event."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found about one run; `ended` is None while it has not."""

    execution_id: str
    events: int
    ended: Ended | None
    findings: tuple[Finding, ...]


def inspect(
    execution_id: str, log: Sequence[Stored], tables: Tables, *, by_transaction: bool
) -> Inspection:
    """Check one run.

    `by_transaction`: events of one commit, and no others, share a position; otherwise each has
    its own.
    """
    findings: list[Finding] = []
    broken = _first_break(execution_id, log)
    if broken is not None:
        findings.append(Finding(execution_id, broken.seq, broken.problem))
        findings += _gaps(execution_id, log, broken.seq)
    findings += _positions(execution_id, log, by_transaction)
    shortened = list(_length(execution_id, log, tables))
    findings += shortened
    if broken is None and not shortened:
        findings += _differences(execution_id, log, tables, by_transaction)
    return Inspection(execution_id, len(log), _ended(log), tuple(findings))


def _first_break(execution_id: str, log: Sequence[Stored]) -> chain.Break | None:
    readable = len(log)
    for index, stored in enumerate(log):
        if not _is_readable(stored.row):
            readable = index
            break
    broken = chain.first_break(execution_id, (stored.row for stored in log[:readable]))
    if broken is None and readable < len(log):
        return chain.Break(execution_id, readable + 1, "its fields are not what an event has")
    return broken


def _gaps(execution_id: str, log: Sequence[Stored], first: int) -> Iterator[Finding]:
    """Find what is missing behind the first break, too: an event may have been moved before it."""
    numbers = sorted({seq for stored in log if (seq := _seq(stored)) is not None})
    for before, after in pairwise(numbers):
        if after > before + 1 and first < before + 1 <= len(log):
            what = "it is missing" if after == before + 2 else f"missing up to event {after - 1}"
            yield Finding(execution_id, before + 1, what)


def _is_readable(row: chain.Row) -> bool:
    return (
        type(row.seq) is int
        and type(row.at) is int
        and all(map(_is_text, (row.execution_id, row.type_name, row.payload, row.hash)))
    )


def _is_text(value: Any) -> bool:
    # Bytes that are no UTF-8 are read as lone surrogates.
    return isinstance(value, str) and (value.isascii() or not _has_surrogate(value))


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= each <= "\udfff" for each in text)


def _positions(execution_id: str, log: Sequence[Stored], by_transaction: bool) -> Iterator[Finding]:
    before: int | None = None
    for stored in log:
        position = stored.position
        if type(position) is not int or position < 0:
            yield Finding(execution_id, _seq(stored), f"its position is {_shown(position)}")
            return
        if before is not None and (
            position < before or (position == before and not by_transaction)
        ):
            yield Finding(
                execution_id,
                _seq(stored),
                f"its position {position} does not follow {before}, that of the event before it",
            )
            return
        before = position


def _seq(stored: Stored) -> int | None:
    return stored.row.seq if type(stored.row.seq) is int else None


def _length(execution_id: str, log: Sequence[Stored], tables: Tables) -> Iterator[Finding]:
    """Find a tail that was cut off: every event writes its number into a row of its run."""
    if not log:
        yield Finding(execution_id, None, "the read tables have it, and its log is gone")
        return
    last = log[-1].row.seq
    written = [row["seq"] for row in (*tables.executions, *tables.steps)]
    numbers = [seq for seq in written if type(seq) is int]
    if not tables.executions:
        yield Finding(execution_id, None, "it has a log, and no row in executions")
    elif len(numbers) != len(written):
        yield Finding(execution_id, None, "a row of it has no number of its latest event")
    elif type(last) is int and max(numbers) > last:
        yield Finding(
            execution_id,
            last + 1,
            f"the log ends at event {last}, the read tables were written by event {max(numbers)}",
        )
    elif type(last) is int and max(numbers) < last:
        yield Finding(
            execution_id,
            max(numbers) + 1,
            f"the log goes on to event {last}, the read tables only to event {max(numbers)}",
        )


def _differences(
    execution_id: str, log: Sequence[Stored], tables: Tables, by_transaction: bool
) -> Iterator[Finding]:
    state = State(execution_id)
    touched = _Touched()
    for stored in log:
        try:
            record = rows.record(stored.row)
            state = evolve(state, record)
        # A payload that no event has: its fields may be of any type at all.
        except (IllegalTransition, ValueError, TypeError, KeyError, AttributeError) as error:
            yield Finding(execution_id, stored.row.seq, f"it cannot have happened: {error}")
            return
        touched.by(record)
    writers = _writers(log, by_transaction)
    expected = rows.execution(state)
    yield from _compared(
        execution_id, "executions", "id", [expected], tables.executions, ignored={"seq"}
    )
    for row in tables.executions:
        yield from _written(execution_id, "executions", row, touched.execution, writers)
    steps = [rows.step(state, step) for step in state.steps.values()]
    yield from _compared(execution_id, "steps", "step_id", steps, tables.steps, ignored={"seq"})
    for row in tables.steps:
        touch = touched.steps.get(str(row["step_id"]))
        if touch is not None:
            yield from _written(execution_id, f"step {row['step_id']}", row, touch, writers)
    approvals = [rows.approval(state, approval) for approval in state.approvals.values()]
    yield from _compared(execution_id, "approvals", "approval_id", approvals, tables.approvals)
    dispatch = rows.dispatch(state)
    yield from _compared(
        execution_id,
        "dispatches",
        "execution_id",
        [] if dispatch is None else [dispatch],
        tables.dispatches,
        # A lease that is renewed puts it off, and no event tells of that.
        ignored={"due_at"} if dispatch is not None and _is_leased(dispatch) else frozenset(),
    )


class _Touched:
    """The number of the last event that wrote each row."""

    def __init__(self) -> None:
        self.execution = 0
        self.steps: dict[str, int] = {}

    def by(self, record: chain.Record) -> None:
        """Note what an event writes."""
        if isinstance(record.event, events.StepEvent | events.ApprovalEvent):
            self.steps[record.event.step_id] = record.seq
        else:
            self.execution = record.seq


def _writers(log: Sequence[Stored], by_transaction: bool) -> list[range]:
    """Return for each event, by number, the numbers that a row written by it may have.

    It is that of the last event in the same commit. Where positions do not tell which that is,
    those of the same time may be.
    """
    writers = [range(0)] * (len(log) + 1)
    end = len(log)
    for seq in range(len(log), 0, -1):
        if seq < len(log) and not _is_with(log[seq - 1], log[seq], by_transaction):
            end = seq
        writers[seq] = range(end if by_transaction else seq, end + 1)
    return writers


def _is_with(stored: Stored, following: Stored, by_transaction: bool) -> bool:
    if by_transaction:
        return bool(stored.position == following.position)
    return stored.row.at == following.row.at


def _written(
    execution_id: str, what: str, row: Values, touch: int, writers: Sequence[range]
) -> Iterator[Finding]:
    seq = row["seq"]
    assert isinstance(seq, int), "checked with the length of the log"
    if seq not in writers[touch]:
        yield Finding(
            execution_id, touch, f"{what}: written by event {seq}, by its log by event {touch}"
        )


def _is_leased(dispatch: Values) -> bool:
    return dispatch["status"] == str(DispatchStatus.IN_FLIGHT) and bool(dispatch["lease_micros"])


def _compared(
    execution_id: str,
    table: str,
    key: str,
    expected: Iterable[Values],
    found: Sequence[Values],
    ignored: frozenset[str] | set[str] = frozenset(),
) -> Iterator[Finding]:
    by_key: Mapping[object, Values] = {row[key]: row for row in found}
    for row in expected:
        present = by_key.get(row[key])
        name = table if table in ("executions", "dispatches") else f"{table} {row[key]}"
        if present is None:
            yield Finding(execution_id, None, f"{name}: the row is missing")
            continue
        for column, value in row.items():
            # Of one type too: SQLite keeps a number in a column of texts, and the other way.
            same = present[column] == value and isinstance(value, type(present[column]))
            if not same and column not in ignored:
                yield Finding(
                    execution_id,
                    None,
                    f"{name}: {column} is {_shown(present[column])}, by its log {_shown(value)}",
                )
    known = {row[key] for row in expected}
    for row in found:
        if row[key] not in known:
            yield Finding(execution_id, None, f"{table}: {_shown(row[key])} is not in its log")


def _shown(value: object) -> str:
    text = ascii(str(value) if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 3]}..."


def _ended(log: Sequence[Stored]) -> Ended | None:
    for stored in reversed(log):
        if stored.row.type_name in _ENDS:
            last = log[-1].row
            return Ended(stored.position, last.seq, last.hash)
    return None
