"""What happened to runs, as lines for whoever operates the service.

Info: created, ended, denied, approvals asked for and decided. Debug: every other decision.
"""

import logging
from collections.abc import Sequence
from typing import Final

from proctor.wire.calls import Lease
from proctor.wire.words import Decision, Reason
from proctor_kernel.core import events
from proctor_kernel.core.state import State
from proctor_kernel.log_lines import about
from proctor_policy.verdict import ENGINE_ERROR, INVALID_CALL

_logger = logging.getLogger(__name__)

_QUOTING: Final = frozenset({INVALID_CALL, ENGINE_ERROR})
"""Rule ids whose reasons say what was wrong with arguments, in their own words."""

_REASONS: Final = frozenset(map(str, Reason))


def write(state: State, happened: Sequence[events.Event]) -> None:
    """Write the lines of what happened to a run. `state`: the run after it."""
    for event in happened[:1] if _is_fork(state, happened) else happened:
        match event:
            case events.StepDenied():
                _of_step(logging.INFO, "denied", state, event)
            case events.StepAllowed() | events.StepAwaitingApproval():
                if _logger.isEnabledFor(logging.DEBUG):
                    _of_step(logging.DEBUG, str(event.decision), state, event)
            case events.StepRateLimited():
                _logger.info(
                    "rate limited",
                    extra=about(
                        state.execution_id,
                        agent_id=state.agent_id,
                        kind=str(event.kind),
                        target=event.target,
                        rules=",".join(event.rule_ids),
                    ),
                )
            case events.ApprovalRequested():
                _of_approval("approval requested", state, event)
            case events.ApprovalGranted() | events.ApprovalDenied():
                approval = state.approvals[event.approval_id]
                _of_approval(f"approval {approval.status}", state, event, by=event.by)
            case events.ApprovalExpired():
                _of_approval("approval expired", state, event, reason=str(event.rationale))
            case events.ExecutionCreated():
                _logger.info(
                    "run created",
                    extra=about(
                        state.execution_id,
                        agent_id=state.agent_id,
                        created_by=state.created_by,
                        forked_from=state.forked_from,
                    ),
                )
            case (
                events.ExecutionCompleted() | events.ExecutionFailed() | events.ExecutionCancelled()
            ):
                _ended(state)
            case events.DispatchClaimed():
                _logger.debug(
                    "attempt began",
                    extra=about(
                        state.execution_id,
                        agent_id=state.agent_id,
                        lease=Lease(event.dispatch_id, event.attempt),
                    ),
                )
            case _:
                pass


def _is_fork(state: State, happened: Sequence[events.Event]) -> bool:
    # What follows was copied: it happened to another run, and was told of there.
    return state.forked_from is not None and isinstance(happened[0], events.ExecutionCreated)


def _ended(state: State) -> None:
    # The agent's own words may be an exception's, which quotes what it met.
    reason = state.failure_reason
    _logger.info(
        f"run {state.status}",
        extra=about(
            state.execution_id,
            agent_id=state.agent_id,
            reason=reason if reason in _REASONS else "agent_failed" if reason else None,
            steps=len(state.steps),
            attempts=state.attempts,
        ),
    )


def _of_step(
    level: int,
    message: str,
    state: State,
    event: events.StepAllowed | events.StepDenied | events.StepAwaitingApproval,
) -> None:
    step = state.steps[event.step_id]
    _logger.log(
        level,
        message,
        extra=about(
            state.execution_id,
            step_id=event.step_id,
            agent_id=state.agent_id,
            lease=_lease(state),
            kind=str(step.kind),
            target=step.target,
            rules=",".join(event.rule_ids),
            ruleset=event.ruleset[:12],
            reason=_reason(event),
            unevaluated=len(event.errors) or None,
        ),
    )


def _of_approval(
    message: str,
    state: State,
    event: events.ApprovalRequested
    | events.ApprovalGranted
    | events.ApprovalDenied
    | events.ApprovalExpired,
    *,
    by: str | None = None,
    reason: str | None = None,
) -> None:
    step = state.steps[event.step_id]
    approval = state.approvals[event.approval_id]
    _logger.info(
        message,
        extra=about(
            state.execution_id,
            step_id=event.step_id,
            agent_id=state.agent_id,
            lease=_lease(state),
            approval_id=event.approval_id,
            kind=str(step.kind),
            target=step.target,
            rules=",".join(gate.rule_id for gate in approval.gates),
            by=by,
            reason=reason,
        ),
    )


def _lease(state: State) -> Lease | None:
    dispatch = state.dispatch
    return None if dispatch is None else Lease(dispatch.dispatch_id, dispatch.attempt)


def _reason(
    event: events.StepAllowed | events.StepDenied | events.StepAwaitingApproval,
) -> str | None:
    """Return the rule's own words; what quotes a call or an error is left to the record."""
    if event.errors or not _QUOTING.isdisjoint(event.rule_ids):
        return None
    if isinstance(event, events.StepDenied) and event.decision is Decision.REQUIRE_APPROVAL:
        return None  # what somebody wrote who denied it, and who may have quoted the call
    if not event.ruleset and event.reason not in _REASONS:
        return None
    return event.reason or None
