"""What a client reads of a run: its execution, its steps, its log.

Pydantic models, since they are parsed from responses: unknown fields are ignored and a
missing field takes its default (protocol 0.2).
"""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from proctor.wire.words import (
    ApprovalStatus,
    Decision,
    ExecutionStatus,
    Idempotency,
    StepKind,
    StepStatus,
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class SpawnedBy(_Model):
    """The step of another run that waits for this one."""

    execution_id: str
    step_id: str


class Execution(_Model):
    """One run of an agent."""

    id: str
    agent_id: str = ""
    status: ExecutionStatus = ExecutionStatus.PENDING
    input: Any = None
    output: Any = None
    failure_reason: str = ""
    session: str = ""
    parent_execution_id: str | None = None
    forked_from: str | None = None
    fork_seq: int = 0
    restoration: dict[str, Any] | None = None
    """What a fork's resources go back to; only in the answer to a fork."""
    spawned_by: SpawnedBy | None = None
    idempotency_key: str = ""
    created_by: str = ""
    """The authenticated principal that asked for the run."""
    on_behalf_of: str = ""
    attempts: int = 0
    """How often the run was given to its agent."""
    passed_over: list[str] = []
    """Ids of recorded steps that the latest attempt did not propose again."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    deadline_at: datetime | None = None


class ExecutionPage(_Model):
    """Runs, the newest first; without a cursor the page is the last one."""

    executions: list[Execution]
    next_cursor: str | None = None


class Checkpoint(_Model):
    """A state of a resource that a fork can go back to."""

    key: str
    generation: int = 0
    checkpoint_ref: str = ""
    covered_seq: int = 0
    """The last event whose effects are in it."""
    invalidated_seq: int | None = None


class ForkPoints(_Model):
    """Where a run can be forked: at any event up to the latest."""

    latest_seq: int
    resources: dict[str, int] = {}
    """The event that registered each resource, by key."""
    checkpoints: list[Checkpoint] = []


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
    shadow: list[str] = []
    """Rules on trial that would have forbidden it."""
    approval_id: str | None = None
    """The last approval that it waited for."""
    usage_input: int | None = None
    usage_output: int | None = None
    """Tokens that a model call used."""
    trace_id: str = ""
    span_id: str = ""
    started_at: datetime | None = None
    completed_at: datetime | None = None


class ApprovalGate(_Model):
    """One rule that asks people about a call."""

    rule_id: str
    approvers: list[str] = []
    """Names or groups; empty: whoever may approve at all."""
    quorum: int = 1
    granted: int = 0
    """How many of them have agreed."""


class Approval(_Model):
    """One call that waits for people, or did."""

    id: str
    step_id: str = ""
    execution_id: str = ""
    agent_id: str = ""
    status: ApprovalStatus = ApprovalStatus.PENDING
    kind: StepKind = StepKind.TOOL_CALL
    target: str = ""
    args: Any = None
    reason: str = ""
    rule_ids: list[str] = []
    message: str = ""
    gates: list[ApprovalGate] = []
    timeout_at: datetime | None = None
    created_at: datetime | None = None
    decided_by: str = ""
    decided_at: datetime | None = None
    rationale: str = ""


class PolicyStatus(_Model):
    """Which rules decide, and what is wrong with the folder they come from."""

    hash: str = ""
    loaded_at: datetime | None = None
    problems: list[str] = []
    """Why the folder as it is now is not in force, by file and line; empty: it is."""
    failing_since: datetime | None = None
    reloads: int = 0
    failures: int = 0


class Event(_Model):
    """One entry of a run's log."""

    execution_id: str = ""
    event_seq: int = 0
    type: str = ""
    payload: Any = None
    occurred_at: datetime | None = None
    hash: str = ""
    """Hex SHA-256 over every field of this event and the hash of the one before it."""
