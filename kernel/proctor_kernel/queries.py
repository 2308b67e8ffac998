"""What a client reads: rows of the read tables, as the messages of the wire."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from proctor.wire.calls import WireError
from proctor.wire.messages import Event, Execution, PolicyStatus, Step
from proctor.wire.words import ErrorCode
from proctor_kernel.store import statements
from proctor_kernel.store.dialect import SQLite
from proctor_policy.watch import Status

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Queries:
    """Reads of runs, steps and events. Everything acknowledged is in what they return."""

    def __init__(self, database: SQLite) -> None:
        self._database = database

    def execution(self, execution_id: str) -> Execution:
        """Return one run; raises `not_found` when there is none."""
        found = self._database.read(statements.EXECUTION_BY_ID, execution_id=execution_id)
        if not found:
            raise WireError(ErrorCode.NOT_FOUND, f"no execution {execution_id!r}")
        return _execution(found[0])

    def events(self, execution_id: str, *, after_seq: int, limit: int) -> list[Event]:
        """Return up to `limit` entries of a run's log above `after_seq`, in order."""
        self.execution(execution_id)
        found = self._database.read(
            statements.EVENTS_AFTER,
            execution_id=execution_id,
            after_seq=after_seq,
            row_limit=limit,
        )
        return [_event(row) for row in found]

    def steps(self, execution_id: str) -> list[Step]:
        """Return the steps of a run, in the order in which they were first proposed."""
        self.execution(execution_id)
        found = self._database.read(statements.STEPS_OF_EXECUTION, execution_id=execution_id)
        return [_step(row) for row in found]

    def step(self, execution_id: str, step_id: str) -> Step:
        """Return one step of a run; raises `not_found` when there is none."""
        found = self._database.read(
            statements.STEP_BY_ID, execution_id=execution_id, step_id=step_id
        )
        if not found:
            raise WireError(
                ErrorCode.NOT_FOUND, f"execution {execution_id!r} has no step {step_id!r}"
            )
        return _step(found[0])

    def running(self) -> list[tuple[str, str]]:
        """Return (execution id, agent id) of every run that has not ended, oldest first."""
        found = self._database.read(statements.RUNNING_EXECUTIONS)
        return [(row["id"], row["agent_id"]) for row in found]


def policy_status(status: Status) -> PolicyStatus:
    """Return the status of the rules as clients see it."""
    return PolicyStatus(
        hash=status.hash,
        loaded_at=_time(status.loaded_at_micros),
        problems=[str(problem) for problem in status.problems],
        failing_since=_time(status.failing_since_micros),
        reloads=status.reloads,
        failures=status.failures,
    )


def _execution(row: dict[str, Any]) -> Execution:
    return Execution(
        id=row["id"],
        agent_id=row["agent_id"],
        status=row["status"],
        input=_value(row["input"]),
        output=_value(row["output"]),
        failure_reason=row["failure_reason"],
        attempts=row["attempts"],
        passed_over=json.loads(row["passed_over"]),
        created_at=_time(row["created_at"]),
        updated_at=_time(row["updated_at"]),
    )


def _step(row: dict[str, Any]) -> Step:
    return Step(
        step_id=row["step_id"],
        execution_id=row["execution_id"],
        kind=row["kind"],
        target=row["target"],
        args=_value(row["args"]),
        args_hash=row["args_hash"],
        occurrence=row["occurrence"],
        status=row["status"],
        idempotency=row["idempotency"],
        result=_value(row["result"]),
        error=_value(row["error"]),
        decision=row["decision"],
        reason=row["reason"],
        rule_ids=json.loads(row["rule_ids"]),
        ruleset=row["ruleset"],
        policy_micros=row["policy_micros"],
        shadow=json.loads(row["shadow"]),
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        started_at=_time(row["started_at"]),
        completed_at=_time(row["completed_at"]),
    )


def _event(row: dict[str, Any]) -> Event:
    return Event(
        execution_id=row["execution_id"],
        event_seq=row["event_seq"],
        type=row["type"],
        payload=_value(row["payload"]),
        occurred_at=_time(row["occurred_at"]),
        hash=row["hash"],
    )


def _value(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        # Recorded text is JSON; what Python refuses is an integer of thousands of digits.
        return json.loads(text, parse_int=_integer)


def _integer(literal: str) -> int | str:
    try:
        return int(literal)
    except ValueError:
        return literal


def _time(micros: int | None) -> datetime | None:
    # Integer arithmetic: a float of seconds would lose the last microsecond.
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)
