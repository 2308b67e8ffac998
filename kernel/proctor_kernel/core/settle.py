"""The outcome of a body, and of a run that a body started and waits for."""

from typing import assert_never

from proctor.wire.calls import Capture, CaptureFailure, StepReply
from proctor.wire.words import Answer, ErrorCode, StepKind, StepStatus
from proctor_kernel.core import events, flow, replies, resources, usage
from proctor_kernel.core.commands import (
    Answers,
    Done,
    Outcome,
    Raised,
    Rejected,
    Returned,
    SettleStep,
    SettleSubagent,
    Spawned,
    SpawnExecution,
)
from proctor_kernel.core.state import State, Step

Settling = SettleStep | SpawnExecution | SettleSubagent


def decide(state: State, command: Settling, answers: Answers) -> Outcome:
    """Return what becomes of a step whose body was told to run."""
    match command:
        case SettleStep():
            return _settle(state, command, answers)
        case SpawnExecution():
            return _spawn(state, command)
        case SettleSubagent():
            return _settle_subagent(state, command, answers)
        case _:
            assert_never(command)


def _settle(state: State, command: SettleStep, answers: Answers) -> Outcome:
    step = state.steps.get(command.step_id)
    if step is None:
        return replies.unchanged(Rejected(ErrorCode.NOT_FOUND, f"no step {command.step_id!r}"))
    if state.is_terminal:
        return replies.unchanged(replies.TERMINAL)
    if step.status.is_terminal:
        return replies.unchanged(replies.replay(step))
    if step.status is not StepStatus.EXECUTING:
        return replies.unchanged(
            Rejected(ErrorCode.CONFLICT, f"step {step.step_id} is {step.status}")
        )
    # A tool that was at work when its run was told to stop can still report (protocol 1.3).
    if not replies.is_latest(state, command.lease):
        return replies.unchanged(replies.superseded(command.lease))
    done = _outcome(step, command.outcome)
    return replies.outcome(
        StepReply(Answer.RECORDED, step.step_id),
        done,
        *_captured(state, step, command.captures, command.capture_failures),
        *flow.settled(
            state,
            waiting=state.waiting - {step.step_id},
            under_way=state.under_way - {step.step_id},
            dispatch_id=answers.new_id,
        ),
    )


def _outcome(step: Step, outcome: Returned | Raised) -> events.Event:
    match outcome:
        case Returned(value):
            if step.kind is StepKind.LLM_CALL:
                return events.StepSucceeded(step.step_id, value, *usage.tokens_of(value))
            return events.StepSucceeded(step.step_id, value)
        case Raised(error):
            return events.StepFailed(step.step_id, error)
        case _:
            assert_never(outcome)


def _captured(
    state: State,
    step: Step,
    captures: tuple[Capture, ...],
    failures: tuple[CaptureFailure, ...],
) -> tuple[events.Event, ...]:
    if not captures and not failures:
        return ()
    return resources.captured(
        state.resources,
        captures,
        failures,
        covered_seq=state.seq + 1,
        writing=writing(state, without=step.step_id),
    )


def writing(state: State, *, without: str | None = None) -> frozenset[str]:
    """Return the resources that a call under way, other than `without`, may be changing."""
    at_work = [state.steps[each] for each in state.executing if each != without]
    return frozenset(
        each.key
        for step in at_work
        for each in resources.touched(state.resources, step.kind, step.resources)
    )


def _spawn(state: State, command: SpawnExecution) -> Outcome:
    if state.status is None or state.is_terminal:
        gone = replies.gone(state)
        code = gone.code if state.status is None else ErrorCode.CONFLICT
        return replies.unchanged(Rejected(code, gone.message))
    if command.session is not None and command.session == state.session:
        return replies.unchanged(
            Rejected(
                ErrorCode.VALIDATION_ERROR,
                "a subagent cannot be in its parent's session: it would wait for its parent",
            )
        )
    step = state.steps.get(command.step_id)
    if step is None:
        return replies.unchanged(
            Rejected(ErrorCode.VALIDATION_ERROR, f"no step {command.step_id!r} in that execution")
        )
    if step.child is not None:
        return replies.unchanged(Spawned(step.child))
    if step.status is not StepStatus.EXECUTING:
        return replies.unchanged(
            Rejected(ErrorCode.CONFLICT, f"step {step.step_id} is {step.status}")
        )
    return replies.outcome(
        Spawned(command.execution_id), events.StepSpawned(step.step_id, command.execution_id)
    )


def _settle_subagent(state: State, command: SettleSubagent, answers: Answers) -> Outcome:
    step = state.steps.get(command.step_id)
    if (
        step is None
        or step.child != command.execution_id
        or state.is_terminal
        or step.status is not StepStatus.EXECUTING
    ):
        return replies.unchanged(Done())
    return replies.outcome(
        Done(),
        _outcome(step, command.outcome),
        *flow.settled(
            state,
            waiting=state.waiting - {step.step_id},
            under_way=state.under_way - {step.step_id},
            dispatch_id=answers.new_id,
        ),
    )
