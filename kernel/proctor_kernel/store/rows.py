"""State in, rows out: what each read table holds is a function of the folded run."""

import json

from proctor.wire.words import StepKind
from proctor_kernel.core import approvals, identity
from proctor_kernel.core.approvals import Approval
from proctor_kernel.core.chain import Record, Row
from proctor_kernel.core.event_json import from_json, name
from proctor_kernel.core.events import (
    ApprovalEvent,
    DispatchAcked,
    DispatchEvent,
    ExecutionEvent,
    StepEvent,
)
from proctor_kernel.core.state import Attempt, Note, State, Step

Values = dict[str, object]
"""Column -> value of one row."""


def event(record: Record) -> Values:
    """Return the log row of one record."""
    return {
        "execution_id": record.execution_id,
        "event_seq": record.seq,
        "type": name(record.event),
        "payload": record.payload,
        "occurred_at": record.at,
        "hash": record.hash,
    }


def execution(state: State) -> Values:
    """Return the `executions` row of a run."""
    assert state.status is not None, "only a run that was created has a row"
    return {
        "id": state.execution_id,
        "agent_id": state.agent_id,
        "status": str(state.status),
        "input": state.input,
        "output": state.output,
        "left": state.left,
        "failure_reason": state.failure_reason,
        "session": state.session,
        "parent_execution_id": state.parent_execution_id,
        "idempotency_key": state.idempotency_key,
        "spawned_by_execution": None if state.spawned_by is None else state.spawned_by[0],
        "spawned_by_step": None if state.spawned_by is None else state.spawned_by[1],
        "created_by": state.created_by,
        "on_behalf_of": state.on_behalf_of,
        "forked_from": state.forked_from,
        "fork_seq": state.fork_seq,
        "restoration": state.restoration,
        "bundle": state.bundle,
        "deadline_at": state.deadline_at,
        "tally": state.tally.to_json() if state.is_terminal else None,
        "attempts": state.attempts,
        "passed_over": json.dumps(state.passed_over),
        "created_at": state.created_at,
        "started_at": state.started_at,
        "updated_at": state.updated_at,
        "seq": state.seq,
    }


def dispatch(state: State) -> Values | None:
    """Return the `dispatches` row of a run, or None while it has no delivery."""
    if state.dispatch is None:
        return None
    return {
        "execution_id": state.execution_id,
        "agent_id": state.agent_id,
        "dispatch_id": state.dispatch.dispatch_id,
        "status": str(state.dispatch.status),
        "attempt": state.dispatch.attempt,
        "due_at": state.dispatch.due_at,
        "lease_micros": state.dispatch.lease_micros,
    }


def approval(state: State, of: Approval) -> Values:
    """Return the `approvals` row of one approval of a run."""
    waiting = state.steps[of.step_id]
    return {
        "approval_id": of.approval_id,
        "execution_id": state.execution_id,
        "step_id": of.step_id,
        "agent_id": state.agent_id,
        "kind": str(waiting.kind),
        "target": waiting.target,
        "args": waiting.args,
        "reason": "; ".join(dict.fromkeys(gate.reason for gate in of.gates if gate.reason)),
        "rule_ids": json.dumps([gate.rule_id for gate in of.gates]),
        "message": of.message,
        "gates": approvals.gates_to_json(of.gates),
        "votes": approvals.votes_to_json(of.votes),
        "status": str(of.status),
        "expires_at": of.expires_at,
        "requested_at": of.requested_at,
        "decided_by": of.decided_by,
        "decided_at": of.decided_at,
        "rationale": of.rationale,
    }


def note(state: State, of: Note, attempt: Attempt) -> Values:
    """Return the `notes` row that comes next in an attempt."""
    kind, target, args_hash = of.call_key
    return {
        "execution_id": state.execution_id,
        "dispatch_id": attempt.dispatch_id,
        "attempt": attempt.number,
        "ordinal": attempt.notes,
        "step_id": of.step_id,
        "kind": str(kind),
        "target": target,
        "args_hash": args_hash,
        "occurrence": of.occurrence,
        "request_id": of.request_id,
        "parked": of.parked,
    }


def noted(row: Values) -> Note:
    """Turn a row of `notes` back into the note that it keeps."""
    kind, target, args_hash = row["kind"], row["target"], row["args_hash"]
    return Note(
        step_id=str(row["step_id"]),
        call_key=(StepKind(str(kind)), str(target), str(args_hash)),
        occurrence=int(str(row["occurrence"])),
        request_id=None if row["request_id"] is None else str(row["request_id"]),
        parked=bool(row["parked"]),
    )


def step(state: State, of: Step) -> Values:
    """Return the `steps` row of one step of a run."""
    execution_id = state.execution_id
    return {
        "execution_id": execution_id,
        "step_id": of.step_id,
        "kind": str(of.kind),
        "target": of.target,
        "args": of.args,
        "args_hash": of.args_hash,
        "occurrence": of.occurrence,
        "idempotency": str(of.idempotency),
        "status": str(of.status),
        "proposed_seq": of.proposed_seq,
        "decision": None if of.decision is None else str(of.decision),
        "reason": of.reason,
        "rule_ids": json.dumps(of.rule_ids),
        "ruleset": of.ruleset,
        "policy_micros": of.policy_micros,
        "shadow": json.dumps(of.shadow),
        "approval_id": of.approval_id,
        "child": of.child,
        "resources": json.dumps(of.resources),
        "result": of.result,
        "error": of.error,
        "input_tokens": of.input_tokens,
        "output_tokens": of.output_tokens,
        "trace_id": identity.trace_id(execution_id),
        "span_id": identity.span_id(of.step_id),
        "started_at": of.started_at,
        "completed_at": of.completed_at,
        "seq": state.seq,
    }


def touched_steps(records: tuple[Record, ...]) -> list[str]:
    """Return the ids of the steps that `records` change, each once, in order."""
    return list(
        dict.fromkeys(
            record.event.step_id
            for record in records
            if isinstance(record.event, StepEvent | ApprovalEvent)
        )
    )


def touches_execution(records: tuple[Record, ...]) -> bool:
    """True when `records` change more than steps: the row of the run is written then."""
    return any(not isinstance(record.event, StepEvent | ApprovalEvent) for record in records)


def touches_dispatch(records: tuple[Record, ...]) -> bool:
    """True when `records` change the delivery of a run."""
    return any(
        isinstance(record.event, ExecutionEvent | DispatchEvent)
        # Nothing in the row tells of it, and the row would lose a lease that was renewed.
        and not isinstance(record.event, DispatchAcked)
        for record in records
    )


def touched_approvals(records: tuple[Record, ...]) -> list[str]:
    """Return the ids of the approvals that `records` change, each once, in order."""
    return list(
        dict.fromkeys(
            record.event.approval_id
            for record in records
            if isinstance(record.event, ApprovalEvent)
        )
    )


def record(row: Row) -> Record:
    """Turn a row of the log, once its hash is checked, back into the event it holds.

    Raises:
        ValueError: the payload is not of its type's form.
    """
    return Record(
        row.execution_id,
        row.seq,
        row.at,
        from_json(row.type_name, row.payload),
        row.payload,
        row.hash,
    )
