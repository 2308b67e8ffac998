"""Who is told of what the store does: of what fails, and of each commit. Nobody by default."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


def _nobody() -> None:
    pass


def _nobody_of_flushes(event_count: int, seconds: float) -> None:
    pass


@dataclass(frozen=True, slots=True)
class StoreWatch:
    """Called at once, on whatever thread it happens on."""

    unavailable: Callable[[], None] = _nobody
    """The database could not be asked or written."""
    broken: Callable[[], None] = _nobody
    """A log is not what was written."""
    flushed: Callable[[int, float], None] = _nobody_of_flushes
    """So many events became durable in one commit, which took so many seconds."""


UNWATCHED: Final = StoreWatch()
