"""What travels between an agent, a client and the kernel.

Two families. What a *client* reads (`Execution`, `Step`, `Event`) are pydantic models: they
are parsed from responses, and obey protocol section 0.2 (unknown fields are ignored, a
missing field takes its default). What an *agent* exchanges for each step are frozen
dataclasses that carry user values as JSON **text**: a value is encoded once, where it was
made, and its number literals reach the hash as they were sent (protocol 3).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from proctor.wire.words import (
    Answer,
    Decision,
    ErrorCode,
    ExecutionStatus,
    Idempotency,
    StepKind,
    StepStatus,
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Execution(_Model):
    """One run of an agent."""

    id: str
    agent_id: str = ""
    status: ExecutionStatus = ExecutionStatus.PENDING
    input: Any = None
    output: Any = None
    failure_reason: str = ""
    attempts: int = 0
    """How often the run was given to its agent."""
    passed_over: list[str] = []
    """Ids of recorded steps that the latest attempt did not propose again."""
    created_at: datetime | None = None
    updated_at: datetime | None = None


class Step(_Model):
    """One governed call of a run, with the decision about it."""

    step_id: str
    execution_id: str = ""
    kind: StepKind = StepKind.TOOL_CALL
    target: str = ""
    args: Any = None
    args_hash: str = ""
    occurrence: int = 0
    status: StepStatus = StepStatus.PROPOSED
    idempotency: Idempotency = Idempotency.SAFE_TO_RETRY
    result: Any = None
    error: Any = None
    decision: Decision | None = None
    reason: str = ""
    rule_ids: list[str] = []
    ruleset: str = ""
    """Hash of the rule files that decided; empty when no rule was asked."""
    policy_micros: int = 0
    trace_id: str = ""
    span_id: str = ""
    started_at: datetime | None = None
    completed_at: datetime | None = None


class Event(_Model):
    """One entry of a run's log."""

    execution_id: str = ""
    event_seq: int = 0
    type: str = ""
    payload: Any = None
    occurred_at: datetime | None = None
    hash: str = ""
    """Hex SHA-256 over every field of this event and the hash of the one before it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act for a run: one attempt of one dispatch (protocol 6)."""

    dispatch_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """A run handed to its agent (the webhook of protocol 2.4, or its in-process form)."""

    execution_id: str
    agent_id: str
    lease: Lease
    input_json: str


@dataclass(frozen=True, slots=True)
class StepSubmission:
    """A call that asks whether its body may run (protocol 1.3, POST steps)."""

    kind: StepKind
    target: str
    args_json: str
    idempotency: Idempotency
    request_id: str | None = None
    """Makes a submit that was sent again, because its answer was lost, the same submit.

    None (the published protocol client): every submit is a new call.
    """


@dataclass(frozen=True, slots=True)
class StepReply:
    """The kernel's answer to a submit or to a settled step (protocol 5)."""

    decision: Answer
    step_id: str | None = None
    result_json: str | None = None
    error_json: str | None = None
    reason: str = ""
    rule_id: str = ""
    approval_id: str | None = None


class WireError(Exception):
    """An error envelope on its way to the caller (protocol 0.1).

    The kernel raises it; the caller's end turns `code` into a class of its own.
    """

    def __init__(self, code: ErrorCode, message: str, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
