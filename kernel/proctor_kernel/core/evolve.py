"""The one way a run changes: `evolve(state, record)` is the next state.

It decides nothing. It looks the move up in `transitions` and writes down what the event says,
so folding a log gives the state that the kernel had.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, assert_never

from immutables import Map

from proctor.wire.words import DispatchStatus, StepKind, StepStatus
from proctor_kernel.core import events, transitions
from proctor_kernel.core.chain import Record
from proctor_kernel.core.state import Dispatch, State, Step, Tally
from proctor_kernel.core.step_errors import is_indeterminate

Changes = dict[str, Any]
"""Fields of a state that an event changes -> their values after it."""


class IllegalTransition(Exception):
    """An event that the tables do not allow in this state. The log or the kernel is broken."""


def evolve(state: State, record: Record) -> State:
    """Return the state after `record`.

    Raises:
        IllegalTransition: the move has no row, or the record does not follow the last one.
    """
    if record.execution_id != state.execution_id or record.seq != state.seq + 1:
        raise IllegalTransition(
            f"event {record.execution_id}/{record.seq} cannot follow "
            f"{state.execution_id}/{state.seq}"
        )
    event = record.event
    required = transitions.EXECUTION_MUST_BE.get(type(event))
    if required is not None and state.status not in required:
        raise IllegalTransition(f"{events.name(event)} while the execution is {state.status}")
    return replace(
        state,
        seq=record.seq,
        head=record.hash,
        payload_bytes=state.payload_bytes + len(record.payload),
        **_changes(state, record),
    )


def _changes(state: State, record: Record) -> Changes:
    event = record.event
    match event:
        case (
            events.ExecutionCreated()
            | events.ExecutionStarted()
            | events.ExecutionCompleted()
            | events.ExecutionFailed()
            | events.ExecutionCancelled()
        ):
            return _execution(state, event, record.at)
        case events.DispatchQueued() | events.DispatchClaimed():
            return _dispatch(state, event, record.at)
        case events.StepProposed():
            return _propose(state, event, record.seq)
        case events.StepRateLimited():
            return {}
        case (
            events.StepAllowed()
            | events.StepDenied()
            | events.StepExecuting()
            | events.StepSucceeded()
            | events.StepFailed()
            | events.StepCancelled()
        ):
            return _step(state, event, record.at)
        case _:
            assert_never(event)


def fold(execution_id: str, records: Iterable[Record]) -> State:
    """Return the run that `records` tell, from its first event on.

    The memory of the attempt is not in the log, so `attempt` is None.
    """
    state = State(execution_id)
    for record in records:
        state = evolve(state, record)
    return state


def _execution(state: State, event: events.ExecutionEvent, at: int) -> Changes:
    status = transitions.EXECUTION.get(state.status, {}).get(type(event))
    if status is None:
        raise IllegalTransition(f"{events.name(event)} while the execution is {state.status}")
    dispatch = state.dispatch
    if status.is_terminal and dispatch is not None:
        dispatch = replace(dispatch, status=_dispatch_status(dispatch, event))
    changes: Changes = {"status": status, "dispatch": dispatch, "updated_at": at}
    match event:
        case events.ExecutionCreated():
            changes |= {"agent_id": event.agent_id, "input": event.input, "created_at": at}
        case events.ExecutionStarted():
            changes |= {"started_at": at}
        case events.ExecutionCompleted():
            changes |= {"output": event.output, "passed_over": event.passed_over}
        case events.ExecutionFailed():
            changes |= {"failure_reason": event.reason, "passed_over": event.passed_over}
        case events.ExecutionCancelled():
            changes |= {"failure_reason": event.reason}
        case _:
            assert_never(event)
    return changes


def _dispatch(state: State, event: events.DispatchEvent, at: int) -> Changes:
    last = state.dispatch
    status = _dispatch_status(last, event)
    match event:
        case events.DispatchQueued():
            return {"dispatch": Dispatch(event.dispatch_id, status), "updated_at": at}
        case events.DispatchClaimed():
            if last is None or (last.dispatch_id, last.attempt + 1) != (
                event.dispatch_id,
                event.attempt,
            ):
                raise IllegalTransition(f"attempt {event.attempt} cannot follow {last}")
            return {
                "dispatch": Dispatch(event.dispatch_id, status, event.attempt),
                "requests": Map(),
                "fruitless_attempts": state.fruitless_attempts + 1,
                "updated_at": at,
            }
        case _:
            assert_never(event)


def _dispatch_status(last: Dispatch | None, event: events.Event) -> DispatchStatus:
    current = None if last is None else last.status
    status = transitions.DISPATCH.get(current, {}).get(type(event))
    if status is None:
        raise IllegalTransition(f"{events.name(event)} while the dispatch is {current}")
    return status


def _propose(state: State, event: events.StepProposed, seq: int) -> Changes:
    status = _step_status(state.steps.get(event.step_id), event)
    step = Step(
        step_id=event.step_id,
        kind=event.kind,
        target=event.target,
        args=event.args,
        args_hash=event.args_hash,
        occurrence=event.occurrence,
        idempotency=event.idempotency,
        status=status,
        proposed_seq=seq,
        proposed_attempt=0 if state.dispatch is None else state.dispatch.attempt,
    )
    return {
        "steps": state.steps.set(step.step_id, step),
        "requests": _with_request(state, event.request_id, step.step_id),
        "fruitless_attempts": 0,
    }


def _step(
    state: State,
    event: events.StepAllowed
    | events.StepDenied
    | events.StepExecuting
    | events.StepSucceeded
    | events.StepFailed
    | events.StepCancelled,
    at: int,
) -> Changes:
    before = state.steps.get(event.step_id)
    status = _step_status(before, event)
    assert before is not None, "only StepProposed has a row for a step that does not exist"
    # Telling a body to run again records nothing new: a body that kills its process each time
    # must use the attempts up.
    is_again = isinstance(event, events.StepExecuting) and before.started_at is not None
    changes: Changes = {} if is_again else {"fruitless_attempts": 0}
    match event:
        case events.StepAllowed():
            step = replace(before, status=status, **_ruling(event))
        case events.StepDenied():
            step = replace(before, status=status, completed_at=at, **_ruling(event))
            changes["tally"] = replace(state.tally, denials=state.tally.denials + 1)
        case events.StepExecuting():
            started_at = at if before.started_at is None else before.started_at
            step = replace(
                before, status=status, started_at=started_at, labels=event.labels or before.labels
            )
            changes["tally"] = _started(state.tally, before, event.labels)
            changes["requests"] = _with_request(state, event.request_id, step.step_id)
        case events.StepSucceeded():
            step = replace(before, status=status, result=event.result, completed_at=at)
            changes["finished"] = state.finished.set(len(state.finished), step.step_id)
        case events.StepFailed() | events.StepCancelled():
            step = replace(before, status=status, error=event.error, completed_at=at)
            if is_indeterminate(event.error):
                changes["indeterminate"] = state.indeterminate | {step.call_key}
        case _:
            assert_never(event)
    changes["steps"] = state.steps.set(step.step_id, step)
    if status is StepStatus.EXECUTING:
        changes["executing"] = state.executing | {step.step_id}
    elif step.step_id in state.executing:
        changes["executing"] = state.executing - {step.step_id}
    return changes


def _ruling(event: events.StepAllowed | events.StepDenied) -> Changes:
    return {
        "decision": event.decision,
        "reason": event.reason,
        "rule_ids": event.rule_ids,
        "ruleset": event.ruleset,
        "policy_micros": event.policy_micros,
        "shadow": event.shadow,
    }


def _step_status(before: Step | None, event: events.StepEvent) -> StepStatus:
    current = None if before is None else before.status
    status = transitions.STEP.get(current, {}).get(type(event))
    if status is None:
        raise IllegalTransition(f"{events.name(event)} while step {event.step_id} is {current}")
    return status


def _with_request(state: State, request_id: str | None, step_id: str) -> Map[str, str]:
    return state.requests if request_id is None else state.requests.set(request_id, step_id)


def _started(tally: Tally, step: Step, labels: tuple[str, ...]) -> Tally:
    """Count a step that starts; one that starts again was counted before."""
    if step.started_at is not None:
        return replace(tally, labels=tally.labels.union(labels))
    is_tool = step.kind is StepKind.TOOL_CALL
    return replace(
        tally,
        tools=tally.tools | {step.target} if is_tool else tally.tools,
        labels=tally.labels.union(labels),
        steps=tally.steps + 1,
        tool_calls=tally.tool_calls + is_tool,
        llm_calls=tally.llm_calls + (step.kind is StepKind.LLM_CALL),
        calls=tally.calls.set(step.target, tally.calls.get(step.target, 0) + 1),
    )
