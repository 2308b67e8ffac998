"""State in, rows out: what each read table holds is a function of the folded run."""

import json

from proctor_kernel.core import identity
from proctor_kernel.core.chain import Record, Row
from proctor_kernel.core.events import (
    DispatchEvent,
    ExecutionEvent,
    StepEvent,
    from_json,
    name,
)
from proctor_kernel.core.state import State, Step

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
        "failure_reason": state.failure_reason,
        "attempts": 0 if state.dispatch is None else state.dispatch.attempt,
        "passed_over": json.dumps(state.passed_over),
        "created_at": state.created_at,
        "updated_at": state.updated_at,
    }


def dispatch(state: State) -> Values | None:
    """Return the `dispatches` row of a run, or None while it has no delivery."""
    if state.dispatch is None:
        return None
    return {
        "dispatch_id": state.dispatch.dispatch_id,
        "execution_id": state.execution_id,
        "status": str(state.dispatch.status),
        "attempt": state.dispatch.attempt,
    }


def step(execution_id: str, of: Step) -> Values:
    """Return the `steps` row of one step."""
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
        "result": of.result,
        "error": of.error,
        "trace_id": identity.trace_id(execution_id),
        "span_id": identity.span_id(of.step_id),
        "started_at": of.started_at,
        "completed_at": of.completed_at,
    }


def touched_steps(records: tuple[Record, ...]) -> list[str]:
    """Return the ids of the steps that `records` change, each once, in order."""
    return list(
        dict.fromkeys(
            record.event.step_id for record in records if isinstance(record.event, StepEvent)
        )
    )


def touches_execution(records: tuple[Record, ...]) -> bool:
    """True when `records` change the run itself, not only its steps."""
    return any(isinstance(record.event, ExecutionEvent | DispatchEvent) for record in records)


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
