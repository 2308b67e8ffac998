"""A call that asks whether its body may run: what becomes of a submit (protocol 5).

It finds its place (`_place`). A call that is recorded already is answered from the record
(`_resubmitted`, protocol 5.1); a new one is allowed, denied or limited by its ruling (protocol
5.2).
"""

from dataclasses import dataclass
from typing import TypeVar, assert_never

from proctor.wire.calls import StepReply
from proctor.wire.words import (
    Answer,
    Decision,
    ErrorCode,
    ExecutionStatus,
    Idempotency,
    Reason,
    StepStatus,
)
from proctor_kernel.core import events, identity, replies, step_errors
from proctor_kernel.core.commands import (
    Answers,
    Outcome,
    Question,
    Rejected,
    Reply,
    Ruling,
    SubmitStep,
)
from proctor_kernel.core.state import Attempt, CallKey, State, Step

_Ruled = TypeVar("_Ruled", events.StepAllowed, events.StepDenied)


def question(state: State, command: SubmitStep) -> Question | None:
    """Return what the policies must be asked before a submit can be decided, or None.

    A replay, a repeated submit and whatever will be refused anyway ask nothing.
    """
    if _barred(state, command) is not None:
        return None
    place = _place(state, command)
    if isinstance(place, Rejected) or place.step is not None or _retry_refused(state, command):
        return None
    return Question(
        execution_id=state.execution_id,
        step_id=place.step_id,
        agent_id=state.agent_id,
        kind=command.kind,
        target=command.target,
        args=command.args,
        idempotency=command.idempotency,
        input=state.input,
        steps=state.steps,
        finished=state.finished,
        tally=state.tally,
        started_at=state.created_at if state.started_at is None else state.started_at,
    )


