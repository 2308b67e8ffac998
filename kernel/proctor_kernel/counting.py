"""What has just become durable, counted."""

from collections.abc import Sequence
from typing import Final

from proctor.wire.words import Decision, Reason, StepKind, StepStatus
from proctor_kernel import metrics
from proctor_kernel.core import events
from proctor_kernel.core.state import State
from proctor_kernel.rule_series import RULES

_MICROS_PER_SECOND: Final = 1_000_000

_STATUS: Final[dict[type, StepStatus]] = {
    events.StepSucceeded: StepStatus.SUCCEEDED,
    events.StepFailed: StepStatus.FAILED,
    events.StepCancelled: StepStatus.CANCELLED,
}

_Decided = (
    events.StepAllowed | events.StepDenied | events.StepAwaitingApproval | events.StepRateLimited
)


def count(state: State, happened: Sequence[events.Event]) -> None:
    """Count what happened to a run. `state`: the run after it."""
    if isinstance(happened[0], events.ExecutionCreated):
        metrics.CREATED.inc()
        if state.forked_from is not None:
            return  # what was copied happened to another run, and was counted there
    for event in happened:
        match event:
            case events.StepProposed():
                metrics.SUBMITTED[event.kind].inc()
            case events.StepAllowed() | events.StepAwaitingApproval():
                _decided(event, state.steps[event.step_id].kind, event.decision)
            case events.StepDenied():
                _denied(event, state.steps[event.step_id].kind)
            case events.StepRateLimited():
                _decided(event, event.kind, Decision.RATE_LIMITED)
                metrics.LIMITED_CALLS.inc()
            case events.StepSucceeded() | events.StepFailed() | events.StepCancelled():
                _settled(event, state.steps[event.step_id].kind)
            case (
                events.ExecutionCompleted() | events.ExecutionFailed() | events.ExecutionCancelled()
            ):
                _ended(state)
            case events.ApprovalRequested():
                metrics.APPROVALS_REQUESTED.inc()
            case events.ApprovalGranted() | events.ApprovalDenied() | events.ApprovalExpired():
                _resolved(state, event.approval_id)
            case _:
                pass


def _decided(event: _Decided, kind: StepKind, decision: Decision) -> None:
    by_decision, by_kind = metrics.DECIDED[kind, decision]
    by_decision.inc()
    by_kind.inc()
    if event.ruleset:  # else no rule was asked
        metrics.POLICY_SECONDS.observe(event.policy_micros / _MICROS_PER_SECOND)
    for rule_id in event.rule_ids:
        RULES.decided(rule_id, decision)
    for rule_id in event.shadow:
        RULES.would_have_forbidden(rule_id)
    if event.errors:
        metrics.POLICY_ERRORS.inc(len(event.errors))


def _denied(event: events.StepDenied, kind: StepKind) -> None:
    metrics.SETTLED_AS[kind, StepStatus.DENIED].inc()
    # People denied it, or nobody decided: what rules said was counted before.
    if event.decision is not Decision.REQUIRE_APPROVAL:
        _decided(event, kind, event.decision)


def _settled(
    event: events.StepSucceeded | events.StepFailed | events.StepCancelled, kind: StepKind
) -> None:
    metrics.SETTLED_AS[kind, _STATUS[type(event)]].inc()
    if (
        isinstance(event, events.StepSucceeded)
        and kind is StepKind.LLM_CALL
        and event.input_tokens is None
    ):
        metrics.USAGE_MISSING.inc()


def _ended(state: State) -> None:
    metrics.ENDED.labels(str(state.status)).inc()
    if state.failure_reason == Reason.DISPATCH_EXHAUSTED:
        metrics.DISPATCHES.labels("exhausted").inc()


def _resolved(state: State, approval_id: str) -> None:
    approval = state.approvals[approval_id]
    metrics.APPROVALS.labels(str(approval.status)).inc()
    waited = (approval.decided_at or approval.requested_at) - approval.requested_at
    metrics.APPROVAL_SECONDS.observe(waited / _MICROS_PER_SECOND)
