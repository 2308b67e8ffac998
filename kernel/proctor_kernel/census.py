"""What is there just now, by the database and the rules folder: looked up when it is asked for.

Every process and replica finds the same in the database, so these are not to be added up.
"""

import asyncio
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proctor.wire.words import ExecutionStatus
from proctor_kernel.store import standing
from proctor_kernel.store.database import Database, StoreError
from proctor_policy.ruleset import RuleSet
from proctor_policy.watch import Status

FRESH_SECONDS: Final = 1.0
"""For how long what was found counts as being so: many who ask cost one look."""

EXPIRING_SECONDS: Final = 300
"""An approval that has no longer than this is about to expire."""

_ANSWER_SECONDS_MAX: Final = 2.0
_MICROS_PER_SECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Standing:
    """What the database has, at one time."""

    live: Mapping[str, int] = field(default_factory=dict)
    """Status -> runs that have not ended."""
    overdue: int = 0
    approvals: int = 0
    expiring: int = 0
    oldest_seconds: float = 0.0
    sessions_waiting: int = 0


class Census(Collector):
    """Counts what is there. `look` first: `collect` gives what it found."""

    def __init__(
        self,
        *,
        database: Database,
        rules: Callable[[], tuple[RuleSet, Status]],
        now_micros: Callable[[], int],
    ) -> None:
        self._database = database
        self._rules = rules
        self._now_micros = now_micros
        self._found: Standing | None = None
        self._looked_at = 0
        self._turn = asyncio.Lock()

    async def look(self) -> None:
        """Ask the database, unless somebody just did. Without an answer in time it is down."""
        async with self._turn:
            now = self._now_micros()
            if self._looked_at and 0 <= now - self._looked_at < FRESH_SECONDS * _MICROS_PER_SECOND:
                return
            try:
                async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                    self._found = await self._standing(now)
            except (StoreError, TimeoutError):
                # What was so before it failed is not said to be so now.
                self._found = None
            self._looked_at = now

    async def _standing(self, now: int) -> Standing:
        live = await self._database.read(standing.LIVE_BY_STATUS)
        (overdue,) = await self._database.read(standing.OVERDUE, now=now)
        (pending,) = await self._database.read(standing.PENDING_APPROVALS)
        (expiring,) = await self._database.read(
            standing.EXPIRING_APPROVALS, until=now + EXPIRING_SECONDS * _MICROS_PER_SECOND
        )
        (sessions,) = await self._database.read(standing.WAITING_SESSIONS)
        oldest = pending["oldest"]
        return Standing(
            live={row["status"]: row["number"] for row in live},
            overdue=overdue["number"],
            approvals=pending["number"],
            expiring=expiring["number"],
            oldest_seconds=0.0 if oldest is None else max(0, now - oldest) / _MICROS_PER_SECOND,
            sessions_waiting=sessions["number"],
        )

    def collect(self) -> Iterator[Metric]:
        """Give what was found by the last look."""
        found = self._found
        yield _gauge("proctor_database_up", "1 while the database answers", found is not None)
        if found is not None:
            yield from _shown(found)
        yield from self._rules_shown()
        build = GaugeMetricFamily(
            "proctor_build_info", "The version that runs", labels=["version", "python"]
        )
        build.add_metric([version("proctor"), platform.python_version()], 1)
        yield build

    def _rules_shown(self) -> Iterator[Metric]:
        rules, status = self._rules()
        named = GaugeMetricFamily(
            "proctor_rules_info", "The rule set in force, by its hash", labels=["ruleset"]
        )
        named.add_metric([rules.hash], 1)
        yield named
        yield _gauge("proctor_rules_policies", "Policies of the rule set", len(rules.policies))
        yield _gauge(
            "proctor_rules_loaded_timestamp_seconds",
            "When the rule set in force came into force",
            status.loaded_at_micros / _MICROS_PER_SECOND,
        )


def _shown(found: Standing) -> Iterator[Metric]:
    live = GaugeMetricFamily(
        "proctor_executions_live", "Runs that have not ended", labels=["status"]
    )
    for status in ExecutionStatus:
        if not status.is_terminal:
            live.add_metric([str(status)], found.live.get(str(status), 0))
    yield live
    yield _gauge("proctor_queue_depth", "Deliveries that are overdue", found.overdue)
    yield _gauge("proctor_approvals_pending", "Approvals that wait", found.approvals)
    yield _gauge(
        "proctor_approvals_expiring",
        f"Approvals that wait and expire within {EXPIRING_SECONDS} seconds",
        found.expiring,
    )
    yield _gauge(
        "proctor_approval_oldest_seconds",
        "How long the oldest approval that waits has waited; 0: none waits",
        found.oldest_seconds,
    )
    yield _gauge(
        "proctor_sessions_waiting",
        "Sessions in which a run waits for its turn",
        found.sessions_waiting,
    )


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, value=float(value))
