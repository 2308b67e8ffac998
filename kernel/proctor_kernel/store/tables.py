"""The tables. `events` is the truth; the others are read tables, written in its transaction.

Times are microseconds since 1970, UTC. JSON is kept as the text that was hashed, never as a
database's own JSON type, which would change its literals.
"""

from sqlalchemy import BigInteger, Column, Index, Text
from sqlmodel import Field, SQLModel


def _text(*, nullable: bool = False) -> Column[str]:
    return Column(Text, nullable=nullable)


def _micros(*, nullable: bool = False) -> Column[int]:
    return Column(BigInteger, nullable=nullable)


class EventRow(SQLModel, table=True):
    """One entry of a run's log. Its primary key is what makes a lost race visible."""

    __tablename__ = "events"

    execution_id: str = Field(primary_key=True)
    event_seq: int = Field(primary_key=True)
    type: str
    payload: str = Field(sa_column=_text())
    occurred_at: int = Field(sa_column=_micros())
    hash: str


class ExecutionRow(SQLModel, table=True):
    """One run as it stands."""

    __tablename__ = "executions"
    __table_args__ = (Index("executions_status", "status"),)

    id: str = Field(primary_key=True)
    agent_id: str
    status: str
    input: str = Field(sa_column=_text())
    output: str | None = Field(sa_column=_text(nullable=True))
    failure_reason: str = Field(sa_column=_text())
    attempts: int
    passed_over: str = Field(sa_column=_text())
    created_at: int = Field(sa_column=_micros())
    updated_at: int = Field(sa_column=_micros())


class DispatchRow(SQLModel, table=True):
    """The delivery of a run to its agent."""

    __tablename__ = "dispatches"

    dispatch_id: str = Field(primary_key=True)
    execution_id: str
    status: str
    attempt: int


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
    result: str | None = Field(sa_column=_text(nullable=True))
    error: str | None = Field(sa_column=_text(nullable=True))
    trace_id: str
    span_id: str
    started_at: int | None = Field(sa_column=_micros(nullable=True))
    completed_at: int | None = Field(sa_column=_micros(nullable=True))


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
