"""A call that asks whether its body may run: what becomes of a submit (protocol 5).

It finds its place (`_place`). A call that is recorded already is answered from the record
(`_resubmitted`, protocol 5.1); a new one is allowed, denied, limited or put before people by its
ruling (protocol 5.2). A call that people have granted is ruled once more when it comes back: a
grant lifts the gates that they were asked about, and nothing else.
"""

from dataclasses import dataclass
from typing import TypeVar, assert_never

from proctor.wire.calls import StepReply
from proctor.wire.words import (
    Answer,
    Decision,
    ErrorCode,
    Idempotency,
    Reason,
    StepKind,
    StepStatus,
)
from proctor_kernel.core import approvals, events, flow, identity, replies, resources, step_errors
from proctor_kernel.core.commands import (
    Answers,
    Outcome,
    Question,
    Rejected,
    Reply,
    Ruling,
    SubmitStep,
)
from proctor_kernel.core.state import Attempt, CallKey, Note, State, Step

_Ruled = TypeVar("_Ruled", events.StepAllowed, events.StepDenied, events.StepAwaitingApproval)


def question(state: State, command: SubmitStep) -> Question | None:
    """Return what the policies must be asked before a submit can be decided, or None.

    A replay, a repeated submit and whatever will be refused anyway ask nothing.
    """
    if _barred(state, command) is not None:
        return None
    place = _place(state, command)
    if isinstance(place, Rejected):
        return None
    step = place.step
    if step is None:
        if _retry_refused(state, command) or _unregistered(state, command) is not None:
            return None
    elif not _was_granted(step):
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
        user=state.on_behalf_of,
        bundle=state.bundle,
        lifted=() if step is None else step.lifted,
        may_wait=_may_wait(state),
    )


def decide(state: State, command: SubmitStep, answers: Answers) -> Outcome:
    """Return what a submit comes to. `answers` has a ruling when `question` asked for one."""
    barred = _barred(state, command)
    if barred is not None:
        return replies.unchanged(barred)
    place = _place(state, command)
    if isinstance(place, Rejected):
        return replies.unchanged(place)
    if place.step is not None and not _was_granted(place.step):
        return _resubmitted(
            state, command, place.step, repeated=place.repeated, new_id=answers.new_id
        )
    if place.step is None:
        unregistered = _unregistered(state, command)
        if unregistered is not None:
            return replies.unchanged(unregistered)
    if place.step is None and _retry_refused(state, command):
        ruling = Ruling(
            Decision.DENY,
            step_errors.RETRY_REFUSED_REASON,
            (step_errors.RETRY_REFUSED_RULE,),
            ruleset="",
        )
    else:
        assert answers.ruling is not None, "a call is ruled only with a ruling"
        ruling = answers.ruling
    if ruling.decision is Decision.RATE_LIMITED:
        return _limited(state, command, ruling, answers)
    return _ruled_call(state, command, place, ruling, answers)


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
    known = _known(state.attempt, command.request_id)
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


def _known(attempt: Attempt, request_id: str | None) -> str | None:
    """Return the step that an earlier submit with this request id became, or None."""
    if request_id is None:
        return None
    return attempt.requests.get(request_id)


def _was_granted(step: Step) -> bool:
    return step.status is StepStatus.ALLOWED


def _resubmitted(
    state: State, command: SubmitStep, step: Step, *, repeated: bool, new_id: str
) -> Outcome:
    """Answer a call that is recorded already (protocol 5.1)."""
    note = _note(command, step.step_id, step.occurrence)
    match step.status:
        case StepStatus.SUCCEEDED | StepStatus.FAILED | StepStatus.CANCELLED:
            return Outcome((), replies.replay(step), note)
        case StepStatus.DENIED:
            return Outcome((), _denial(step.step_id, step.reason, step.rule_ids), note)
        case StepStatus.EXECUTING if repeated:
            return Outcome((), StepReply(Answer.PROCEED, step.step_id), note)
        case StepStatus.EXECUTING:
            # The idempotency of this request decides, not the stored one (protocol 5.1).
            if command.idempotency is Idempotency.AT_MOST_ONCE:
                if step.step_id in state.spawning:
                    # Its outcome is not unknown: it is that of the run it waits for.
                    return _told_to_wait(state, command, step)
                return _indeterminate(state, step, note, new_id)
            return _executing(state, command, step.step_id, ())
        case StepStatus.AWAITING_APPROVAL:
            return _told_to_wait(state, command, step)
        case StepStatus.PROPOSED | StepStatus.ALLOWED:
            raise AssertionError("a step is decided with its proposal; a granted one is ruled")
        case _:
            assert_never(step.status)


def _told_to_wait(state: State, command: SubmitStep, step: Step) -> Outcome:
    return Outcome(
        flow.blocked_by(state),
        StepReply(Answer.BLOCKED, step.step_id, approval_id=step.approval_id),
        _note(command, step.step_id, step.occurrence, parked=True),
    )


