"""Every statement, named, with the sentence that says what it is for.

SQLAlchemy Core, so that one text serves every dialect; `dialect.py` runs them.
"""

from typing import Any, Final

from sqlalchemy import Delete, Select, Table, bindparam, delete, func, select
from sqlmodel import SQLModel

from proctor.wire.words import ExecutionStatus
from proctor_kernel.store import tables

METADATA: Final = SQLModel.metadata


def table_of(model: type[SQLModel]) -> Table:
    """Return the Core table behind a model."""
    return METADATA.tables[str(model.__tablename__)]


EVENTS: Final = table_of(tables.EventRow)
EXECUTIONS: Final = table_of(tables.ExecutionRow)
DISPATCHES: Final = table_of(tables.DispatchRow)
STEPS: Final = table_of(tables.StepRow)
RATE_TOKENS: Final = table_of(tables.RateTokenRow)
RULESETS: Final = table_of(tables.RuleSetRow)

LOG_OF_EXECUTION: Final[Select[Any]] = (
    select(EVENTS)
    .where(EVENTS.c.execution_id == bindparam("execution_id"))
    .order_by(EVENTS.c.event_seq)
)
"""The whole log of one run, in order."""

EVENTS_AFTER: Final[Select[Any]] = (
    select(EVENTS)
    .where(
        EVENTS.c.execution_id == bindparam("execution_id"),
        EVENTS.c.event_seq > bindparam("after_seq"),
    )
    .order_by(EVENTS.c.event_seq)
    .limit(bindparam("row_limit"))
)
"""A page of the log of one run."""

EXECUTION_BY_ID: Final[Select[Any]] = select(EXECUTIONS).where(
    EXECUTIONS.c.id == bindparam("execution_id")
)
"""One run as it stands."""

RUNNING_EXECUTIONS: Final[Select[Any]] = (
    select(EXECUTIONS.c.id, EXECUTIONS.c.agent_id)
    .where(EXECUTIONS.c.status == ExecutionStatus.RUNNING)
    .order_by(EXECUTIONS.c.id)
)
"""The runs that somebody has to drive, oldest first."""

EXECUTION_IDS: Final[Select[Any]] = (
    select(EVENTS.c.execution_id).group_by(EVENTS.c.execution_id).order_by(EVENTS.c.execution_id)
)
"""Every run that has a log."""

STEPS_OF_EXECUTION: Final[Select[Any]] = (
    select(STEPS)
    .where(STEPS.c.execution_id == bindparam("execution_id"))
    .order_by(STEPS.c.proposed_seq)
)
"""The steps of one run, in the order in which they were first proposed."""

STEP_BY_ID: Final[Select[Any]] = select(STEPS).where(
    STEPS.c.execution_id == bindparam("execution_id"), STEPS.c.step_id == bindparam("step_id")
)
"""One step of one run."""

RULESETS_BY_TIME: Final[Select[Any]] = select(RULESETS).order_by(RULESETS.c.in_force_at.desc())
"""Every rule set that was ever in force, the latest first."""


TOKENS_OF_BUCKET: Final[Select[Any]] = select(RATE_TOKENS.c.holder).where(
    RATE_TOKENS.c.bucket == bindparam("bucket"), RATE_TOKENS.c.taken_at > bindparam("since")
)
"""Who holds a token of one bucket within its window."""

SPENT_TOKENS: Final[Delete] = delete(RATE_TOKENS).where(
    RATE_TOKENS.c.bucket == bindparam("bucket"), RATE_TOKENS.c.taken_at <= bindparam("since")
)
"""Forget the tokens of one bucket that are older than its window."""

EVENT_COUNT: Final[Select[Any]] = select(func.count()).select_from(EVENTS)
"""How many events the log has in all."""
