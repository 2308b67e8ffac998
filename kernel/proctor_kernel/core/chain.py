"""The hash chain of a run: each record carries a hash over itself and the one before it.

Every stored field is covered: whoever edits, drops, inserts or reorders a row breaks the chain
at that row. What a chain alone cannot show is a tail that was cut off.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from proctor_kernel.core import event_json, events
from proctor_kernel.core.state import GENESIS


@dataclass(frozen=True, slots=True)
class Record:
    """One event in its place in the log."""

    execution_id: str
    seq: int
    at: int
    """When it happened: microseconds since 1970, UTC."""
    event: events.Event
    payload: str
    """The event's JSON, exactly as stored and hashed."""
    hash: str


def digest(
    *, previous: str, execution_id: str, seq: int, type_name: str, payload: str, at: int
) -> str:
    """Return the hex SHA-256 of one log row, each field prefixed by its length in bytes."""
    hashed = sha256()
    for part in (previous, execution_id, str(seq), type_name, str(at), payload):
        encoded = part.encode()
        hashed.update(b"%d:" % len(encoded))
        hashed.update(encoded)
    return hashed.hexdigest()


def link(
    execution_id: str, *, seq: int, head: str, happened: Sequence[events.Event], at: int
) -> tuple[Record, ...]:
    """Chain new events behind the record numbered `seq` whose hash is `head`."""
    records = []
    for event in happened:
        seq += 1
        payload = event_json.to_json(event)
        head = digest(
            previous=head,
            execution_id=execution_id,
            seq=seq,
            type_name=event_json.name(event),
            payload=payload,
            at=at,
        )
        records.append(Record(execution_id, seq, at, event, payload, head))
    return tuple(records)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the log as the database returned it, not yet believed."""

    execution_id: str
    seq: int
    type_name: str
    payload: str
    at: int
    hash: str


@dataclass(frozen=True, slots=True)
class Break:
    """The first place where a log is not what was written."""

    execution_id: str
    seq: int
    problem: str


def first_break(
    execution_id: str, rows: Iterable[Row], *, seq: int = 0, head: str = GENESIS
) -> Break | None:
    """Return the first row of one run, in stored order, that does not follow from the last.

    `seq` and `head`: number and hash of the event before the first row.
    """
    expected = seq + 1
    for row in rows:
        if row.execution_id != execution_id:
            return Break(execution_id, expected, f"the row belongs to {row.execution_id!r}")
        if row.seq != expected:
            return Break(execution_id, expected, f"found event {row.seq} in its place")
        recomputed = digest(
            previous=head,
            execution_id=row.execution_id,
            seq=row.seq,
            type_name=row.type_name,
            payload=row.payload,
            at=row.at,
        )
        if recomputed != row.hash:
            return Break(execution_id, row.seq, "its hash does not match its fields")
        head, expected = row.hash, expected + 1
    return None
