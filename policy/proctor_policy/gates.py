"""Gates: what can lift a forbid. A person, room under a limit, or nothing because it is on trial.

A gate is always a `forbid`. If its annotation is misspelt, or another Cedar tool reads the file,
the call is forbidden: nothing opens by mistake.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

Per = Literal["execution", "agent", "global"]

LIMIT_MAX: Final = 100_000
"""Calls that one limit may let through in its window; each is remembered for that long."""

SECONDS_MAX: Final = 366 * 24 * 3600
"""The longest window of a limit and the longest wait for an approval."""


@dataclass(frozen=True, slots=True)
class ApprovalGate:
    """Forbidden unless so many of these people grant it in time."""

    rule_id: str
    reason: str
    approvers: tuple[str, ...]
    """Names or groups; empty: whoever may approve at all."""
    quorum: int
    timeout_seconds: int | None
    """None: as long as the kernel waits by default."""
    message: str
    """What an approver is shown; may be empty."""


@dataclass(frozen=True, slots=True)
class RateGate:
    """Forbidden unless fewer than `limit` such calls started within the last `window_seconds`."""

    rule_id: str
    reason: str
    limit: int
    window_seconds: int
    per: Per
    wait_seconds: int = 0
    """How long a run may be put off until there is room; 0: the call is refused at once."""


@dataclass(frozen=True, slots=True)
class ShadowGate:
    """Never forbidden: that the rule matches is recorded, to try it in production first."""


Gate = ApprovalGate | RateGate | ShadowGate

_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_SECONDS: Final = (86_400, 3_600, 60, 1)
_LIMIT: Final = re.compile(r"(\d+)\s*/\s*(\S+)")


def duration_seconds(text: str) -> int:
    """Read a duration: `30s`, `5m`, `1h30m`, `2d`.

    Raises:
        ValueError: not of that form, zero, or longer than `SECONDS_MAX`.
    """
    match = _DURATION.fullmatch(text.strip())
    parts = match.groups() if match else ()
    if not any(parts):
        raise ValueError(f"{text!r} is not a duration, as 30s, 5m, 1h30m or 2d are")
    seconds = sum(
        int(part) * unit for part, unit in zip(parts, _SECONDS, strict=True) if part is not None
    )
    if not 0 < seconds <= SECONDS_MAX:
        raise ValueError(f"{text!r} must be longer than nothing and at most 366 days")
    return seconds


def limit_of(text: str) -> tuple[int, int]:
    """Read a limit: `5/1m` is 5 calls within any 60 seconds. Returns calls and seconds.

    Raises:
        ValueError: not of that form, or out of range.
    """
    match = _LIMIT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a limit, as 5/1m is: so many calls within so long")
    calls = int(match[1])
    if not 1 <= calls <= LIMIT_MAX:
        raise ValueError(f"{text!r}: the number of calls must be from 1 to {LIMIT_MAX}")
    return calls, duration_seconds(match[2])
