"""What happens when something is asked of a run. Start here.

`question(state, command)` says what the core cannot know by itself (only a new call has to
ask the policies). `decide(state, command, answers)` gives the events to record and the reply.
Both are pure: the kernel asks, records, and replies, in that order.

A tool call is two commands: `SubmitStep` (in `submit.py`) and, when its body has run, `SettleStep`.
"""

from typing import assert_never

from proctor.wire.calls import Lease, StepReply
from proctor.wire.words import (
    Answer,
    ErrorCode,
    Reason,
    StepStatus,
)
from proctor_kernel.core import events, replies, step_errors, submit
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
    Returned,
    SettleStep,
    SubmitStep,
)
from proctor_kernel.core.state import Attempt, State, Step


def question(state: State, command: Command) -> Question | None:
    """Return what the policies must be asked before `command` can be decided, or None."""
    return submit.question(state, command) if isinstance(command, SubmitStep) else None


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
            return submit.decide(state, command, answers)
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
        return replies.unchanged(
            state, Rejected(ErrorCode.CONFLICT, "the execution exists already")
        )
    return replies.outcome(
        state,
        Done(),
        events.ExecutionCreated(command.agent_id, command.input),
        events.ExecutionStarted(),
        events.DispatchQueued(command.dispatch_id),
    )


def _claim(state: State, command: ClaimDispatch) -> Outcome:
    if state.is_terminal or state.dispatch is None:
        return replies.unchanged(state, replies.gone(state))
    if state.fruitless_attempts >= command.fruitless_attempts_max:
        ended = events.ExecutionFailed(Reason.DISPATCH_EXHAUSTED)
        return replies.outcome(
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


def _settle(state: State, command: SettleStep) -> Outcome:
    step = state.steps.get(command.step_id)
    if step is None:
        return replies.unchanged(
            state, Rejected(ErrorCode.NOT_FOUND, f"no step {command.step_id!r}")
        )
    if state.is_terminal:
        return replies.unchanged(state, replies.TERMINAL)
    if step.status.is_terminal:
        return replies.unchanged(state, replies.replay(step))
    if step.status is not StepStatus.EXECUTING:
        return replies.unchanged(
            state, Rejected(ErrorCode.CONFLICT, f"step {step.step_id} is {step.status}")
        )
    if not replies.holds(state, command.lease):
        return replies.unchanged(state, replies.superseded(command.lease))
    match command.outcome:
        case Returned(value):
            event: events.Event = events.StepSucceeded(step.step_id, value)
        case Raised(error):
            event = events.StepFailed(step.step_id, error)
        case _:
            assert_never(command.outcome)
    return replies.outcome(state, StepReply(Answer.RECORDED, step.step_id), event)


def _finish(state: State, command: FinishExecution) -> Outcome:
    if state.is_terminal or state.status is None:
        return replies.unchanged(state, replies.gone(state))
    if not replies.holds(state, command.lease):
        return replies.unchanged(state, replies.superseded(command.lease))
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
    return replies.outcome(state, Done(), ended, *cut_off)


def _cancel(state: State, command: CancelExecution) -> Outcome:
    if state.status is None:
        return replies.unchanged(state, replies.gone(state))
    if state.is_terminal:
        return replies.unchanged(
            state, Rejected(ErrorCode.CONFLICT, f"the execution is already {state.status}")
        )
    return replies.outcome(
        state,
        Done(),
        events.ExecutionCancelled(command.reason),
        *_cut_off(state, Reason.EXECUTION_CANCELLED),
    )


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
