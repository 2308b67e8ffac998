"""What happens when something is asked of a run. Start here.

`question(state, command)` says what the core cannot know by itself (only a new call has to
ask the policies). `decide(state, command, answers)` gives the events to record and the reply.
Both are pure: the kernel asks, records, and replies, in that order.

A tool call is two commands: `SubmitStep` (in `submit`) and, when its body has run, `SettleStep`
(in `settle`). Deliveries are in `deliver`, people's decisions in `approve`, resources in `hold`.
"""

from typing import assert_never

from proctor.wire.words import ErrorCode, Reason
from proctor_kernel.core import approve, deliver, events, flow, hold, replies, settle, submit
from proctor_kernel.core.commands import (
    AcknowledgeDispatch,
    Answers,
    BindResource,
    CancelExecution,
    ClaimDispatch,
    Command,
    CreateExecution,
    DecideApproval,
    Done,
    FailDispatch,
    FinishExecution,
    ForkExecution,
    GaveUp,
    Outcome,
    PublishCheckpoints,
    Question,
    RegisterResource,
    Rejected,
    Returned,
    SettleStep,
    SettleSubagent,
    SpawnExecution,
    StartExecution,
    SubmitStep,
    Suspend,
)
from proctor_kernel.core.state import State


def question(state: State, command: Command) -> Question | None:
    """Return what the policies must be asked before `command` can be decided, or None."""
    return submit.question(state, command) if isinstance(command, SubmitStep) else None


def decide(state: State, command: Command, answers: Answers) -> Outcome:
    """Return the events that `command` causes in `state`, and the reply to give once recorded.

    `answers.ruling` must be there when `question` asked for it.
    """
    match command:
        case CreateExecution():
            return _create(state, command, answers)
        case ForkExecution():
            return _fork(state, command, answers)
        case StartExecution():
            return _start(state, command, answers)
        case ClaimDispatch() | AcknowledgeDispatch() | FailDispatch() | Suspend():
            return deliver.decide(state, command, answers)
        case SubmitStep():
            return submit.decide(state, command, answers)
        case SettleStep() | SpawnExecution() | SettleSubagent():
            return settle.decide(state, command, answers)
        case DecideApproval():
            return approve.decide(state, command, answers)
        case RegisterResource() | BindResource() | PublishCheckpoints():
            return hold.decide(state, command)
        case FinishExecution():
            return _finish(state, command)
        case CancelExecution():
            return _cancel(state, command)
        case _:
            assert_never(command)


def _create(state: State, command: CreateExecution, answers: Answers) -> Outcome:
    if state.status is not None:
        return replies.unchanged(Rejected(ErrorCode.CONFLICT, "the execution exists already"))
    spawned_by = command.spawned_by or (None, None)
    created = events.ExecutionCreated(
        command.agent_id,
        command.input,
        session=command.session,
        parent_execution_id=command.parent_execution_id,
        idempotency_key=command.idempotency_key,
        spawned_by_execution=spawned_by[0],
        spawned_by_step=spawned_by[1],
        created_by=command.created_by,
        on_behalf_of=command.on_behalf_of,
        deadline_at=command.deadline_at,
    )
    if command.session is not None:
        return replies.outcome(Done(), created)
    return replies.outcome(
        Done(),
        created,
        events.ExecutionStarted(command.parent_execution_id),
        *command.inherited,
        events.DispatchQueued(answers.new_id),
    )


def _fork(state: State, command: ForkExecution, answers: Answers) -> Outcome:
    if state.status is not None:
        return replies.unchanged(Rejected(ErrorCode.CONFLICT, "the execution exists already"))
    copy = (command.created, command.forked, *command.copied)
    if command.session is not None:
        return replies.outcome(Done(), *copy)
    return replies.outcome(
        Done(), *copy, events.ExecutionStarted(), events.DispatchQueued(answers.new_id)
    )


def _start(state: State, command: StartExecution, answers: Answers) -> Outcome:
    if state.status is None or state.is_terminal:
        return replies.unchanged(replies.gone(state))
    if state.started_at is not None:
        return replies.unchanged(Rejected(ErrorCode.CONFLICT, "the execution has started"))
    return replies.outcome(
        Done(),
        events.ExecutionStarted(command.parent_execution_id, command.carried),
        *command.inherited,
        events.DispatchQueued(answers.new_id),
    )


def _finish(state: State, command: FinishExecution) -> Outcome:
    barred = replies.barred(state, command.lease)
    if barred is not None:
        return replies.unchanged(barred)
    passed_over = _passed_over(state)
    match command.outcome:
        case Returned(value, left):
            ended: events.Event = events.ExecutionCompleted(value, passed_over, left)
            closing = flow.closing(state, Reason.EXECUTION_COMPLETED)
        case GaveUp(reason):
            ended = events.ExecutionFailed(reason, passed_over)
            closing = flow.closing(state, Reason.EXECUTION_FAILED)
        case _:
            assert_never(command.outcome)
    return replies.outcome(Done(), ended, *closing)


def _cancel(state: State, command: CancelExecution) -> Outcome:
    if state.status is None:
        return replies.unchanged(replies.gone(state))
    if state.is_terminal:
        return replies.unchanged(
            Rejected(ErrorCode.CONFLICT, f"the execution is already {state.status}")
        )
    return replies.outcome(
        Done(),
        events.ExecutionCancelled(command.reason),
        *flow.closing(state, Reason.EXECUTION_CANCELLED),
    )


def _passed_over(state: State) -> tuple[str, ...]:
    """Return the recorded steps of earlier attempts that this one did not propose, in order."""
    attempt = state.attempt
    if attempt is None:
        return ()
    missed = [
        step
        for step_id, step in state.steps.items()
        if step.proposed_attempt < state.attempts and step_id not in attempt.proposed
    ]
    return tuple(step.step_id for step in sorted(missed, key=lambda step: step.proposed_seq))
