"""What happens when something is asked of a run. Start here.

`question(state, command)` says what the core cannot know by itself (only a new call has to
ask the policies). `decide(state, command, answers)` gives the events to record and the reply.
Both are pure: the kernel asks, records, and replies, in that order.

A tool call, in the words of this file: `SubmitStep` finds its place (`_place`). A call that is
recorded already is answered from the record (`_resubmitted`, protocol 5.1); a new one is
denied or allowed by its ruling (`_new_step`, protocol 5.2). `SettleStep` records the outcome.
"""

from dataclasses import dataclass
from typing import Final, TypeVar, assert_never

from proctor.wire.calls import Lease, StepReply
from proctor.wire.words import (
    Answer,
    Decision,
    DispatchStatus,
    ErrorCode,
    ExecutionStatus,
    Idempotency,
    Reason,
    StepStatus,
)
from proctor_kernel.core import events, identity, step_errors
from proctor_kernel.core.commands import (
    Answers,
    CancelExecution,
    ClaimDispatch,
    Claimed,
    Command,
    CreateExecution,
    Done,
    FinishExecution,
    GaveUp,
    Outcome,
    Question,
    Raised,
    Rejected,
    Reply,
    Returned,
    Ruling,
    SettleStep,
    SubmitStep,
)
from proctor_kernel.core.state import Attempt, CallKey, State, Step

_TERMINAL_REPLY: Final = StepReply(Answer.EXECUTION_TERMINAL)

_Ruled = TypeVar("_Ruled", events.StepAllowed, events.StepDenied)


def question(state: State, command: Command) -> Question | None:
    """Return what the policies must be asked before `command` can be decided, or None.

    A replay, a repeated submit and whatever will be refused anyway ask nothing.
    """
    if not isinstance(command, SubmitStep) or _barred(state, command) is not None:
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


def decide(state: State, command: Command, answers: Answers) -> Outcome:
    """Return the events that `command` causes in `state`, and the reply to give once recorded.

    `answers.ruling` must be there when `question` asked for it.
    """
    match command:
        case CreateExecution():
            return _create(state, command)
        case ClaimDispatch():
            return _claim(state, command)
        case SubmitStep():
            return _submit(state, command, answers)
        case SettleStep():
            return _settle(state, command)
        case FinishExecution():
            return _finish(state, command)
        case CancelExecution():
            return _cancel(state, command)
        case _:
            assert_never(command)


def _create(state: State, command: CreateExecution) -> Outcome:
    if state.status is not None:
        return _unchanged(state, Rejected(ErrorCode.CONFLICT, "the execution exists already"))
    return _outcome(
        state,
        Done(),
        events.ExecutionCreated(command.agent_id, command.input),
        events.ExecutionStarted(),
        events.DispatchQueued(command.dispatch_id),
    )


def _claim(state: State, command: ClaimDispatch) -> Outcome:
    if state.is_terminal or state.dispatch is None:
        return _unchanged(state, _gone(state))
    if state.fruitless_attempts >= command.fruitless_attempts_max:
        ended = events.ExecutionFailed(Reason.DISPATCH_EXHAUSTED)
        return _outcome(
            state,
            Rejected(
                ErrorCode.EXECUTION_TERMINAL,
                f"{state.fruitless_attempts} attempts in a row recorded nothing",
            ),
            ended,
            *_cut_off(state, Reason.EXECUTION_FAILED),
        )
    number = state.dispatch.attempt + 1
    lease = Lease(state.dispatch.dispatch_id, number)
    return Outcome(
        (events.DispatchClaimed(lease.dispatch_id, number),),
        Claimed(lease, state.agent_id, state.input),
        Attempt(lease.dispatch_id, number),
    )