def decide(state: State, command: SubmitStep, answers: Answers) -> Outcome:
    """Return what a submit comes to. `answers` has a ruling when `question` asked for one."""
    barred = _barred(state, command)
    if barred is not None:
        return replies.unchanged(state, barred)
    place = _place(state, command)
    if isinstance(place, Rejected):
        return replies.unchanged(state, place)
    if place.step is not None:
        return _resubmitted(state, command, place.step, repeated=place.repeated)
    if _retry_refused(state, command):
        ruling = Ruling(
            Decision.DENY,
            step_errors.RETRY_REFUSED_REASON,
            (step_errors.RETRY_REFUSED_RULE,),
            ruleset="",
        )
    else:
        assert answers.ruling is not None, "a new step is decided only with a ruling"
        ruling = answers.ruling
    if ruling.decision is Decision.RATE_LIMITED:
        return replies.outcome(
            state,
            StepReply(Answer.RATE_LIMITED, reason=ruling.reason, rule_id=_first(ruling.rule_ids)),
            _limited(command, ruling),
        )
    return _new_step(state, command, place, ruling)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a submitted call belongs in the run."""

    step_id: str
    occurrence: int
    step: Step | None
    """The step recorded under this id, if there is one."""
    repeated: bool = False
    """The very same submit was recorded before; its answer must have been lost."""


def _place(state: State, command: SubmitStep) -> _Place | Rejected:
    assert state.attempt is not None, "barred otherwise"
    known = _known(state, state.attempt, command.request_id)
    if known is not None:
        step = state.steps[known]
        if step.call_key != _call_key(command):
            return Rejected(
                ErrorCode.CONFLICT,
                f"request id {command.request_id!r} was used for another call: "
                f"{step.kind} {step.target!r}",
            )
        return _Place(known, step.occurrence, step, repeated=True)
    occurrence = state.attempt.occurrences.get(_call_key(command), 0)
    step_id = identity.step_id(
        execution_id=state.execution_id,
        kind=command.kind,
        target=command.target,
        hash_of_args=command.args_hash,
        occurrence=occurrence,
    )
    return _Place(step_id, occurrence, state.steps.get(step_id))


def _known(state: State, attempt: Attempt, request_id: str | None) -> str | None:
    """Return the step that an earlier submit with this request id became, or None."""
    if request_id is None:
        return None
    return attempt.requests.get(request_id) or state.requests.get(request_id)


def _resubmitted(state: State, command: SubmitStep, step: Step, *, repeated: bool) -> Outcome:
    """Answer a call that is recorded already (protocol 5.1)."""
    attempt = _noted(state, command, step.step_id, step.occurrence)
    running_again = events.StepExecuting(step.step_id, request_id=command.request_id)
    proceed = StepReply(Answer.PROCEED, step.step_id)
    match step.status:
        case StepStatus.SUCCEEDED | StepStatus.FAILED | StepStatus.CANCELLED:
            return Outcome((), replies.replay(step), attempt)
        case StepStatus.DENIED:
            return Outcome((), _denial(step.step_id, step.reason, step.rule_ids), attempt)
        case StepStatus.ALLOWED | StepStatus.PROPOSED:
            return Outcome((running_again,), proceed, attempt)
        case StepStatus.EXECUTING if repeated:
            return Outcome((), proceed, attempt)
        case StepStatus.EXECUTING:
            # The idempotency of this request decides, not the stored one (protocol 5.1).
            if command.idempotency is Idempotency.AT_MOST_ONCE:
                failed = events.StepFailed(step.step_id, step_errors.INDETERMINATE)
                reply = StepReply(Answer.REPLAY, step.step_id, error_json=step_errors.INDETERMINATE)
                return Outcome((failed,), reply, attempt)
            return Outcome((running_again,), proceed, attempt)
        case StepStatus.AWAITING_APPROVAL:
            return Outcome((), StepReply(Answer.BLOCKED, step.step_id), attempt)
        case _:
            assert_never(step.status)


def _new_step(state: State, command: SubmitStep, place: _Place, ruling: Ruling) -> Outcome:
    """Record a call that was not seen before, with what the policies said (protocol 5.2)."""
    proposed = events.StepProposed(
        step_id=place.step_id,
        kind=command.kind,
        target=command.target,
        args=command.args,
        args_hash=command.args_hash,
        occurrence=place.occurrence,
        idempotency=command.idempotency,
        request_id=command.request_id,
    )
    attempt = _noted(state, command, place.step_id, place.occurrence)
    if ruling.decision is Decision.ALLOW:
        return Outcome(
            (
                proposed,
                _ruled(events.StepAllowed, place.step_id, ruling),
                events.StepExecuting(place.step_id, ruling.labels),
            ),
            StepReply(Answer.PROCEED, place.step_id),
            attempt,
        )
    # A gate that this kernel cannot lift forbids, as every gate does.
    return Outcome(
        (proposed, _ruled(events.StepDenied, place.step_id, ruling)),
        _denial(place.step_id, ruling.reason, ruling.rule_ids),
        attempt,
    )


def _barred(state: State, command: SubmitStep) -> Reply | None:
    """Return the answer to a submit that may not even be looked at, or None."""
    if state.status is None:
        return replies.gone(state)
    # Before the lease: a handler of a run that ended is told so (protocol 1.3).
    if state.is_terminal:
        return replies.TERMINAL
    if not replies.holds(state, command.lease) or state.attempt is None:
        return replies.superseded(command.lease)
    if state.status is not ExecutionStatus.RUNNING:
        return StepReply(Answer.EXECUTION_BLOCKED)
    return None


def _retry_refused(state: State, command: SubmitStep) -> bool:
    return (
        command.idempotency is Idempotency.AT_MOST_ONCE
        and _call_key(command) in state.indeterminate
    )


def _noted(state: State, command: SubmitStep, step_id: str, occurrence: int) -> Attempt:
    """Return the memory of the attempt once it has asked for this step."""
    attempt = state.attempt
    assert attempt is not None, "barred otherwise"
    call_key = _call_key(command)
    # `max`: a repeated submit was counted when it came first, unless its recording looked
    # as if it had failed.
    counted = max(attempt.occurrences.get(call_key, 0), occurrence + 1)
    requests = attempt.requests
    if command.request_id is not None:
        requests = requests.set(command.request_id, step_id)
    return Attempt(
        attempt.dispatch_id,
        attempt.number,
        occurrences=attempt.occurrences.set(call_key, counted),
        proposed=attempt.proposed.set(step_id, True),
        requests=requests,
    )


def _call_key(command: SubmitStep) -> CallKey:
    return (command.kind, command.target, command.args_hash)


def _ruled(kind: type[_Ruled], step_id: str, ruling: Ruling) -> _Ruled:
    return kind(
        step_id=step_id,
        decision=ruling.decision,
        reason=ruling.reason,
        rule_ids=ruling.rule_ids,
        ruleset=ruling.ruleset,
        policy_micros=ruling.policy_micros,
        errors=ruling.errors,
        shadow=ruling.shadow,
    )


def _limited(command: SubmitStep, ruling: Ruling) -> events.StepRateLimited:
    return events.StepRateLimited(
        kind=command.kind,
        target=command.target,
        args=command.args,
        args_hash=command.args_hash,
        reason=ruling.reason,
        rule_ids=ruling.rule_ids,
        ruleset=ruling.ruleset,
        policy_micros=ruling.policy_micros,
        errors=ruling.errors,
        shadow=ruling.shadow,
    )


def _first(rule_ids: tuple[str, ...]) -> str:
    return rule_ids[0] if rule_ids else ""


def _denial(step_id: str, reason: str, rule_ids: tuple[str, ...]) -> StepReply:
    return StepReply(
        Answer.DENIED,
        step_id,
        reason=reason or Reason.POLICY_DENIED,
        rule_id=_first(rule_ids),
    )
