"""Checkpoints: what a kernel signs, so that whoever rewrites the whole log is found out. Pure.

A chain of hashes shows that a run was edited, not that it was written anew or taken away. A
checkpoint names the last event of every run that ended within a range of positions, and the
checkpoint before it by its hash.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

BEFORE_FIRST: Final = "0" * 64
"""What the first checkpoint names as the one before it."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last event of a run that has ended."""

    execution_id: str
    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A run that retention deleted."""

    execution_id: str
    at: int
    """Microseconds since 1970, UTC."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is signed at once."""

    number: int
    """From 1, without gaps."""
    previous: str
    """Hash of the checkpoint before it."""
    at: int
    """Microseconds since 1970, UTC."""
    after: int
    upto: int
    """It covers the positions above `after` and up to this one, itself included."""
    key_id: str
    ended: tuple[Head, ...] = ()
    """Every run that ended within these positions and had not been deleted by then."""
    forgotten: tuple[Forgotten, ...] = ()
    """Runs that retention has deleted."""


def to_text(checkpoint: Checkpoint) -> str:
    """Return the text that is signed, hashed and kept."""
    return json.dumps(
        {
            "checkpoint": checkpoint.number,
            "previous": checkpoint.previous,
            "at": checkpoint.at,
            "after": checkpoint.after,
            "upto": checkpoint.upto,
            "key_id": checkpoint.key_id,
            "ended": [[each.execution_id, each.seq, each.hash] for each in checkpoint.ended],
            "forgotten": [[each.execution_id, each.at] for each in checkpoint.forgotten],
        },
        separators=(",", ":"),
    )


def from_text(text: str) -> Checkpoint:
    """Read back what `to_text` wrote.

    Raises:
        ValueError: it is not the text of a checkpoint, exactly as one is written.
    """
    try:
        found: Any = json.loads(text)
        checkpoint = Checkpoint(
            number=found["checkpoint"],
            previous=found["previous"],
            at=found["at"],
            after=found["after"],
            upto=found["upto"],
            key_id=found["key_id"],
            ended=tuple(Head(*each) for each in found["ended"]),
            forgotten=tuple(Forgotten(*each) for each in found["forgotten"]),
        )
        written = to_text(checkpoint)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a checkpoint: {error!r}") from error
    if written != text:
        raise ValueError("not a checkpoint as one is written")
    return checkpoint


def digest(text: str) -> str:
    """Return the hex SHA-256 by which the next checkpoint names this one."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def deletion(execution_id: str, at: int) -> str:
    """Return the text that is signed when retention deletes a run."""
    return f"{execution_id} {at}"
