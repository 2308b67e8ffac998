"""The tables. `events` is the truth; the others are read tables, written in its transaction.

Times are microseconds since 1970, UTC. JSON is kept as the text that was hashed, never as a
database's own JSON type, which would change its literals. Every hot table is keyed by the run, so
that a distributed PostgreSQL can keep a run in one place.
"""

from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Index, Text
from sqlmodel import Field, SQLModel

ASSIGNED: Final = "assigned"
"""Marks a column that the database fills in itself."""


def _text(*, nullable: bool = False) -> Column[str]:
    return Column(Text, nullable=nullable)


def _micros(*, nullable: bool = False) -> Column[int]:
    return Column(BigInteger, nullable=nullable)


def _flag() -> Column[bool]:
    return Column(Boolean, nullable=False)


class EventRow(SQLModel, table=True):
    """One entry of a run's log. Its key is what makes a lost race visible."""

    __tablename__ = "events"
    __table_args__ = (Index("events_position", "position"),)

    execution_id: str = Field(primary_key=True)
    event_seq: int = Field(primary_key=True)
    type: str
    payload: str = Field(sa_column=_text())
    occurred_at: int = Field(sa_column=_micros())
    hash: str
    position: int = Field(sa_column=Column(BigInteger, nullable=False, info={ASSIGNED: True}))
    """Its place in the order of commits, which exporters follow (`positions`)."""


class ExecutionRow(SQLModel, table=True):
    """One run as it stands."""

    __tablename__ = "executions"
    __table_args__ = (
        Index("executions_status", "status"),
        Index("executions_agent", "agent_id", "id"),
        Index("executions_session", "session", "id"),
        Index("executions_spawned_by", "spawned_by_execution"),
        Index("executions_deadline", "deadline_at"),
    )

    id: str = Field(primary_key=True)
    agent_id: str
    status: str
    input: str = Field(sa_column=_text())
    output: str | None = Field(sa_column=_text(nullable=True))
    left: str | None = Field(sa_column=_text(nullable=True))
    """What the agent leaves for the run that follows."""
    failure_reason: str = Field(sa_column=_text())
    session: str | None
    parent_execution_id: str | None
    idempotency_key: str | None
    spawned_by_execution: str | None
    spawned_by_step: str | None
    created_by: str | None
    on_behalf_of: str | None
    forked_from: str | None
    fork_seq: int
    restoration: str | None = Field(sa_column=_text(nullable=True))
    bundle: str | None = Field(sa_column=_text(nullable=True))
    deadline_at: int | None = Field(sa_column=_micros(nullable=True))
    tally: str | None = Field(sa_column=_text(nullable=True))
    """What the run and the session before it had done, once it has ended."""
    attempts: int
    passed_over: str = Field(sa_column=_text())
    created_at: int = Field(sa_column=_micros())
    started_at: int | None = Field(sa_column=_micros(nullable=True))
    updated_at: int = Field(sa_column=_micros())
    seq: int
    """The run's latest event when the row was written.

    Every event writes a row of its run, so the highest says how long the log has to be.
    """


class DispatchRow(SQLModel, table=True):
    """The latest delivery of a run to its agent."""

    __tablename__ = "dispatches"
    __table_args__ = (Index("dispatches_due", "due_at"),)

    execution_id: str = Field(primary_key=True)
    agent_id: str
    dispatch_id: str
    status: str
    attempt: int
    due_at: int | None = Field(sa_column=_micros(nullable=True))
    """When somebody has to look at it; a lease that is renewed puts it off."""
    lease_micros: int = Field(sa_column=_micros())


class StepRow(SQLModel, table=True):
    """One governed call as it stands, with the decision about it."""

    __tablename__ = "steps"

    execution_id: str = Field(primary_key=True)
    step_id: str = Field(primary_key=True)
    kind: str
    target: str = Field(sa_column=_text())
    args: str = Field(sa_column=_text())
    args_hash: str
    occurrence: int
    idempotency: str
    status: str
    proposed_seq: int
    decision: str | None
    reason: str = Field(sa_column=_text())
    rule_ids: str = Field(sa_column=_text())
    ruleset: str
    policy_micros: int
    shadow: str = Field(sa_column=_text())
    approval_id: str | None
    child: str | None
    resources: str = Field(sa_column=_text())
    result: str | None = Field(sa_column=_text(nullable=True))
    error: str | None = Field(sa_column=_text(nullable=True))
    input_tokens: int | None
    output_tokens: int | None
    trace_id: str
    span_id: str
    started_at: int | None = Field(sa_column=_micros(nullable=True))
    completed_at: int | None = Field(sa_column=_micros(nullable=True))
    seq: int
    """As in `executions`."""


class ApprovalRow(SQLModel, table=True):
    """One call that waits for people, or did, with all that an approver wants to see."""

    __tablename__ = "approvals"
    __table_args__ = (
        Index("approvals_status", "status", "expires_at"),
        Index("approvals_execution", "execution_id"),
    )

    approval_id: str = Field(primary_key=True)
    execution_id: str
    step_id: str
    agent_id: str
    kind: str
    target: str = Field(sa_column=_text())
    args: str = Field(sa_column=_text())
    reason: str = Field(sa_column=_text())
    rule_ids: str = Field(sa_column=_text())
    message: str = Field(sa_column=_text())
    gates: str = Field(sa_column=_text())
    votes: str = Field(sa_column=_text())
    status: str
    expires_at: int = Field(sa_column=_micros())
    requested_at: int = Field(sa_column=_micros())
    decided_by: str
    decided_at: int | None = Field(sa_column=_micros(nullable=True))
    rationale: str = Field(sa_column=_text())