def _submit(state: State, command: SubmitStep, answers: Answers) -> Outcome:
    barred = _barred(state, command)
    if barred is not None:
        return _unchanged(state, barred)
    place = _place(state, command)
    if isinstance(place, Rejected):
        return _unchanged(state, place)
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
        return _outcome(
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
            return Outcome((), _replay(step), attempt)
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


def _settle(state: State, command: SettleStep) -> Outcome:
    step = state.steps.get(command.step_id)
    if step is None:
        return _unchanged(state, Rejected(ErrorCode.NOT_FOUND, f"no step {command.step_id!r}"))
    if state.is_terminal:
        return _unchanged(state, _TERMINAL_REPLY)
    if step.status.is_terminal:
        return _unchanged(state, _replay(step))
    if step.status is not StepStatus.EXECUTING:
        return _unchanged(
            state, Rejected(ErrorCode.CONFLICT, f"step {step.step_id} is {step.status}")
        )
    if not _holds(state, command.lease):
        return _unchanged(state, _superseded(command.lease))
    match command.outcome:
        case Returned(value):
            event: events.Event = events.StepSucceeded(step.step_id, value)
        case Raised(error):
            event = events.StepFailed(step.step_id, error)
        case _:
            assert_never(command.outcome)
    return _outcome(state, StepReply(Answer.RECORDED, step.step_id), event)


def _finish(state: State, command: FinishExecution) -> Outcome:
    if state.is_terminal or state.status is None:
        return _unchanged(state, _gone(state))
    if not _holds(state, command.lease):
        return _unchanged(state, _superseded(command.lease))
    passed_over = _passed_over(state)
    match command.outcome:
        case Returned(value):
            ended: events.Event = events.ExecutionCompleted(value, passed_over)
            cut_off = _cut_off(state, Reason.EXECUTION_COMPLETED)
        case GaveUp(reason):
            ended = events.ExecutionFailed(reason, passed_over)
            cut_off = _cut_off(state, Reason.EXECUTION_FAILED)
        case _:
            assert_never(command.outcome)
    return _outcome(state, Done(), ended, *cut_off)


def _cancel(state: State, command: CancelExecution) -> Outcome:
    if state.status is None:
        return _unchanged(state, _gone(state))
    if state.is_terminal:
        return _unchanged(
            state, Rejected(ErrorCode.CONFLICT, f"the execution is already {state.status}")
        )
    return _outcome(
        state,
        Done(),
        events.ExecutionCancelled(command.reason),
        *_cut_off(state, Reason.EXECUTION_CANCELLED),
    )


def _barred(state: State, command: SubmitStep) -> Reply | None:
    """Return the answer to a submit that may not even be looked at, or None."""
    if state.status is None:
        return _gone(state)
    # Before the lease: a handler of a run that ended is told so (protocol 1.3).
    if state.is_terminal:
        return _TERMINAL_REPLY
    if not _holds(state, command.lease) or state.attempt is None:
        return _superseded(command.lease)
    if state.status is not ExecutionStatus.RUNNING:
        return StepReply(Answer.EXECUTION_BLOCKED)
    return None


def _holds(state: State, lease: Lease) -> bool:
    return (
        state.dispatch is not None
        and state.dispatch.status is DispatchStatus.IN_FLIGHT
        and (state.dispatch.dispatch_id, state.dispatch.attempt)
        == (lease.dispatch_id, lease.attempt)
    )


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


def _passed_over(state: State) -> tuple[str, ...]:
    """Return the recorded steps of earlier attempts that this one did not propose, in order."""
    if state.attempt is None:
        return ()
    missed = [
        step
        for step_id, step in state.steps.items()
        if step.proposed_attempt < state.attempt.number and step_id not in state.attempt.proposed
    ]
    return tuple(step.step_id for step in sorted(missed, key=lambda step: step.proposed_seq))


def _cut_off(state: State, reason: Reason) -> tuple[events.Event, ...]:
    """Close the steps whose body was under way when the run ended."""
    under_way = sorted((state.steps[step_id] for step_id in state.executing), key=_order)
    return tuple(
        events.StepCancelled(step.step_id, step_errors.ended(reason)) for step in under_way
    )


def _order(step: Step) -> int:
    return step.proposed_seq


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


def _replay(step: Step) -> StepReply:
    return StepReply(Answer.REPLAY, step.step_id, result_json=step.result, error_json=step.error)


def _denial(step_id: str, reason: str, rule_ids: tuple[str, ...]) -> StepReply:
    return StepReply(
        Answer.DENIED,
        step_id,
        reason=reason or Reason.POLICY_DENIED,
        rule_id=_first(rule_ids),
    )


def _gone(state: State) -> Rejected:
    if state.status is None:
        return Rejected(ErrorCode.NOT_FOUND, f"no execution {state.execution_id!r}")
    return Rejected(ErrorCode.EXECUTION_TERMINAL, f"the execution is already {state.status}")


def _superseded(lease: Lease) -> Rejected:
    return Rejected(
        ErrorCode.LEASE_SUPERSEDED,
        f"attempt {lease.attempt} of dispatch {lease.dispatch_id} no longer holds this run",
    )


def _outcome(state: State, reply: Reply, *happened: events.Event) -> Outcome:
    return Outcome(happened, reply, state.attempt)


def _unchanged(state: State, reply: Reply) -> Outcome:
    return Outcome((), reply, state.attempt)
