"""What the service counts: each number, with its name, labels and buckets.

INVARIANT: labels are closed sets (kinds, statuses, routes, rules in force, sinks of the settings);
what a model or a client chooses is never one. What the database and the rules folder know is not
counted here but looked up when it is asked for (`census`).

Several processes share files (PROMETHEUS_MULTIPROC_DIR), so each gauge says how theirs become one.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.multiprocess import mark_process_dead

from proctor.wire.words import Decision, ExecutionStatus, StepKind, StepStatus

_FAST: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_DELIVERY: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

STEPS: Final = Counter("proctor_steps_submitted", "New calls that asked", ["kind"])
DECISIONS: Final = Counter("proctor_policy_decisions", "What rules said of calls", ["decision"])
KIND_DECISIONS: Final = Counter(
    "proctor_step_decisions", "What rules said of calls, by what the call is", ["kind", "decision"]
)
RULE_DECISIONS: Final = Counter(
    "proctor_rule_decisions", "Decisions that a rule made or shared in", ["rule", "decision"]
)
SHADOW_HITS: Final = Counter(
    "proctor_rule_shadow_hits", "Calls that a rule on trial would have forbidden", ["rule"]
)
POLICY_ERRORS: Final = Counter(
    "proctor_policy_errors", "Rules that could not be evaluated for a call"
)
POLICY_SECONDS: Final = Histogram(
    "proctor_policy_latency_seconds",
    "Time that rules took",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1),
)
SUBMIT_SECONDS: Final = Histogram(
    "proctor_submit_seconds",
    "From a submit's arrival until its decision was durable",
    buckets=_FAST,
)
SETTLE_SECONDS: Final = Histogram(
    "proctor_settle_seconds",
    "From an outcome's arrival until it was durable",
    ["outcome"],
    buckets=_FAST,
)
SETTLED: Final = Counter("proctor_steps_settled", "Calls that came to an end", ["kind", "status"])
REPLAYS: Final = Counter("proctor_replay", "Calls answered from the record or not", ["hit"])
CREATED: Final = Counter("proctor_executions_created", "Runs that were created")
ENDED: Final = Counter("proctor_executions_completed", "Runs that ended", ["status"])
APPROVALS_REQUESTED: Final = Counter("proctor_approvals_requested", "Approvals that were asked for")
APPROVALS: Final = Counter("proctor_approval_outcomes", "Approvals that were decided", ["outcome"])
APPROVAL_SECONDS: Final = Histogram(
    "proctor_approval_wait_seconds",
    "From request to decision",
    buckets=(1, 10, 60, 300, 900, 3600, 14400, 86400),
)
ANNOUNCEMENTS: Final = Counter(
    "proctor_approval_announcements", "Approvals told to the webhook", ["outcome"]
)
ANNOUNCEMENT_SECONDS: Final = Histogram(
    "proctor_approval_announcement_seconds",
    "Time that the approvals webhook took to answer",
    buckets=_DELIVERY,
)
DISPATCHES: Final = Counter("proctor_dispatch_outcomes", "Deliveries to agents", ["outcome"])
DISPATCH_SECONDS: Final = Histogram(
    "proctor_dispatch_latency_seconds",
    "Time that agents took to accept a delivery",
    buckets=_DELIVERY,
)
RECLAIMED: Final = Counter(
    "proctor_dispatches_reclaimed", "Runs taken over from an attempt that fell silent"
)
LIMITED: Final = Counter("proctor_rate_limit_decisions", "Calls over a limit", ["outcome"])
USAGE_MISSING: Final = Counter(
    "proctor_llm_usage_missing", "Model calls whose tokens could not be read"
)
REQUESTS: Final = Counter("proctor_http_requests", "Requests", ["route", "status"])
REQUEST_SECONDS: Final = Histogram(
    "proctor_http_request_duration_seconds", "Time that requests took", ["route"]
)
DATABASE_ERRORS: Final = Counter(
    "proctor_database_errors", "Times that the database failed", ["kind"]
)
FLUSH_EVENTS: Final = Histogram(
    "proctor_log_flush_events",
    "Events that one commit made durable",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500, 1000),
)
FLUSH_SECONDS: Final = Histogram(
    "proctor_log_flush_seconds", "Time that one commit to the log took", buckets=_FAST
)
LOOP_LAG: Final = Histogram(
    "proctor_event_loop_lag_seconds",
    "How late a process came back to what was due",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
RELOADS: Final = Gauge(
    "proctor_rules_reloads",
    "Times that other rules came into force since the start",
    multiprocess_mode="livemax",
)
RELOAD_FAILURES: Final = Gauge(
    "proctor_rules_reload_failures",
    "Times that rules were refused since the start",
    multiprocess_mode="livemax",
)
RULES_FAILING: Final = Gauge(
    "proctor_rules_failing", "1 while the folder is not in force", multiprocess_mode="livemax"
)
FAILING_SINCE: Final = Gauge(
    "proctor_rules_failing_since_timestamp_seconds",
    "Since when the folder is not in force; 0 while it is",
    multiprocess_mode="livemax",
)
# Set by the process that exports; the one that did so last counts.
EXPORT_LAG: Final = Gauge(
    "proctor_export_lag_seconds",
    "Age of the oldest event that a sink has not got; 0: it has all",
    ["sink"],
    multiprocess_mode="livemostrecent",
)
EXPORT_FAILING: Final = Gauge(
    "proctor_export_failing",
    "1 while a sink does not take what it is sent",
    ["sink"],
    multiprocess_mode="livemostrecent",
)
EXPORTED: Final = Counter("proctor_export_events", "Events that a sink has taken", ["sink"])
EXPORT_REFUSED: Final = Counter(
    "proctor_export_refused", "Records that a sink will never take", ["sink"]
)
EXPORT_FAILURES: Final = Counter(
    "proctor_export_failures", "Attempts to export that failed and are tried again", ["sink"]
)

DECIDED: Final = {
    (kind, decision): (
        DECISIONS.labels(str(decision)),
        KIND_DECISIONS.labels(str(kind), str(decision)),
    )
    for kind in StepKind
    for decision in Decision
}
"""The counters of a decision on a call, ready: finding them by label costs more than counting."""

SUBMITTED: Final = {kind: STEPS.labels(str(kind)) for kind in StepKind}
SETTLED_AS: Final = {
    (kind, status): SETTLED.labels(str(kind), str(status))
    for kind in StepKind
    for status in StepStatus
    if status.is_terminal
}
REPLAY_HIT: Final = REPLAYS.labels("true")
REPLAY_MISS: Final = REPLAYS.labels("false")
COMPLETE_SECONDS: Final = SETTLE_SECONDS.labels("complete")
FAIL_SECONDS: Final = SETTLE_SECONDS.labels("fail")
LIMITED_CALLS: Final = LIMITED.labels("limited")

for _status in ExecutionStatus:
    if _status.is_terminal:
        ENDED.labels(str(_status))
for _outcome in ("granted", "denied", "expired"):
    APPROVALS.labels(_outcome)
for _outcome in ("success", "rejected"):
    ANNOUNCEMENTS.labels(_outcome)
for _outcome in ("success", "rejected", "exhausted"):
    DISPATCHES.labels(_outcome)
for _kind in ("unavailable", "log_broken"):
    DATABASE_ERRORS.labels(_kind)

_ROUTES: dict[tuple[str, int], tuple[Counter, Histogram]] = {}


def requested(route: str, status: int, seconds: float) -> None:
    """Count a request. `route`: as the application declares it, never as it was asked."""
    found = _ROUTES.get((route, status))
    if found is None:
        found = (REQUESTS.labels(route, str(status)), REQUEST_SECONDS.labels(route))
        _ROUTES[route, status] = found
    counter, duration = found
    counter.inc()
    duration.observe(seconds)


def sinks(names: Iterable[str]) -> None:
    """Make the series of every sink of the settings, so that each is there from 0."""
    for name in names:
        for metric in (EXPORT_LAG, EXPORT_FAILING, EXPORTED, EXPORT_REFUSED, EXPORT_FAILURES):
            metric.labels(name)


def flushed(event_count: int, seconds: float) -> None:
    """Count one commit to the log."""
    FLUSH_EVENTS.observe(event_count)
    FLUSH_SECONDS.observe(seconds)


def forget_the_dead(folder: str) -> None:
    """Drop the gauges of processes that are gone from the files that workers share.

    A worker that starts calls it: it is here because another one died, or none did.
    """
    for path in Path(folder).glob("gauge_live*_*.db"):
        pid = path.stem.rpartition("_")[2]
        if pid.isdigit() and not _is_alive(int(pid)):
            mark_process_dead(int(pid), folder)  # type: ignore[no-untyped-call]  # its own


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