class AnnouncementRow(SQLModel, table=True):
    """The status of an approval that its webhook was last told of."""

    __tablename__ = "announcements"

    approval_id: str = Field(primary_key=True)
    status: str


class NoteRow(SQLModel, table=True):
    """That an attempt asked for a step which the log does not tell, because it was a replay."""

    __tablename__ = "notes"

    execution_id: str = Field(primary_key=True)
    dispatch_id: str = Field(primary_key=True)
    attempt: int = Field(primary_key=True)
    ordinal: int = Field(primary_key=True)
    step_id: str
    kind: str
    target: str = Field(sa_column=_text())
    args_hash: str
    occurrence: int
    request_id: str | None = Field(sa_column=_text(nullable=True))
    parked: bool = Field(sa_column=_flag())


class IdempotencyKeyRow(SQLModel, table=True):
    """The run that a client's key stands for."""

    __tablename__ = "idempotency_keys"

    agent_id: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    execution_id: str


class SessionRow(SQLModel, table=True):
    """The run whose turn it is in a session; its primary key keeps the others waiting."""

    __tablename__ = "session_turns"

    session: str = Field(primary_key=True)
    execution_id: str


class RateTokenRow(SQLModel, table=True):
    """One call that counts against a limit, under the id of its step."""

    __tablename__ = "rate_tokens"

    bucket: str = Field(primary_key=True)
    holder: str = Field(primary_key=True)
    taken_at: int = Field(sa_column=_micros())


class RuleSetRow(SQLModel, table=True):
    """A rule set that was in force, so that what it decided can be explained later."""

    __tablename__ = "rulesets"

    hash: str = Field(primary_key=True)
    files: str = Field(sa_column=_text())
    """JSON object: path below the rules folder -> text."""
    in_force_at: int = Field(sa_column=_micros())


class AgentRow(SQLModel, table=True):
    """An agent that runs are delivered to."""

    __tablename__ = "agents"

    id: str = Field(primary_key=True)
    webhook_url: str | None = Field(sa_column=_text(nullable=True))
    """None: it asks for its runs itself."""
    secret: str = Field(sa_column=_text())
    """Encrypted."""
    lease_seconds: int | None
    registered_at: int = Field(sa_column=_micros())
    description: str | None = Field(sa_column=_text(nullable=True))
    input_schema: str | None = Field(sa_column=_text(nullable=True))
    output_schema: str | None = Field(sa_column=_text(nullable=True))


class BundleRow(SQLModel, table=True):
    """Rules for one agent that came over the API; they can only tighten what the files say."""

    __tablename__ = "bundles"

    agent_id: str = Field(primary_key=True)
    bundle: str = Field(sa_column=_text())
    set_by: str
    set_at: int = Field(sa_column=_micros())


class ApiKeyRow(SQLModel, table=True):
    """A key of a client; the token itself is not kept."""

    __tablename__ = "api_keys"

    id: str = Field(primary_key=True)
    name: str
    scopes: str = Field(sa_column=_text())
    groups: str = Field(sa_column=_text())
    token_hash: str
    created_at: int = Field(sa_column=_micros())
    revoked_at: int | None = Field(sa_column=_micros(nullable=True))


class SinkRow(SQLModel, table=True):
    """How far an exporter has shipped the log, and which process runs it.

    Retention deletes nothing that is beyond it.
    """

    __tablename__ = "sinks"

    name: str = Field(primary_key=True)
    position: int = Field(sa_column=_micros())
    execution_id: str
    event_seq: int
    """With the two before: the last event that was shipped, in the order of commits."""
    shipped_to: int = Field(sa_column=_micros())
    """When that event happened."""
    holder: str
    """The process that runs it."""
    held_until: int = Field(sa_column=_micros())
    """When another process may take it over."""
    failing_since: int | None = Field(sa_column=_micros(nullable=True))
    error: str = Field(sa_column=_text())
    """Why nothing is shipped just now; empty while all is well."""


class RefusalRow(SQLModel, table=True):
    """An event that a sink refused for good and that was set aside, so that the others go on."""

    __tablename__ = "refusals"

    sink: str = Field(primary_key=True)
    execution_id: str = Field(primary_key=True)
    event_seq: int = Field(primary_key=True)
    error: str = Field(sa_column=_text())
    refused_at: int = Field(sa_column=_micros())


class CheckpointRow(SQLModel, table=True):
    """What a kernel has signed about the log (`core.checkpoints`); its number lets one win."""

    __tablename__ = "checkpoints"

    number: int = Field(primary_key=True)
    position: int = Field(sa_column=_micros())
    """The last position of the log that it covers."""
    signed_at: int = Field(sa_column=_micros())
    body: str = Field(sa_column=_text())
    key_id: str
    signature: str


class ForgottenRow(SQLModel, table=True):
    """A run that retention deleted, until a checkpoint names it."""

    __tablename__ = "forgotten"

    execution_id: str = Field(primary_key=True)
    forgotten_at: int = Field(sa_column=_micros())
    key_id: str
    """Whose signature it is; empty when the kernel that deleted the run has no key."""
    signature: str
