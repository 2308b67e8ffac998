"""Answers that every command may come to, and who may ask. Used by all deciders."""

from typing import Final

from proctor.wire.calls import Lease, StepReply
from proctor.wire.words import Answer, DispatchStatus, ErrorCode
from proctor_kernel.core import events
from proctor_kernel.core.commands import Outcome, Rejected, Reply
from proctor_kernel.core.state import State, Step

TERMINAL: Final = StepReply(Answer.EXECUTION_TERMINAL)
"""To a handler of a run that has ended."""


def holds(state: State, lease: Lease) -> bool:
    """True when `lease` is the attempt that the run belongs to now."""
    return is_latest(state, lease) and _status(state) is DispatchStatus.IN_FLIGHT


def is_latest(state: State, lease: Lease) -> bool:
    """True when no attempt began after `lease`, also when it was told to stop (protocol 6)."""
    return state.dispatch is not None and (
        state.dispatch.dispatch_id,
        state.dispatch.attempt,
    ) == (lease.dispatch_id, lease.attempt)


def _status(state: State) -> DispatchStatus | None:
    return None if state.dispatch is None else state.dispatch.status


def barred(state: State, lease: Lease) -> Rejected | None:
    """Return why whoever acts under `lease` may not, or None."""
    if state.is_terminal or state.status is None:
        return gone(state)
    if not holds(state, lease):
        return superseded(lease)
    return None


def replay(step: Step) -> StepReply:
    """Return the recorded outcome of a step."""
    return StepReply(Answer.REPLAY, step.step_id, result_json=step.result, error_json=step.error)


def gone(state: State) -> Rejected:
    """Return why nothing can be asked of a run that does not exist or has ended."""
    if state.status is None:
        return Rejected(ErrorCode.NOT_FOUND, f"no execution {state.execution_id!r}")
    return Rejected(ErrorCode.EXECUTION_TERMINAL, f"the execution is already {state.status}")


def superseded(lease: Lease) -> Rejected:
    """Return why an attempt may not act any more."""
    return Rejected(
        ErrorCode.LEASE_SUPERSEDED,
        f"attempt {lease.attempt} of dispatch {lease.dispatch_id} no longer holds this run",
    )


def outcome(reply: Reply, *happened: events.Event) -> Outcome:
    """Return what happened, and the reply to give once it is recorded."""
    return Outcome(happened, reply)


def unchanged(reply: Reply) -> Outcome:
    """Return a reply to something that changed nothing."""
    return Outcome((), reply)
