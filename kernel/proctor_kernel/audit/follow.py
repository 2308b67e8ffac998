"""One exporter: it follows the log in the order of commits and ships what was not shipped yet.

How far it came is stored beside the log and moves only after the sink has taken what was before:
a sink may be given an event twice, and is never missing one. Of all processes, one holds a sink at
a time; when it falls silent, another goes on from there.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from proctor_kernel.audit.leaving import Broken, Leaving, Place, Projector
from proctor_kernel.audit.shipping import (
    BACKOFF_SECONDS,
    BACKOFF_SECONDS_MAX,
    BATCH_BYTES,
    BATCH_EVENTS,
    DOUBTS_AFTER,
    Sink,
    SinkDown,
    ship,
)
from proctor_kernel.log_lines import about
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Database, Row, StoreError

IDLE_SECONDS: Final = 0.5
HELD_SECONDS: Final = 45.0
"""How long a silent process keeps a sink to itself; longer than a batch may take."""

_MICROS_PER_SECOND: Final = 1_000_000
_EVERYTHING: Final = 2**62

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """How an exporter stands, for metrics."""

    shipped: int = 0
    """Events that the sink has taken."""
    refused: int = 0
    failures: int = 0
    lag_seconds: float = 0.0
    """Age of the oldest event that was not shipped yet."""
    error: str = ""
    """Why nothing is shipped just now; empty while all is well."""
    is_held: bool = False
    """This process runs it."""


class Follower:
    """Ships the log to one sink, for as long as this process holds it."""

    def __init__(
        self,
        *,
        name: str,
        sink: Sink,
        database: Database,
        projector: Projector,
        holder: str,
        now_micros: Callable[[], int],
        from_now: bool = False,
        backoff_seconds: float = BACKOFF_SECONDS,
        told: Callable[[str, Progress], None] = lambda name, progress: None,
    ) -> None:
        """`name`: of the stored cursor. `holder`: this process. `from_now`: skip what is there.

        `backoff_seconds`: before the second try when the sink is down; doubled for each after it.
        `told` is called with what has changed since the last call.
        """
        self._name = name
        self._sink = sink
        self._database = database
        self._projector = projector
        self._holder = holder
        self._now_micros = now_micros
        self._from_now = from_now
        self._backoff_seconds = backoff_seconds
        self._told = told
        self._stopping = asyncio.Event()
        self._after: Place | None = None
        self._renewed_at = 0
        self._failing_since: int | None = None

    async def run(self) -> None:
        """Follow until `stop` or cancelled, then let another process have the sink at once."""
        try:
            while True:
                seconds = IDLE_SECONDS
                try:
                    seconds = 0 if await self.once() else IDLE_SECONDS
                except StoreError as error:
                    self._after = None
                    _logger.warning("export to %s: %s", self._name, error)
                except Exception:
                    # The outermost loop: if it ended, nothing would leave any more.
                    self._after = None
                    _logger.exception("export to %s failed", self._name)
                    seconds = BACKOFF_SECONDS_MAX
                if seconds and self._stopping.is_set():
                    return
                await self._pause(seconds)
        finally:
            await self._let_go()
            await self._sink.aclose()

    def stop(self) -> None:
        """Let `run` end once the sink has everything, or takes nothing."""
        self._stopping.set()

    async def once(self) -> bool:
        """Ship the next batch; False when there is nothing to ship, or another process does."""
        if not await self._is_held():
            return False
        assert self._after is not None, "whoever holds a sink knows its cursor"
        batch = await self._next()
        if not batch:
            self._told(self._name, Progress(is_held=True))
            return False
        await self._until_shipped(batch)
        return self._after is not None

    async def _next(self) -> list[Leaving | Broken]:
        assert self._after is not None
        found = await read_batch(self._database, self._after, await self._database.settled())
        return await self._projector.project(found)

    async def _until_shipped(self, batch: list[Leaving | Broken]) -> None:
        backoff, failures = self._backoff_seconds, 0
        while True:
            try:
                refused = await ship(self._sink, batch, in_doubt=failures >= DOUBTS_AFTER)
            except SinkDown as down:
                failures += 1
                await self._failed(batch[0], str(down))
                if self._stopping.is_set():
                    self._after = None
                    return
                await self._pause(backoff)
                backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)
                if not await self._is_held():
                    return
                continue
            await self._advance(batch, refused)
            return

    async def _pause(self, seconds: float) -> None:
        """Wait, but not beyond `stop`."""
        if self._stopping.is_set() or not seconds:
            await asyncio.sleep(0)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _is_held(self) -> bool:
        """True when this process runs the sink, and does for long enough to ship a batch."""
        now = self._now_micros()
        if self._after is not None and now - self._renewed_at < HELD_SECONDS / 4 * 1_000_000:
            return True
        until = now + int(HELD_SECONDS * _MICROS_PER_SECOND)
        async with self._database.exclusively(f"sink:{self._name}") as block:
            found = await block.read(statements.SINK_BY_NAME, sink_name=self._name)
            if found and found[0]["holder"] != self._holder and found[0]["held_until"] > now:
                held = None
            elif found:
                await block.run(
                    statements.HOLD_SINK,
                    of_sink=self._name,
                    new_holder=self._holder,
                    until=until,
                )
                held = Place(
                    *(found[0][each] for each in ("position", "execution_id", "event_seq"))
                )
            else:
                held = None
        if not found:
            held = await self._begin(until)
        if held is None:
            if self._after is not None:
                _logger.info("export to %s: another process does it", self._name)
            self._after = None
            self._told(self._name, Progress(is_held=False))
            return False
        if self._after is None:
            _logger.info("export to %s: this process does it", self._name)
            self._projector.forget()
            self._failing_since = found[0]["failing_since"] if found else None
        self._after, self._renewed_at = held, now
        return True

    async def _begin(self, until: int) -> Place | None:
        start = Place(await self._database.settled() if self._from_now else 0)
        row = new_sink(self._name, start, at=self._now_micros() if self._from_now else 0)
        row |= {"holder": self._holder, "held_until": until}
        async with self._database.exclusively(f"sink:{self._name}") as block:
            if await block.read(statements.SINK_BY_NAME, sink_name=self._name):
                return None  # somebody was first; the next look will tell who holds it
            await block.put([Change(statements.SINKS, [row])])
        return start

    async def _advance(
        self, batch: list[Leaving | Broken], refused: list[tuple[Place, str]]
    ) -> None:
        last = batch[-1]
        now = self._now_micros()
        aside = [
            {
                "sink": self._name,
                "execution_id": place.execution_id,
                "event_seq": place.event_seq,
                "error": error[:_ERROR_CHARACTERS_MAX],
                "refused_at": now,
            }
            for place, error in refused
        ]
        async with self._database.exclusively(f"sink:{self._name}") as block:
            moved = await block.run(
                statements.ADVANCE_SINK,
                of_sink=self._name,
                of_holder=self._holder,
                new_position=last.place.position,
                new_execution_id=last.place.execution_id,
                new_event_seq=last.place.event_seq,
                new_shipped_to=_at(last),
                until=now + int(HELD_SECONDS * _MICROS_PER_SECOND),
            )
            if moved and aside:
                await block.put([Change(statements.REFUSALS, aside, replace=True)])
        if not moved:
            # It was taken over while this process was silent: what was shipped is shipped twice.
            self._after = None
            return
        for place, _ in refused:
            # Not why: a receiver's words may quote what it was sent.
            _logger.error(
                "export to %s: event %d of execution %s is set aside",
                self._name,
                place.event_seq,
                place.execution_id,
                extra=about(place.execution_id, sink=self._name),
            )
        if self._failing_since is not None:
            seconds = (now - self._failing_since) / _MICROS_PER_SECOND
            _logger.info("export to %s: it works again, after %.0f seconds", self._name, seconds)
            self._failing_since = None
        self._after, self._renewed_at = last.place, now
        self._told(
            self._name,
            Progress(
                shipped=len(batch) - len(refused),
                refused=len(refused),
                lag_seconds=max(0.0, (now - _at(last)) / _MICROS_PER_SECOND),
                is_held=True,
            ),
        )

    async def _failed(self, first: Leaving | Broken, error: str) -> None:
        now = self._now_micros()
        if self._failing_since is None:
            self._failing_since = now
            _logger.warning("export to %s: %s; trying again until it works", self._name, error)
        await self._database.run(
            statements.FAIL_SINK,
            of_sink=self._name,
            of_holder=self._holder,
            since=self._failing_since,
            new_error=error[:_ERROR_CHARACTERS_MAX],
            until=now + int(HELD_SECONDS * _MICROS_PER_SECOND),
        )
        self._renewed_at = now
        lag = max(0.0, (now - _at(first)) / _MICROS_PER_SECOND)
        self._told(self._name, Progress(failures=1, lag_seconds=lag, error=error, is_held=True))

    async def _let_go(self) -> None:
        if self._after is None:
            return
        try:
            await self._database.run(
                statements.RELEASE_SINK, of_sink=self._name, of_holder=self._holder
            )
        except StoreError as error:
            _logger.debug("export to %s: %s", self._name, error)


_ERROR_CHARACTERS_MAX: Final = 500


def new_sink(name: str, start: Place, at: int) -> dict[str, Any]:
    """Return the row of a sink that nobody holds yet, which begins after `start`."""
    return {
        "name": name,
        "position": start.position,
        "execution_id": start.execution_id,
        "event_seq": start.event_seq,
        "shipped_to": at,
        "holder": "",
        "held_until": 0,
        "failing_since": None,
        "error": "",
    }


async def read_batch(database: Database, after: Place, settled: int) -> list[Row]:
    """Read the events that come after a place in the order of commits, as many as fit a batch."""
    found = await database.read(
        statements.EVENTS_BY_POSITION,
        position=after.position,
        after_execution=after.execution_id,
        after_seq=after.event_seq,
        settled=min(settled, _EVERYTHING),
        row_limit=BATCH_EVENTS,
    )
    total = 0
    for index, row in enumerate(found):
        total += len(row["payload"])
        if index and total > BATCH_BYTES:
            return found[:index]
    return found


def _at(each: Leaving | Broken) -> int:
    return each.record.at if isinstance(each, Leaving) else each.at
