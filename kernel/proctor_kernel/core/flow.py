"""When a run stops to wait, when it goes on, and what is closed when it ends. Pure.

A run waits while a step of it waits for people or for another run. Calls under way beside it are
not cut off: only when nothing else is at work does it block, and only then, once nothing waits
any more, is it given to its agent again, from the top (protocol 4.4).
"""

from proctor.wire.words import DispatchStatus, ExecutionStatus, Reason
from proctor_kernel.core import events, step_errors
from proctor_kernel.core.state import State, Step


def settled(
    state: State, *, waiting: frozenset[str], under_way: frozenset[str], dispatch_id: str
) -> tuple[events.Event, ...]:
    """Return what follows for the run when `waiting` and `under_way` are what is left of it.

    `dispatch_id` is for the next delivery, if there is one.
    """
    parked = state.attempt is not None and state.attempt.parked
    blocked = state.status is ExecutionStatus.BLOCKED
    if not blocked and not (state.status is ExecutionStatus.RUNNING and parked):
        return ()
    if under_way and has_live_attempt(state):
        return ()
    if waiting:
        return () if blocked else (events.ExecutionBlocked(),)
    resumed = (events.ExecutionResumed(),) if blocked else ()
    return (
        *_discarded(state, Reason.CONTINUED),
        *resumed,
        events.DispatchQueued(dispatch_id),
    )


def blocked_by(state: State) -> tuple[events.Event, ...]:
    """Return the block of a run of which one more step waits now, if nothing is under way."""
    if state.status is ExecutionStatus.RUNNING and not state.under_way:
        return (events.ExecutionBlocked(),)
    return ()


def suspended(state: State) -> tuple[events.Event, ...]:
    """Return the events of an attempt that stops because all it has under way waits."""
    blocked: tuple[events.Event, ...] = ()
    if state.status is ExecutionStatus.RUNNING:
        blocked = (events.ExecutionBlocked(Reason.AWAITING_STEPS),)
    return (*blocked, *_discarded(state, Reason.SUSPENDED))


def abandoned(state: State, dispatch_id: str) -> tuple[events.Event, ...]:
    """Return what follows when the attempt of a blocked run fell silent."""
    gone_on: tuple[events.Event, ...] = ()
    if not state.waiting:
        gone_on = (events.ExecutionResumed(), events.DispatchQueued(dispatch_id))
    return (*_discarded(state, Reason.LEASE_EXPIRED), *gone_on)


def put_off(state: State, dispatch_id: str, until: int) -> tuple[events.Event, ...]:
    """Return the events of a run that stops until a limit has room again."""
    return (
        *_discarded(state, Reason.RATE_LIMIT_EXCEEDED),
        events.DispatchQueued(dispatch_id, until),
    )


def closing(state: State, reason: Reason) -> tuple[events.Event, ...]:
    """Close what waits for people and what is under way when a run ends for `reason`."""
    happened: list[events.Event] = []
    for step in in_order(state, state.awaiting):
        assert step.approval_id is not None, "what waits for people has an approval"
        happened.append(events.ApprovalExpired(step.approval_id, step.step_id, reason))
        happened.append(denied(step, reason))
    happened += [
        events.StepCancelled(step.step_id, step_errors.ended(reason))
        for step in in_order(state, state.executing)
    ]
    return tuple(happened)


def denied(step: Step, reason: str) -> events.StepDenied:
    """Return the denial of a step that waited for people."""
    assert step.decision is not None, "a step that waits was decided"
    return events.StepDenied(
        step.step_id,
        step.decision,
        reason,
        step.rule_ids,
        step.ruleset,
        policy_micros=step.policy_micros,
        shadow=step.shadow,
    )


def in_order(state: State, step_ids: frozenset[str]) -> list[Step]:
    """Return steps in the order in which they were proposed."""
    return sorted((state.steps[each] for each in step_ids), key=lambda step: step.proposed_seq)


def has_live_attempt(state: State) -> bool:
    """True while a handler may be at work on the run."""
    return state.dispatch is not None and state.dispatch.status is DispatchStatus.IN_FLIGHT


def _discarded(state: State, reason: Reason) -> tuple[events.Event, ...]:
    if state.dispatch is None or state.dispatch.status is DispatchStatus.EXHAUSTED:
        return ()
    return (events.DispatchDiscarded(state.dispatch.dispatch_id, reason),)
