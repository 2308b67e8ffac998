"""Deliveries of a run to its agent: who acts for it, and what comes of silence (protocol 6)."""

from typing import assert_never

from proctor.wire.calls import Lease
from proctor.wire.words import DispatchStatus, ErrorCode, ExecutionStatus, Reason
from proctor_kernel.core import events, flow, replies
from proctor_kernel.core.commands import (
    AcknowledgeDispatch,
    Answers,
    ClaimDispatch,
    Claimed,
    Done,
    FailDispatch,
    Outcome,
    Rejected,
    Suspend,
    Suspended,
)
from proctor_kernel.core.state import State

Delivering = ClaimDispatch | AcknowledgeDispatch | FailDispatch | Suspend


def decide(state: State, command: Delivering, answers: Answers) -> Outcome:
    """Return what becomes of a delivery."""
    match command:
        case ClaimDispatch():
            return _claim(state, command, answers)
        case AcknowledgeDispatch(lease):
            if not _in_flight(state, lease):
                return replies.unchanged(replies.superseded(lease))
            return replies.outcome(Done(), events.DispatchAcked(lease.dispatch_id, lease.attempt))
        case FailDispatch():
            return _fail(state, command)
        case Suspend(lease):
            barred = replies.barred(state, lease)
            if barred is not None:
                return replies.unchanged(barred)
            if not state.waiting:
                return replies.unchanged(Suspended(suspended=False))
            return replies.outcome(Suspended(suspended=True), *flow.suspended(state))
        case _:
            assert_never(command)


def _claim(state: State, command: ClaimDispatch, answers: Answers) -> Outcome:
    dispatch = state.dispatch
    if state.is_terminal or dispatch is None:
        return replies.unchanged(replies.gone(state))
    expected = command.expected
    if expected is not None and expected != Lease(dispatch.dispatch_id, dispatch.attempt):
        return replies.unchanged(Rejected(ErrorCode.CONFLICT, "another attempt has begun"))
    if state.status is ExecutionStatus.BLOCKED:
        # It waits for somebody: a handler that fell silent has nothing to do for it.
        return replies.outcome(
            Rejected(ErrorCode.CONFLICT, "the execution is blocked"),
            *flow.abandoned(state, answers.new_id),
        )
    if dispatch.status is DispatchStatus.EXHAUSTED:
        return replies.unchanged(Rejected(ErrorCode.CONFLICT, "there is nothing to deliver"))
    if state.fruitless_attempts >= command.fruitless_attempts_max:
        return replies.outcome(
            Rejected(
                ErrorCode.EXECUTION_TERMINAL,
                f"{state.fruitless_attempts} attempts in a row recorded nothing",
            ),
            *_exhausted(state),
        )
    lease = Lease(dispatch.dispatch_id, dispatch.attempt + 1)
    return replies.outcome(
        Claimed(lease, state.agent_id, state.input),
        events.DispatchClaimed(lease.dispatch_id, lease.attempt, command.lease_micros),
    )


def _fail(state: State, command: FailDispatch) -> Outcome:
    lease = command.lease
    if not _in_flight(state, lease):
        return replies.unchanged(replies.superseded(lease))
    failed = events.DispatchFailed(
        lease.dispatch_id, lease.attempt, command.error, command.retry_at
    )
    if state.fruitless_attempts >= command.fruitless_attempts_max:
        return replies.outcome(Done(), failed, *_exhausted(state))
    return replies.outcome(Done(), failed)


def _exhausted(state: State) -> tuple[events.Event, ...]:
    return (
        events.ExecutionFailed(Reason.DISPATCH_EXHAUSTED),
        *flow.closing(state, Reason.EXECUTION_FAILED),
    )


def _in_flight(state: State, lease: Lease) -> bool:
    return not state.is_terminal and state.status is not None and replies.holds(state, lease)
