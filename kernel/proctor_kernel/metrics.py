"""What is counted, for Prometheus. Labels are closed sets, so every series is there from 0."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from proctor.wire.words import Decision, ExecutionStatus, Reason, StepKind
from proctor_kernel.core import events
from proctor_kernel.core.state import State

STEPS: Final = Counter("proctor_steps_submitted", "New calls that asked", ["kind"])
DECISIONS: Final = Counter("proctor_policy_decisions", "What rules said of calls", ["decision"])
POLICY_SECONDS: Final = Histogram(
    "proctor_policy_latency_seconds",
    "Time that rules took",
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1),
)
REPLAYS: Final = Counter("proctor_replay", "Calls answered from the record or not", ["hit"])
CREATED: Final = Counter("proctor_executions_created", "Runs that were created")
ENDED: Final = Counter("proctor_executions_completed", "Runs that ended", ["status"])
APPROVALS: Final = Counter("proctor_approval_outcomes", "Approvals that were decided", ["outcome"])
APPROVAL_SECONDS: Final = Histogram(
    "proctor_approval_wait_seconds",
    "From request to decision",
    buckets=(1, 10, 60, 300, 900, 3600, 14400, 86400),
)
DISPATCHES: Final = Counter("proctor_dispatch_outcomes", "Deliveries to agents", ["outcome"])
DISPATCH_SECONDS: Final = Histogram(
    "proctor_dispatch_latency_seconds", "Time that agents took to accept a delivery"
)
RECLAIMED: Final = Counter("proctor_dispatches_reclaimed", "Leases that ran out")
QUEUE_DEPTH: Final = Gauge(
    "proctor_queue_depth", "Deliveries that are overdue", multiprocess_mode="max"
)
LIMITED: Final = Counter("proctor_rate_limit_decisions", "Calls over a limit", ["outcome"])
USAGE_MISSING: Final = Counter(
    "proctor_llm_usage_missing", "Model calls whose tokens could not be read"
)
REQUESTS: Final = Counter("proctor_http_requests", "Requests", ["route", "status"])
REQUEST_SECONDS: Final = Histogram(
    "proctor_http_request_duration_seconds", "Time that requests took", ["route"]
)
RELOADS: Final = Gauge(
    "proctor_rules_reloads", "Times that other rules came into force", multiprocess_mode="max"
)
RELOAD_FAILURES: Final = Gauge(
    "proctor_rules_reload_failures", "Times that rules were refused", multiprocess_mode="max"
)
RULES_FAILING: Final = Gauge(
    "proctor_rules_failing", "1 while the folder is not in force", multiprocess_mode="max"
)
EXPORTED: Final = Counter("proctor_export_events", "Events that a sink has taken", ["sink"])
EXPORT_REFUSED: Final = Counter(
    "proctor_export_refused", "Events that a sink refused for good", ["sink"]
)
EXPORT_FAILURES: Final = Counter(
    "proctor_export_failures", "Times that a sink took nothing", ["sink"]
)
EXPORT_FAILING: Final = Gauge(
    "proctor_export_failing",
    "1 while a sink takes nothing",
    ["sink"],
    multiprocess_mode="max",
)
EXPORT_LAG: Final = Gauge(
    "proctor_export_lag_seconds",
    "Age of the oldest event that a sink has not taken",
    ["sink"],
    multiprocess_mode="max",
)

for _kind in StepKind:
    STEPS.labels(str(_kind))
for _decision in Decision:
    DECISIONS.labels(str(_decision))
for _hit in ("true", "false"):
    REPLAYS.labels(_hit)
for _status in ExecutionStatus:
    if _status.is_terminal:
        ENDED.labels(str(_status))
for _outcome in ("granted", "denied", "expired"):
    APPROVALS.labels(_outcome)
for _outcome in ("success", "rejected", "exhausted"):
    DISPATCHES.labels(_outcome)
LIMITED.labels("limited")

_MICROS_PER_SECOND: Final = 1_000_000


def count(state: State, happened: Sequence[events.Event]) -> None:
    """Count what has just become durable."""
    for event in happened:
        match event:
            case events.StepProposed():
                STEPS.labels(str(event.kind)).inc()
            case events.StepAllowed() | events.StepDenied() | events.StepAwaitingApproval():
                DECISIONS.labels(str(event.decision)).inc()
                POLICY_SECONDS.observe(event.policy_micros / _MICROS_PER_SECOND)
            case events.StepRateLimited():
                DECISIONS.labels(str(Decision.RATE_LIMITED)).inc()
                LIMITED.labels("limited").inc()
            case events.StepSucceeded():
                is_model = state.steps[event.step_id].kind is StepKind.LLM_CALL
                USAGE_MISSING.inc(is_model and event.input_tokens is None)
            case events.ExecutionCreated():
                CREATED.inc()
            case (
                events.ExecutionCompleted() | events.ExecutionFailed() | events.ExecutionCancelled()
            ):
                ENDED.labels(str(state.status)).inc()
                if state.failure_reason == Reason.DISPATCH_EXHAUSTED:
                    DISPATCHES.labels("exhausted").inc()
            case events.ApprovalGranted() | events.ApprovalDenied() | events.ApprovalExpired():
                approval = state.approvals[event.approval_id]
                APPROVALS.labels(str(approval.status)).inc()
                waited = (approval.decided_at or approval.requested_at) - approval.requested_at
                APPROVAL_SECONDS.observe(waited / _MICROS_PER_SECOND)
            case _:
                pass
