"""What people say of a call that waits for them, and what is said for them when time is up.

Granting, denying and expiry are one command with three resolutions. An overdue approval cannot
be granted, whoever looks first. Who decides comes from credentials, never from a request body.
"""

from typing import assert_never

from proctor.wire.words import ApprovalStatus, ErrorCode, Reason, StepStatus
from proctor_kernel.core import approvals, events, flow, replies
from proctor_kernel.core.approvals import Approval, Vote
from proctor_kernel.core.commands import (
    Answers,
    DecideApproval,
    Deny,
    Done,
    Expire,
    Grant,
    Outcome,
    Rejected,
)
from proctor_kernel.core.state import State, Step


def decide(state: State, command: DecideApproval, answers: Answers) -> Outcome:
    """Return what becomes of an approval."""
    approval = state.approvals.get(command.approval_id)
    if approval is None:
        return replies.unchanged(
            Rejected(ErrorCode.NOT_FOUND, f"no approval {command.approval_id!r}")
        )
    if approval.status is not ApprovalStatus.PENDING:
        return replies.unchanged(
            Rejected(ErrorCode.CONFLICT, f"the approval is already {approval.status}")
        )
    step = state.steps[approval.step_id]
    assert step.status is StepStatus.AWAITING_APPROVAL, "a pending approval has a waiting step"
    if answers.now >= approval.expires_at:
        said = Done() if isinstance(command.resolution, Expire) else _OVERDUE
        return replies.outcome(said, *_expired(state, approval, step, answers))
    match command.resolution:
        case Expire():
            return replies.unchanged(Rejected(ErrorCode.CONFLICT, "the approval is not overdue"))
        case Grant():
            return _grant(state, approval, step, command.resolution, answers)
        case Deny():
            return _deny(state, approval, step, command.resolution, answers)
        case _:
            assert_never(command.resolution)


_OVERDUE = Rejected(ErrorCode.CONFLICT, "the approval has expired")


def _grant(state: State, approval: Approval, step: Step, grant: Grant, answers: Answers) -> Outcome:
    vote = Vote(grant.by, grant.groups, answers.now, grant.rationale)
    missing = approvals.closed(approval.gates, approval.votes)
    if not any(approvals.may_decide(gate, vote.by, vote.groups) for gate in approval.gates):
        return replies.unchanged(_not_asked(approval, grant.by))
    if any(each.by == grant.by for each in approval.votes):
        return replies.unchanged(
            Rejected(
                ErrorCode.CONFLICT, f"{grant.by} has agreed already; {_still_missing(approval)}"
            )
        )
    if not any(approvals.may_decide(gate, vote.by, vote.groups) for gate in missing):
        return replies.unchanged(
            Rejected(
                ErrorCode.CONFLICT,
                f"enough of those who are asked with {grant.by} have agreed; "
                f"{_still_missing(approval)}",
            )
        )
    if approvals.closed(approval.gates, (*approval.votes, vote)):
        voted = events.ApprovalVoted(
            approval.approval_id, step.step_id, grant.by, grant.groups, grant.rationale
        )
        return replies.outcome(Done(), voted)
    granted = events.ApprovalGranted(
        approval.approval_id, step.step_id, grant.by, grant.groups, grant.rationale
    )
    assert step.decision is not None, "a step that waits was decided"
    allowed = events.StepAllowed(
        step.step_id,
        step.decision,
        f"approved by {', '.join(sorted({*(each.by for each in approval.votes), grant.by}))}",
        step.rule_ids,
        step.ruleset,
        policy_micros=step.policy_micros,
        shadow=step.shadow,
    )
    return replies.outcome(Done(), granted, allowed, *_went_on(state, step, answers))


def _deny(state: State, approval: Approval, step: Step, deny: Deny, answers: Answers) -> Outcome:
    if not any(approvals.may_decide(gate, deny.by, deny.groups) for gate in approval.gates):
        return replies.unchanged(_not_asked(approval, deny.by))
    return replies.outcome(
        Done(),
        events.ApprovalDenied(approval.approval_id, step.step_id, deny.by, deny.rationale),
        flow.denied(step, deny.rationale or Reason.APPROVAL_DENIED),
        *_went_on(state, step, answers),
    )


def _expired(
    state: State, approval: Approval, step: Step, answers: Answers
) -> tuple[events.Event, ...]:
    return (
        events.ApprovalExpired(approval.approval_id, step.step_id, Reason.TIMEOUT),
        flow.denied(step, Reason.APPROVAL_TIMEOUT),
        *_went_on(state, step, answers),
    )


def _went_on(state: State, step: Step, answers: Answers) -> tuple[events.Event, ...]:
    return flow.settled(
        state,
        waiting=state.waiting - {step.step_id},
        under_way=state.under_way,
        dispatch_id=answers.new_id,
    )


def _not_asked(approval: Approval, by: str) -> Rejected:
    asked = sorted({name for gate in approval.gates for name in gate.approvers})
    return Rejected(
        ErrorCode.FORBIDDEN, f"{by or 'the caller'} is not asked; those who are: {', '.join(asked)}"
    )


def _still_missing(approval: Approval) -> str:
    parts = [
        f"rule {gate.rule_id} has {approvals.agreed(gate, approval.votes)} of {gate.quorum}"
        for gate in approvals.closed(approval.gates, approval.votes)
    ]
    return "; ".join(parts)
