"""Handing a batch to a sink: what it refuses is found, so that the rest is taken."""

from collections.abc import Sequence
from typing import Final, Protocol

from proctor_kernel.audit.leaving import Broken, Leaving, Place

BATCH_EVENTS: Final = 500
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Payload of one batch, beyond its first event: receivers refuse requests that are too large."""

BACKOFF_SECONDS: Final = 1.0
BACKOFF_SECONDS_MAX: Final = 30.0

DOUBTS_AFTER: Final = 5
"""Failures of one batch before it is looked at whether a single event of it is the cause."""


class SinkDown(Exception):
    """A sink does not take anything just now; the message says why."""


class SinkRefused(Exception):
    """A sink will not take this batch, however often it is sent; the message says why."""


class Sink(Protocol):
    """Where the log goes."""

    async def ship(self, batch: Sequence[Leaving]) -> int:
        """Hand over events; returns how many records the sink took, which are safe there then.

        Raises `SinkDown` to be asked again later, `SinkRefused` never to be asked again.
        """
        ...

    async def aclose(self) -> None:
        """Let go of it."""
        ...


async def ship(
    sink: Sink, batch: Sequence[Leaving | Broken], *, in_doubt: bool
) -> list[tuple[Place, str]]:
    """Ship a batch; returns what is set aside of it, and why.

    `in_doubt`: it failed so often that one event of it may be why.

    Raises:
        SinkDown: nothing is taken just now.
    """
    refused = [(each.place, each.problem) for each in batch if isinstance(each, Broken)]
    sound = [each for each in batch if isinstance(each, Leaving)]
    if sound and in_doubt:
        return refused + await _apart(sink, sound)
    return refused + (await _halves(sink, sound) if sound else [])


async def _halves(sink: Sink, batch: Sequence[Leaving]) -> list[tuple[Place, str]]:
    """Ship a batch; what of it is refused is found by halving."""
    try:
        await sink.ship(batch)
    except SinkRefused as refused:
        if len(batch) == 1:
            return [(batch[0].place, str(refused))]
        middle = len(batch) // 2
        return [*await _halves(sink, batch[:middle]), *await _halves(sink, batch[middle:])]
    return []


async def _apart(sink: Sink, batch: Sequence[Leaving]) -> list[tuple[Place, str]]:
    """Ship each event alone: what fails while others are taken is at fault itself."""
    failed: list[tuple[Place, str]] = []
    taken = 0
    for each in batch:
        try:
            taken += await sink.ship([each])
        except (SinkDown, SinkRefused) as error:
            failed.append((each.place, str(error)))
            if len(failed) >= DOUBTS_AFTER and not taken:
                raise
    if failed and not taken:
        raise SinkDown(failed[0][1])
    return failed
