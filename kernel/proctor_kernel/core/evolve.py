"""The one way a run changes: `evolve(state, record)` is the next state.

It decides nothing. It looks the move up in `transitions` and writes down what the event says,
so folding a log gives the state that the kernel had.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, assert_never

from proctor.wire.words import DispatchStatus, StepKind, StepStatus
from proctor_kernel.core import event_json, events, resources, transitions
from proctor_kernel.core.approvals import Approval, Vote, gates_from_json
from proctor_kernel.core.chain import Record
from proctor_kernel.core.state import Attempt, Dispatch, Note, State, Step, Tally
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
        raise IllegalTransition(f"{event_json.name(event)} while the execution is {state.status}")
    return state.changed(
        seq=record.seq,
        head=record.hash,
        payload_bytes=state.payload_bytes + len(record.payload),
        **_changes(state, record),
    )


def _changes(state: State, record: Record) -> Changes:
    event = record.event
    # The steps first: they are nearly all of a log.
    match event:
        case events.StepProposed():
            return _propose(state, event, record.seq)
        case events.StepRateLimited():
            return {}
        case (
            events.StepAllowed()
            | events.StepDenied()
            | events.StepAwaitingApproval()
            | events.StepExecuting()
            | events.StepSpawned()
            | events.StepSucceeded()
            | events.StepFailed()
            | events.StepCancelled()
        ):
            return _step(state, event, record)
        case (
            events.ExecutionCreated()
            | events.ExecutionForked()
            | events.ExecutionStarted()
            | events.ExecutionBlocked()
            | events.ExecutionResumed()
            | events.ExecutionCompleted()
            | events.ExecutionFailed()
            | events.ExecutionCancelled()
        ):
            return _execution(state, event, record.at)
        case (
            events.DispatchQueued()
            | events.DispatchClaimed()
            | events.DispatchAcked()
            | events.DispatchFailed()
            | events.DispatchDiscarded()
        ):
            return _dispatch(state, event, record.at)
        case (
            events.ApprovalRequested()
            | events.ApprovalVoted()
            | events.ApprovalGranted()
            | events.ApprovalDenied()
            | events.ApprovalExpired()
        ):
            return _approval(state, event, record.at)
        case (
            events.ResourceRegistered()
            | events.ResourceInitialized()
            | events.ResourceBound()
            | events.ResourceCheckpointed()
            | events.ResourceCheckpointFailed()
        ):
            return {"resources": resources.evolve(state.resources, event, record.seq)}
        case _:
            assert_never(event)


def fold(execution_id: str, records: Iterable[Record]) -> State:
    """Return the run that `records` tell, from its first event on.

    Its `attempt` is what the log knows of the current attempt: notes may be missing in it.
    """
    state = State(execution_id)
    for record in records:
        state = evolve(state, record)
    return state


def _execution(state: State, event: events.ExecutionEvent, at: int) -> Changes:
    status = transitions.EXECUTION.get(state.status, {}).get(type(event))
    if status is None:
        raise IllegalTransition(f"{event_json.name(event)} while the execution is {state.status}")
    dispatch = state.dispatch
    if status.is_terminal and dispatch is not None:
        dispatch = replace(dispatch, status=_dispatch_status(dispatch, event), due_at=None)
    changes: Changes = {"status": status, "dispatch": dispatch, "updated_at": at}
    match event:
        case events.ExecutionCreated():
            changes |= _created(event, at)
        case events.ExecutionForked():
            changes |= {
                "forked_from": event.source_execution_id,
                "fork_seq": event.fork_seq,
                "restoration": event.restoration,
            }
        case events.ExecutionStarted():
            changes |= {"started_at": at}
            if event.parent_execution_id is not None:
                changes["parent_execution_id"] = event.parent_execution_id
            if event.carried is not None:
                changes["tally"] = Tally.from_json(event.carried)
        case events.ExecutionBlocked() | events.ExecutionResumed():
            pass
        case events.ExecutionCompleted():
            changes |= {
                "output": event.output,
                "passed_over": event.passed_over,
                "left": event.state,
            }
        case events.ExecutionFailed():
            changes |= {"failure_reason": event.reason, "passed_over": event.passed_over}
        case events.ExecutionCancelled():
            changes |= {"failure_reason": event.reason}
        case _:
            assert_never(event)
    return changes


def _created(event: events.ExecutionCreated, at: int) -> Changes:
    spawned_by = None
    if event.spawned_by_execution is not None and event.spawned_by_step is not None:
        spawned_by = (event.spawned_by_execution, event.spawned_by_step)
    return {
        "agent_id": event.agent_id,
        "input": event.input,
        "session": event.session,
        "parent_execution_id": event.parent_execution_id,
        "idempotency_key": event.idempotency_key,
        "spawned_by": spawned_by,
        "created_by": event.created_by,
        "on_behalf_of": event.on_behalf_of,
        "deadline_at": event.deadline_at,
        "bundle": event.bundle,
        "created_at": at,
    }


def _dispatch(state: State, event: events.DispatchEvent, at: int) -> Changes:
    last = state.dispatch
    status = _dispatch_status(last, event)
    if isinstance(event, events.DispatchQueued):
        due_at = at if event.due_at is None else event.due_at
        return {
            "dispatch": Dispatch(event.dispatch_id, status, due_at=due_at),
            "attempt": None,
            "updated_at": at,
        }
    if last is None or last.dispatch_id != event.dispatch_id:
        raise IllegalTransition(f"{event_json.name(event)} of {event.dispatch_id} after {last}")
    match event:
        case events.DispatchClaimed():
            if event.attempt != last.attempt + 1:
                raise IllegalTransition(f"attempt {event.attempt} cannot follow {last}")
            expires_at = at + event.lease_micros if event.lease_micros else None
            return {
                "dispatch": Dispatch(
                    event.dispatch_id, status, event.attempt, expires_at, event.lease_micros
                ),
                "attempt": Attempt(event.dispatch_id, event.attempt),
                "attempts": state.attempts + 1,
                "fruitless_attempts": state.fruitless_attempts + 1,
                "updated_at": at,
            }
        case events.DispatchAcked():
            return {}
        case events.DispatchFailed():
            return {"dispatch": replace(last, status=status, due_at=event.retry_at)}
        case events.DispatchDiscarded():
            return {"dispatch": replace(last, status=status, due_at=None)}
        case _:
            assert_never(event)


def _dispatch_status(last: Dispatch | None, event: events.Event) -> DispatchStatus:
    current = None if last is None else last.status
    status = transitions.DISPATCH.get(current, {}).get(type(event))
    if status is None:
        raise IllegalTransition(f"{event_json.name(event)} while the dispatch is {current}")
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
        proposed_attempt=state.attempts,
    )
    return {
        "steps": state.steps.set(step.step_id, step),
        "attempt": _asked(state, step, event.request_id),
        "fruitless_attempts": 0,
    }


def _step(
    state: State,
    event: events.StepAllowed
    | events.StepDenied
    | events.StepAwaitingApproval
    | events.StepExecuting
    | events.StepSpawned
    | events.StepSucceeded
    | events.StepFailed
    | events.StepCancelled,
    record: Record,
) -> Changes:
    at = record.at
    before = state.steps.get(event.step_id)
    status = _step_status(before, event)
    assert before is not None, "only StepProposed has a row for a step that does not exist"
    # Telling a body to run again records nothing new: a body that kills its process each time
    # must use the attempts up.
    is_again = isinstance(event, events.StepExecuting) and before.started_at is not None
    changes: Changes = {} if is_again else {"fruitless_attempts": 0}
    match event:
        case events.StepAllowed():
            step = before.changed(status=status, **_ruling(event))
        case events.StepDenied():
            step = before.changed(status=status, completed_at=at, **_ruling(event))
            changes["tally"] = replace(state.tally, denials=state.tally.denials + 1)
        case events.StepAwaitingApproval():
            step = before.changed(status=status, **_ruling(event))
            changes["attempt"] = _asked(state, step, None, parked=True)
        case events.StepExecuting():
            started_at = at if before.started_at is None else before.started_at
            step = before.changed(
                status=status,
                started_at=started_at,
                labels=event.labels or before.labels,
                resources=event.resources,
            )
            changes["tally"] = _started(state.tally, before, event.labels)
            changes["attempt"] = _asked(state, step, event.request_id)
            if event.generations is not None:
                changes["resources"] = resources.started(
                    state.resources, json.loads(event.generations), record.seq
                )
        case events.StepSpawned():
            step = before.changed(child=event.execution_id)
            changes["spawning"] = state.spawning | {step.step_id}
        case events.StepSucceeded():
            step = before.changed(
                status=status,
                result=event.result,
                input_tokens=event.input_tokens,
                output_tokens=event.output_tokens,
                completed_at=at,
            )
            changes["finished"] = state.finished.set(len(state.finished), step.step_id)
            used = (event.input_tokens or 0) + (event.output_tokens or 0)
            if used:
                changes["tally"] = replace(state.tally, tokens=state.tally.tokens + used)
        case events.StepFailed() | events.StepCancelled():
            step = before.changed(status=status, error=event.error, completed_at=at)
            if is_indeterminate(event.error):
                changes["indeterminate"] = state.indeterminate | {step.call_key}
        case _:
            assert_never(event)
    changes["steps"] = state.steps.set(step.step_id, step)
    _move(state, step, changes)
    return changes


def _move(state: State, step: Step, changes: Changes) -> None:
    """Keep the sets of steps by where they stand."""
    if step.status is StepStatus.EXECUTING:
        changes["executing"] = state.executing | {step.step_id}
    elif step.step_id in state.executing:
        changes["executing"] = state.executing - {step.step_id}
        if step.step_id in state.spawning:
            changes["spawning"] = state.spawning - {step.step_id}
        if step.resources:
            changes["resources"] = resources.settled(state.resources, step.resources)
    if step.status is StepStatus.AWAITING_APPROVAL:
        changes["awaiting"] = state.awaiting | {step.step_id}
    elif step.step_id in state.awaiting:
        changes["awaiting"] = state.awaiting - {step.step_id}


def _approval(state: State, event: events.ApprovalEvent, at: int) -> Changes:
    before = state.approvals.get(event.approval_id)
    current = None if before is None else before.status
    status = transitions.APPROVAL.get(current, {}).get(type(event))
    step = state.steps.get(event.step_id)
    if status is None or step is None:
        raise IllegalTransition(
            f"{event_json.name(event)} while approval {event.approval_id} is {current}"
        )
    if isinstance(event, events.ApprovalRequested):
        approval = Approval(
            event.approval_id,
            event.step_id,
            gates_from_json(event.gates),
            expires_at=event.expires_at,
            requested_at=at,
            message=event.message,
        )
        waiting = step.changed(approval_id=event.approval_id)
        return {
            "approvals": state.approvals.set(event.approval_id, approval),
            "steps": state.steps.set(step.step_id, waiting),
        }
    assert before is not None, "only ApprovalRequested has a row for one that does not exist"
    changes: Changes = {}
    match event:
        case events.ApprovalVoted() | events.ApprovalGranted():
            vote = Vote(event.by, event.groups, at, event.rationale)
            approval = replace(before, status=status, votes=(*before.votes, vote))
            if isinstance(event, events.ApprovalGranted):
                approval = replace(
                    approval, decided_by=event.by, decided_at=at, rationale=event.rationale
                )
                lifted = step.changed(lifted=(*step.lifted, *approval.gates))
                changes["steps"] = state.steps.set(step.step_id, lifted)
        case events.ApprovalDenied():
            approval = replace(
                before,
                status=status,
                decided_by=event.by,
                decided_at=at,
                rationale=event.rationale,
            )
        case events.ApprovalExpired():
            approval = replace(before, status=status, decided_at=at, rationale=event.rationale)
        case _:
            assert_never(event)
    return changes | {"approvals": state.approvals.set(event.approval_id, approval)}


def _asked(
    state: State, step: Step, request_id: str | None, *, parked: bool = False
) -> Attempt | None:
    """Return the memory of the attempt once it has asked for `step`."""
    if state.attempt is None:  # the steps that a fork copies
        return None
    return state.attempt.asked(
        Note(step.step_id, step.call_key, step.occurrence, request_id, parked)
    )


def _ruling(
    event: events.StepAllowed | events.StepDenied | events.StepAwaitingApproval,
) -> Changes:
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
        raise IllegalTransition(f"{event_json.name(event)} while step {event.step_id} is {current}")
    return status


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
