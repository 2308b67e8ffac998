"""Spans of calls: a step with its decision and outcome, and the approvals it waited for. Pure."""

from dataclasses import dataclass, replace
from typing import assert_never

from proctor.wire.words import ApprovalStatus, Reason, StepKind, StepStatus
from proctor_kernel.audit import attributes as names
from proctor_kernel.audit.span import MOMENTS_MAX, Moment, Span, Value, given, span_in
from proctor_kernel.core import events, identity
from proctor_kernel.core.approvals import Approval
from proctor_kernel.core.chain import Record
from proctor_kernel.core.state import State, Step


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step without an outcome."""

    proposed_at: int
    runs: int = 0
    """How often its body was told to run."""
    moments: tuple[Moment, ...] = ()


def of_step(state: State, step: Step, known: OpenStep, at: int) -> Span:
    """Return the span of a step that has its outcome, which it got at `at`."""
    failure, error_type = _failure(state, step)
    decision = given(
        {
            names.DECISION: "" if step.decision is None else str(step.decision),
            names.REASON: step.reason,
            names.RULES: step.rule_ids,
            names.RULESET: step.ruleset,
            names.SHADOW: step.shadow,
            names.GATE: "approval" if step.approval_id is not None else "",
            names.APPROVAL: step.approval_id or "",
        }
    )
    return replace(
        span_in(
            state,
            _title(step.kind, step.target),
            of=step.step_id,
            start=known.proposed_at,
            end=at,
            attributes={
                **_call(step.kind, step.target, step.args, step.result),
                names.GEN_AI_TOOL_CALL: step.step_id,
                names.STEP: step.step_id,
                names.STEP_STATUS: str(step.status),
                names.STEP_OCCURRENCE: step.occurrence,
                names.STEP_IDEMPOTENCY: str(step.idempotency),
                names.STEP_ATTEMPT: step.proposed_attempt,
                names.STEP_RUNS: known.runs,
                names.POLICY_MICROS: step.policy_micros,
                names.REPLAY: known.runs > 1 or state.attempts > step.proposed_attempt,
                **decision,
                **given(
                    {
                        names.STEP_LABELS: step.labels,
                        names.STEP_CHILD: step.child or "",
                        names.GEN_AI_INPUT_TOKENS: step.input_tokens or 0,
                        names.GEN_AI_OUTPUT_TOKENS: step.output_tokens or 0,
                    }
                ),
            },
            failure=failure,
            error_type=error_type,
        ),
        is_client=step.kind is StepKind.LLM_CALL,
        moments=known.moments,
        links=()
        if step.child is None
        else ((identity.trace_id(step.child), identity.span_id(step.child)),),
    )


def _failure(state: State, step: Step) -> tuple[str | None, str | None]:
    match step.status:
        case StepStatus.DENIED:
            approval = None if step.approval_id is None else state.approvals.get(step.approval_id)
            match None if approval is None else approval.status:
                case ApprovalStatus.DENIED:
                    return step.reason, str(Reason.APPROVAL_DENIED)
                case ApprovalStatus.EXPIRED:
                    return step.reason, str(Reason.APPROVAL_TIMEOUT)
                case _:
                    return step.reason, str(Reason.POLICY_DENIED)
        case StepStatus.FAILED:
            return step.error or "", "tool_error"
        case StepStatus.CANCELLED:
            return step.error or "", "cancelled"
        case _:
            return None, None


def of_limited(state: State, event: events.StepRateLimited, record: Record) -> Span:
    """Return the span of a call over a limit, which became no step."""
    return span_in(
        state,
        _title(event.kind, event.target),
        of=f"{state.execution_id}:{record.seq}",
        start=record.at,
        end=record.at,
        attributes={
            **_call(event.kind, event.target, event.args, None),
            names.DECISION: "rate_limited",
            names.REASON: event.reason,
            names.RULES: event.rule_ids,
            names.RULESET: event.ruleset,
            names.POLICY_MICROS: event.policy_micros,
            names.GATE: "rate_limit",
            **given({names.SHADOW: event.shadow, names.RULE_ERRORS: event.errors}),
        },
        failure=event.reason,
        error_type="rate_limited",
    )


def of_approval(state: State, event: events.ApprovalEvent, record: Record) -> tuple[Span, ...]:
    """Return the mark of an approval that is requested, or its span once it is decided."""
    approval = state.approvals[event.approval_id]
    target = state.steps[event.step_id].target
    if isinstance(event, events.ApprovalRequested):
        mark = span_in(
            state,
            f"approval of {target} requested",
            of=f"{state.execution_id}:{record.seq}",
            parent=event.step_id,
            start=record.at,
            end=record.at,
            attributes=_asked(approval),
        )
        return (mark,)
    if isinstance(event, events.ApprovalVoted):
        return ()
    granted = approval.status is ApprovalStatus.GRANTED
    span = span_in(
        state,
        f"approval of {target}",
        of=approval.approval_id,
        parent=event.step_id,
        start=approval.requested_at,
        end=record.at,
        attributes={
            **_asked(approval),
            names.APPROVAL_STATUS: str(approval.status),
            **given({names.DECIDED_BY: approval.decided_by, names.RATIONALE: approval.rationale}),
        },
        failure=None if granted else approval.rationale or str(approval.status),
        error_type=None if granted else f"approval_{approval.status}",
    )
    moments = tuple(
        Moment("vote", vote.at, {names.DECIDED_BY: vote.by, names.RATIONALE: vote.rationale})
        for vote in approval.votes[:MOMENTS_MAX]
    )
    return (replace(span, moments=moments),)


def _asked(approval: Approval) -> dict[str, Value]:
    return {
        names.APPROVAL: approval.approval_id,
        names.RULES: tuple(gate.rule_id for gate in approval.gates),
        names.APPROVERS: tuple(dict.fromkeys(a for gate in approval.gates for a in gate.approvers)),
        names.QUORUM: max((gate.quorum for gate in approval.gates), default=1),
        names.EXPIRES_AT: approval.expires_at,
        **given({names.MESSAGE: approval.message}),
    }


def _title(kind: StepKind, target: str) -> str:
    match kind:
        case StepKind.TOOL_CALL:
            return f"execute_tool {target}"
        case StepKind.LLM_CALL:
            return f"chat {target}".rstrip()
        case StepKind.LOCAL:
            return f"step {target}"
        case _:
            assert_never(kind)


def _call(kind: StepKind, target: str, args: str, result: str | None) -> dict[str, Value]:
    said: dict[str, Value] = {names.STEP_KIND: str(kind), names.STEP_TARGET: target}
    match kind:
        case StepKind.TOOL_CALL:
            said |= {
                names.GEN_AI_OPERATION: "execute_tool",
                names.GEN_AI_TOOL: target,
                names.GEN_AI_TOOL_TYPE: "function",
                names.GEN_AI_TOOL_ARGUMENTS: args,
            }
            result_name = names.GEN_AI_TOOL_RESULT
        case StepKind.LLM_CALL:
            said |= {
                names.GEN_AI_OPERATION: "chat",
                names.GEN_AI_MODEL: target,
                names.STEP_ARGUMENTS: args,
            }
            result_name = names.STEP_RESULT
        case StepKind.LOCAL:
            said |= {names.STEP_ARGUMENTS: args}
            result_name = names.STEP_RESULT
        case _:
            assert_never(kind)
    return said if result is None else said | {result_name: result}