def _indeterminate(state: State, step: Step, note: Note, new_id: str) -> Outcome:
    """Give up on a body that an attempt which died had under way, and that may not run again."""
    failed = events.StepFailed(step.step_id, step_errors.INDETERMINATE)
    follows = flow.settled(
        state,
        waiting=state.waiting,
        under_way=state.under_way - {step.step_id},
        dispatch_id=new_id,
    )
    reply = StepReply(Answer.REPLAY, step.step_id, error_json=step_errors.INDETERMINATE)
    return Outcome((failed, *follows), reply, note)


def _ruled_call(
    state: State, command: SubmitStep, place: _Place, ruling: Ruling, answers: Answers
) -> Outcome:
    """Record a call that is new, or back from people, with what the policies say (5.2)."""
    proposed: tuple[events.Event, ...] = ()
    if place.step is None:
        proposed = (_proposed(command, place),)
    note = _note(command, place.step_id, place.occurrence) if place.step is not None else None
    if ruling.decision is Decision.ALLOW:
        started = _executing(state, command, place.step_id, ruling.labels)
        allowed = _ruled(events.StepAllowed, place.step_id, ruling)
        return Outcome((*proposed, allowed, *started.events), started.reply)
    if ruling.decision is Decision.REQUIRE_APPROVAL and ruling.gates:
        requested = events.ApprovalRequested(
            approval_id=answers.new_id,
            step_id=place.step_id,
            gates=approvals.gates_to_json(ruling.gates),
            expires_at=answers.now + min(gate.timeout_micros for gate in ruling.gates),
            message="; ".join(gate.message for gate in ruling.gates if gate.message),
        )
        awaiting = _ruled(events.StepAwaitingApproval, place.step_id, ruling)
        return Outcome(
            (*proposed, awaiting, requested, *flow.blocked_by(state)),
            StepReply(Answer.BLOCKED, place.step_id, approval_id=answers.new_id),
        )
    return Outcome(
        (*proposed, _ruled(events.StepDenied, place.step_id, ruling)),
        _denial(place.step_id, ruling.reason, ruling.rule_ids),
        note,
    )


def _proposed(command: SubmitStep, place: _Place) -> events.StepProposed:
    return events.StepProposed(
        step_id=place.step_id,
        kind=command.kind,
        target=command.target,
        args=command.args,
        args_hash=command.args_hash,
        occurrence=place.occurrence,
        idempotency=command.idempotency,
        request_id=command.request_id,
    )


def _executing(state: State, command: SubmitStep, step_id: str, labels: tuple[str, ...]) -> Outcome:
    """Tell a body to run; what it may change of the run's resources gets a new generation."""
    named = () if command.kind is StepKind.LLM_CALL else command.resources
    changed = resources.touched(state.resources, command.kind, named) if state.resources else ()
    event = events.StepExecuting(
        step_id,
        labels,
        request_id=command.request_id,
        resources=tuple(each.key for each in changed if each.key in named),
        generations=resources.generations(changed),
    )
    views = resources.views(changed, named)
    return Outcome((event,), StepReply(Answer.PROCEED, step_id, resources=views))


def _limited(state: State, command: SubmitStep, ruling: Ruling, answers: Answers) -> Outcome:
    """Refuse a call over a limit, or put the run off once, until there is room (5.2)."""
    limited = events.StepRateLimited(
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
    if ruling.wait_until is not None and _may_wait(state):
        return replies.outcome(
            StepReply(Answer.BLOCKED, reason=Reason.RATE_LIMIT_EXCEEDED),
            limited,
            *flow.put_off(state, answers.new_id, ruling.wait_until),
        )
    return replies.outcome(
        StepReply(Answer.RATE_LIMITED, reason=ruling.reason, rule_id=_first(ruling.rule_ids)),
        limited,
    )


def _barred(state: State, command: SubmitStep) -> Reply | None:
    """Return the answer to a submit that may not even be looked at, or None.

    A run that is blocked still takes the calls that its attempt made at the same moment.
    """
    if state.status is None:
        return replies.gone(state)
    # Before the lease: a handler of a run that ended is told so (protocol 1.3).
    if state.is_terminal:
        return replies.TERMINAL
    if not replies.holds(state, command.lease) or state.attempt is None:
        return replies.superseded(command.lease)
    return None


def _may_wait(state: State) -> bool:
    """True when a run can be put off: nothing of it is under way that this would cut off."""
    return not state.executing and not state.awaiting


def _unregistered(state: State, command: SubmitStep) -> Rejected | None:
    for key in command.resources:
        if key not in state.resources:
            return Rejected(ErrorCode.VALIDATION_ERROR, f"no resource {key!r} is registered")
    return None


def _retry_refused(state: State, command: SubmitStep) -> bool:
    return (
        command.idempotency is Idempotency.AT_MOST_ONCE
        and _call_key(command) in state.indeterminate
    )


def _note(command: SubmitStep, step_id: str, occurrence: int, *, parked: bool = False) -> Note:
    return Note(step_id, _call_key(command), occurrence, command.request_id, parked)


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


def _first(rule_ids: tuple[str, ...]) -> str:
    return rule_ids[0] if rule_ids else ""


def _denial(step_id: str, reason: str, rule_ids: tuple[str, ...]) -> StepReply:
    return StepReply(
        Answer.DENIED,
        step_id,
        reason=reason or Reason.POLICY_DENIED,
        rule_id=_first(rule_ids),
    )
