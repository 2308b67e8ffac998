"""Every statement, named, with the sentence that says what it is for.

SQLAlchemy Core, so that one text serves every database; `sqlite` and `postgres` run them. It is
long because it is the one place to look for what the database is asked.
"""

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Delete,
    Select,
    String,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.sql.dml import Insert, Update
from sqlmodel import SQLModel

from proctor.wire.words import ApprovalStatus, DispatchStatus, ExecutionStatus, StepStatus
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
APPROVALS: Final = table_of(tables.ApprovalRow)
ANNOUNCEMENTS: Final = table_of(tables.AnnouncementRow)
NOTES: Final = table_of(tables.NoteRow)
IDEMPOTENCY_KEYS: Final = table_of(tables.IdempotencyKeyRow)
SESSION_TURNS: Final = table_of(tables.SessionRow)
AGENTS: Final = table_of(tables.AgentRow)
BUNDLES: Final = table_of(tables.BundleRow)
API_KEYS: Final = table_of(tables.ApiKeyRow)
SINKS: Final = table_of(tables.SinkRow)
REFUSALS: Final = table_of(tables.RefusalRow)
CHECKPOINTS: Final = table_of(tables.CheckpointRow)
FORGOTTEN: Final = table_of(tables.ForgottenRow)


def _one_of(column: ColumnElement[Any], values: tuple[str, ...]) -> ColumnElement[bool]:
    # Not IN, whose list SQLAlchemy writes anew for every execution.
    return or_(*(column == value for value in values))


def _unless_empty(name: str, column: Column[Any]) -> ColumnElement[bool]:
    """Narrow a select by a value, which does not narrow it when it is empty."""
    given = bindparam(name, type_=String())
    return or_(given == "", column == given)


ENDED: Final = tuple(str(status) for status in ExecutionStatus if status.is_terminal)
LIVE: Final = tuple(str(status) for status in ExecutionStatus if not status.is_terminal)
_AT_WORK: Final = (str(ExecutionStatus.RUNNING), str(ExecutionStatus.BLOCKED))

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
    .where(_one_of(EXECUTIONS.c.status, LIVE))
    .order_by(EXECUTIONS.c.id)
)
"""The runs that have not ended, oldest first."""

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


TOKENS_OF_BUCKET: Final[Select[Any]] = select(RATE_TOKENS.c.holder, RATE_TOKENS.c.taken_at).where(
    RATE_TOKENS.c.bucket == bindparam("bucket"), RATE_TOKENS.c.taken_at > bindparam("since")
)
"""Who holds a token of one bucket within its window, and since when."""

SPENT_TOKENS: Final[Delete] = delete(RATE_TOKENS).where(
    RATE_TOKENS.c.bucket == bindparam("bucket"), RATE_TOKENS.c.taken_at <= bindparam("since")
)
"""Forget the tokens of one bucket that are older than its window."""


NOTES_OF_ATTEMPT: Final[Select[Any]] = (
    select(NOTES)
    .where(
        NOTES.c.execution_id == bindparam("execution_id"),
        NOTES.c.dispatch_id == bindparam("dispatch_id"),
        NOTES.c.attempt == bindparam("attempt"),
        NOTES.c.ordinal >= bindparam("from_ordinal"),
    )
    .order_by(NOTES.c.ordinal)
)
"""What one attempt has asked that the log does not tell, in order."""

NOTE_IF_CURRENT: Final[Insert] = insert(NOTES).from_select(
    [column.name for column in NOTES.columns],
    select(*(bindparam(column.name, type_=column.type) for column in NOTES.columns)).where(
        ~exists(
            select(literal(1)).where(
                EVENTS.c.execution_id == bindparam("execution_id"),
                EVENTS.c.event_seq == bindparam("next_seq"),
            )
        )
    ),
)
"""Keep a note, unless the log has an event that whoever decided did not know."""


RENEW_LEASE: Final[Update] = (
    update(DISPATCHES)
    .where(
        DISPATCHES.c.execution_id == bindparam("of_execution"),
        DISPATCHES.c.dispatch_id == bindparam("of_dispatch"),
        DISPATCHES.c.attempt == bindparam("of_attempt"),
        DISPATCHES.c.status == str(DispatchStatus.IN_FLIGHT),
    )
    .values(due_at=bindparam("until"))
)
"""Put off the time at which an attempt that fell silent is taken over."""


DUE_DISPATCHES: Final[Select[Any]] = (
    select(DISPATCHES)
    .where(DISPATCHES.c.due_at <= bindparam("now"))
    .order_by(DISPATCHES.c.due_at)
    .limit(bindparam("row_limit"))
)
"""Deliveries that somebody has to look at: to begin, to try again, to take over."""

DUE_DISPATCHES_OF_AGENT: Final[Select[Any]] = (
    select(DISPATCHES)
    .where(DISPATCHES.c.due_at <= bindparam("now"), DISPATCHES.c.agent_id == bindparam("agent_id"))
    .order_by(DISPATCHES.c.due_at)
    .limit(bindparam("row_limit"))
)
"""The same, of one agent."""


OVERDUE_APPROVALS: Final[Select[Any]] = (
    select(APPROVALS.c.approval_id, APPROVALS.c.execution_id)
    .where(
        APPROVALS.c.status == str(ApprovalStatus.PENDING),
        APPROVALS.c.expires_at <= bindparam("now"),
    )
    .limit(bindparam("row_limit"))
)
"""Approvals that nobody decided in time."""

UNANNOUNCED_APPROVALS: Final[Select[Any]] = (
    select(APPROVALS)
    .where(
        func.coalesce(APPROVALS.c.decided_at, APPROVALS.c.requested_at) <= bindparam("before"),
        func.coalesce(APPROVALS.c.decided_at, APPROVALS.c.requested_at) > bindparam("since"),
        ~exists(
            select(literal(1)).where(
                ANNOUNCEMENTS.c.approval_id == APPROVALS.c.approval_id,
                ANNOUNCEMENTS.c.status == APPROVALS.c.status,
            )
        ),
    )
    .order_by(APPROVALS.c.approval_id)
    .limit(bindparam("row_limit"))
)
"""Approvals of whose status the webhook was not told."""

APPROVAL_BY_ID: Final[Select[Any]] = select(APPROVALS).where(
    APPROVALS.c.approval_id == bindparam("approval_id")
)
"""One approval."""

APPROVALS_BY_STATUS: Final[Select[Any]] = (
    select(APPROVALS)
    .where(
        or_(
            bindparam("status", type_=APPROVALS.c.status.type) == "",
            APPROVALS.c.status == bindparam("status"),
        ),
        APPROVALS.c.approval_id > bindparam("after"),
    )
    .order_by(APPROVALS.c.approval_id)
    .limit(bindparam("row_limit"))
)
"""A page of approvals, the oldest first; without a status, of any."""

OVERDUE_EXECUTIONS: Final[Select[Any]] = (
    select(EXECUTIONS.c.id)
    .where(EXECUTIONS.c.deadline_at <= bindparam("now"), _one_of(EXECUTIONS.c.status, LIVE))
    .limit(bindparam("row_limit"))
)
"""Runs that are past their deadline."""

_PARENT: Final = EXECUTIONS.alias("parent")
_CHILD: Final = EXECUTIONS.alias("child")

UNSETTLED_SUBAGENTS: Final[Select[Any]] = (
    select(_CHILD.c.id)
    .join(
        STEPS,
        and_(
            STEPS.c.execution_id == _CHILD.c.spawned_by_execution,
            STEPS.c.step_id == _CHILD.c.spawned_by_step,
        ),
    )
    .join(_PARENT, _PARENT.c.id == _CHILD.c.spawned_by_execution)
    .where(
        _one_of(_CHILD.c.status, ENDED),
        STEPS.c.status == str(StepStatus.EXECUTING),
        _one_of(_PARENT.c.status, _AT_WORK),
    )
    .limit(bindparam("row_limit"))
)
"""Runs that have ended while the step that waits for them does not know."""

ORPHANED_SUBAGENTS: Final[Select[Any]] = (
    select(_CHILD.c.id)
    .join(_PARENT, _PARENT.c.id == _CHILD.c.spawned_by_execution)
    .where(_one_of(_PARENT.c.status, ENDED), _one_of(_CHILD.c.status, LIVE))
    .limit(bindparam("row_limit"))
)
"""Runs that go on though the run that waits for them has ended."""

LIVE_SUBAGENTS_OF: Final[Select[Any]] = select(EXECUTIONS.c.id).where(
    EXECUTIONS.c.spawned_by_execution == bindparam("execution_id"),
    _one_of(EXECUTIONS.c.status, LIVE),
)
"""Runs that one run waits for."""

STALLED_SESSIONS: Final[Select[Any]] = (
    select(EXECUTIONS.c.session)
    .where(
        EXECUTIONS.c.status == str(ExecutionStatus.PENDING),
        EXECUTIONS.c.session.is_not(None),
        ~exists(select(literal(1)).where(SESSION_TURNS.c.session == EXECUTIONS.c.session)),
    )
    .group_by(EXECUTIONS.c.session)
    .limit(bindparam("row_limit"))
)
"""Sessions in which a run waits though it is nobody's turn."""

NEXT_OF_SESSION: Final[Select[Any]] = (
    select(EXECUTIONS.c.id)
    .where(
        EXECUTIONS.c.session == bindparam("session"),
        EXECUTIONS.c.status == str(ExecutionStatus.PENDING),
        or_(EXECUTIONS.c.deadline_at.is_(None), EXECUTIONS.c.deadline_at > bindparam("now")),
    )
    .order_by(EXECUTIONS.c.id)
    .limit(1)
)
"""The run whose turn is next in a session."""

TURN_OF_SESSION: Final[Select[Any]] = select(SESSION_TURNS.c.execution_id).where(
    SESSION_TURNS.c.session == bindparam("session")
)
"""The run whose turn it is in a session."""

IS_SESSION_KNOWN: Final[Select[Any]] = (
    select(EXECUTIONS.c.id).where(EXECUTIONS.c.session == bindparam("session")).limit(1)
)
"""Whether a session has any run."""

LAST_OF_SESSION: Final[Select[Any]] = (
    select(EXECUTIONS.c.id, EXECUTIONS.c.tally)
    .where(
        EXECUTIONS.c.session == bindparam("session"),
        _one_of(EXECUTIONS.c.status, ENDED),
        EXECUTIONS.c.started_at.is_not(None),
    )
    .order_by(EXECUTIONS.c.started_at.desc())
    .limit(1)
)
"""The run that was last at work in a session, with what had been done by then."""

LAST_COMPLETED_OF_SESSION: Final[Select[Any]] = (
    select(EXECUTIONS.c.id)
    .where(
        EXECUTIONS.c.session == bindparam("session"),
        EXECUTIONS.c.agent_id == bindparam("agent_id"),
        EXECUTIONS.c.status == str(ExecutionStatus.COMPLETED),
    )
    .order_by(EXECUTIONS.c.created_at.desc(), EXECUTIONS.c.id.desc())
    .limit(1)
)
"""The run that becomes the parent of the next one of an agent in a session (protocol 4.5)."""

BY_IDEMPOTENCY_KEY: Final[Select[Any]] = select(IDEMPOTENCY_KEYS.c.execution_id).where(
    IDEMPOTENCY_KEYS.c.agent_id == bindparam("agent_id"),
    IDEMPOTENCY_KEYS.c.key == bindparam("key"),
)
"""The run that a client's key stands for."""

EXECUTIONS_PAGE: Final[Select[Any]] = (
    select(EXECUTIONS)
    .where(
        or_(
            bindparam("agent_id", type_=EXECUTIONS.c.agent_id.type) == "",
            EXECUTIONS.c.agent_id == bindparam("agent_id"),
        ),
        or_(
            bindparam("session", type_=EXECUTIONS.c.status.type) == "",
            EXECUTIONS.c.session == bindparam("session"),
        ),
        or_(
            bindparam("status", type_=EXECUTIONS.c.status.type) == "",
            EXECUTIONS.c.status == bindparam("status"),
        ),
        EXECUTIONS.c.id < bindparam("before"),
    )
    .order_by(EXECUTIONS.c.id.desc())
    .limit(bindparam("row_limit"))
)
"""A page of runs, the newest first; what is empty does not narrow."""

EXPIRED_EXECUTIONS: Final[Select[Any]] = (
    select(EXECUTIONS.c.id, EXECUTIONS.c.session)
    .where(
        _one_of(EXECUTIONS.c.status, ENDED),
        EXECUTIONS.c.updated_at < bindparam("before"),
        ~exists(
            select(literal(1)).where(
                EVENTS.c.execution_id == EXECUTIONS.c.id,
                # At the position itself there may be more than was shipped.
                EVENTS.c.position >= bindparam("shipped_to", type_=BigInteger()),
            )
        ),
        or_(
            EXECUTIONS.c.session.is_(None),
            ~exists(
                select(literal(1))
                .select_from(_CHILD)
                .where(
                    _CHILD.c.session == EXECUTIONS.c.session,
                    or_(
                        _one_of(_CHILD.c.status, LIVE),
                        _CHILD.c.updated_at >= bindparam("before"),
                    ),
                )
            ),
        ),
    )
    .order_by(EXECUTIONS.c.id)
    .limit(bindparam("row_limit"))
)
"""Runs that ended long enough ago and were shipped; those of a session only when all of it did."""

DELETE_EXECUTION: Final[tuple[Delete, ...]] = (
    delete(EVENTS).where(EVENTS.c.execution_id == bindparam("of_execution")),
    delete(STEPS).where(STEPS.c.execution_id == bindparam("of_execution")),
    delete(APPROVALS).where(APPROVALS.c.execution_id == bindparam("of_execution")),
    delete(DISPATCHES).where(DISPATCHES.c.execution_id == bindparam("of_execution")),
    delete(NOTES).where(NOTES.c.execution_id == bindparam("of_execution")),
    delete(IDEMPOTENCY_KEYS).where(IDEMPOTENCY_KEYS.c.execution_id == bindparam("of_execution")),
    delete(EXECUTIONS).where(EXECUTIONS.c.id == bindparam("of_execution")),
)
"""All that is kept of one run, the run itself last."""

EVENTS_BY_POSITION: Final[Select[Any]] = (
    select(EVENTS)
    .where(
        EVENTS.c.position >= bindparam("position"),
        EVENTS.c.position < bindparam("settled"),
        or_(
            EVENTS.c.position > bindparam("position"),
            EVENTS.c.execution_id > bindparam("after_execution"),
            and_(
                EVENTS.c.execution_id == bindparam("after_execution"),
                EVENTS.c.event_seq > bindparam("after_seq"),
            ),
        ),
    )
    .order_by(EVENTS.c.position, EVENTS.c.execution_id, EVENTS.c.event_seq)
    .limit(bindparam("row_limit"))
)
"""The events after a place in the order of commits."""

SINK_BY_NAME: Final[Select[Any]] = select(SINKS).where(SINKS.c.name == bindparam("sink_name"))
"""How far one exporter is."""

ALL_SINKS: Final[Select[Any]] = select(SINKS).order_by(SINKS.c.name)
"""How far every exporter is."""

_HELD: Final = and_(SINKS.c.name == bindparam("of_sink"), SINKS.c.holder == bindparam("of_holder"))

HOLD_SINK: Final[Update] = (
    update(SINKS)
    .where(SINKS.c.name == bindparam("of_sink"))
    .values(holder=bindparam("new_holder"), held_until=bindparam("until"))
)
"""Let a process run an exporter."""

ADVANCE_SINK: Final[Update] = (
    update(SINKS)
    .where(_HELD)
    .values(
        position=bindparam("new_position"),
        execution_id=bindparam("new_execution_id"),
        event_seq=bindparam("new_event_seq"),
        shipped_to=bindparam("new_shipped_to"),
        held_until=bindparam("until"),
        failing_since=None,
        error="",
    )
)
"""Say how far an exporter has come, unless another process runs it now."""

FAIL_SINK: Final[Update] = (
    update(SINKS)
    .where(_HELD)
    .values(
        failing_since=bindparam("since"),
        error=bindparam("new_error"),
        held_until=bindparam("until"),
    )
)
"""Say why an exporter ships nothing."""

RELEASE_SINK: Final[Update] = update(SINKS).where(_HELD).values(held_until=0)
"""Let another process run an exporter at once."""

DELETE_SINK: Final[tuple[Delete, ...]] = (
    delete(REFUSALS).where(REFUSALS.c.sink == bindparam("of_sink")),
    delete(SINKS).where(SINKS.c.name == bindparam("of_sink")),
)
"""Forget an exporter, with what it was refused."""

REFUSALS_OF_SINK: Final[Select[Any]] = (
    select(REFUSALS)
    .where(REFUSALS.c.sink == bindparam("sink_name"))
    .order_by(REFUSALS.c.refused_at.desc())
    .limit(bindparam("row_limit"))
)
"""What a sink has refused, the latest first."""

COUNT_REFUSALS: Final[Select[Any]] = select(
    REFUSALS.c.sink, func.count().label("refused")
).group_by(REFUSALS.c.sink)
"""How many events each sink has refused."""

LEAST_SHIPPED: Final[Select[Any]] = select(func.min(SINKS.c.position).label("position"))
"""How far the exporter that is furthest behind has shipped; null without exporters."""

AGENT_BY_ID: Final[Select[Any]] = select(AGENTS).where(AGENTS.c.id == bindparam("agent_id"))
"""One agent."""

ALL_AGENTS: Final[Select[Any]] = select(AGENTS).order_by(AGENTS.c.id)
"""Every agent, by id."""

DELETE_AGENT: Final[Delete] = delete(AGENTS).where(AGENTS.c.id == bindparam("of_agent"))
"""Forget an agent."""

DESCRIBE_AGENT: Final[Update] = (
    update(AGENTS)
    .where(AGENTS.c.id == bindparam("of_agent"))
    .values(
        description=bindparam("new_description"),
        input_schema=bindparam("new_input_schema"),
        output_schema=bindparam("new_output_schema"),
    )
)
"""What an agent says of itself."""

HAS_EXECUTIONS: Final[Select[Any]] = (
    select(EXECUTIONS.c.id).where(EXECUTIONS.c.agent_id == bindparam("agent_id")).limit(1)
)
"""Whether an agent has any run."""

BUNDLE_OF_AGENT: Final[Select[Any]] = select(BUNDLES).where(
    BUNDLES.c.agent_id == bindparam("agent_id")
)
"""The rules that came over the API for one agent."""

ALL_BUNDLES: Final[Select[Any]] = select(BUNDLES).order_by(BUNDLES.c.agent_id)
"""All rules that came over the API."""

DELETE_BUNDLE: Final[Delete] = delete(BUNDLES).where(BUNDLES.c.agent_id == bindparam("of_agent"))
"""Drop the rules that came over the API for one agent."""

ALL_API_KEYS: Final[Select[Any]] = select(API_KEYS).order_by(API_KEYS.c.id)
"""Every key, the oldest first."""

API_KEY_BY_ID: Final[Select[Any]] = select(API_KEYS).where(API_KEYS.c.id == bindparam("key_id"))
"""One key."""

REVOKE_API_KEY: Final[Update] = (
    update(API_KEYS)
    .where(API_KEYS.c.id == bindparam("of_key"), API_KEYS.c.revoked_at.is_(None))
    .values(revoked_at=bindparam("now"))
)
"""Make a key worthless from now on."""

ROTATE_API_KEY: Final[Update] = (
    update(API_KEYS)
    .where(API_KEYS.c.id == bindparam("of_key"), API_KEYS.c.revoked_at.is_(None))
    .values(token_hash=bindparam("new_hash"))
)
"""Give a key another token."""

TARGETS_OF_STEPS: Final[Select[Any]] = select(STEPS.c.step_id, STEPS.c.kind, STEPS.c.target).where(
    STEPS.c.execution_id == bindparam("execution_id")
)
"""What the steps of one run are called."""

LAST_CHECKPOINT: Final[Select[Any]] = (
    select(CHECKPOINTS).order_by(CHECKPOINTS.c.number.desc()).limit(1)
)
"""What was signed last."""

ALL_CHECKPOINTS: Final[Select[Any]] = select(CHECKPOINTS).order_by(CHECKPOINTS.c.number)
"""All that was signed, in order."""

POSITION_AHEAD: Final[Select[Any]] = (
    select(EVENTS.c.position)
    .where(
        EVENTS.c.position > bindparam("after", type_=BigInteger()),
        EVENTS.c.position < bindparam("settled", type_=BigInteger()),
    )
    .order_by(EVENTS.c.position)
    .offset(bindparam("ahead", type_=BigInteger()))
    .limit(1)
)
"""The position that lies so many events ahead, if so many are settled."""

_ENDING: Final = EVENTS.alias("ending")

ENDED_BETWEEN: Final[Select[Any]] = (
    select(EVENTS.c.execution_id, EVENTS.c.event_seq, EVENTS.c.hash)
    .join(_ENDING, _ENDING.c.execution_id == EVENTS.c.execution_id)
    .where(
        _ENDING.c.position > bindparam("after", type_=BigInteger()),
        _ENDING.c.position <= bindparam("upto", type_=BigInteger()),
        _one_of(_ENDING.c.type, tuple(f"execution.{status}" for status in ENDED)),
        # What was under way when a run ended is closed in the same commit, behind its end.
        EVENTS.c.event_seq
        == select(func.max(EVENTS.c.event_seq))
        .where(EVENTS.c.execution_id == _ENDING.c.execution_id)
        .correlate(_ENDING)
        .scalar_subquery(),
    )
    .order_by(EVENTS.c.execution_id)
)
"""The last events of the runs that ended within a range of positions."""

FORGOTTEN_UNDER: Final[Select[Any]] = (
    select(FORGOTTEN)
    .where(FORGOTTEN.c.key_id == bindparam("key_id"))
    .order_by(FORGOTTEN.c.execution_id)
    .limit(bindparam("row_limit"))
)
"""Runs that were deleted under a key, and that no checkpoint names yet."""

ALL_FORGOTTEN: Final[Select[Any]] = select(FORGOTTEN).order_by(FORGOTTEN.c.execution_id)
"""Every run that was deleted and that no checkpoint names yet."""

LOG_SIZES: Final[Select[Any]] = (
    select(EVENTS.c.execution_id, func.count().label("events"))
    .group_by(EVENTS.c.execution_id)
    .order_by(EVENTS.c.execution_id)
)
"""Every run that has a log, with its length."""

LOG_SIZES_OF_TIME: Final[Select[Any]] = LOG_SIZES.having(
    func.max(EVENTS.c.occurred_at) >= bindparam("since", type_=BigInteger()),
    func.min(EVENTS.c.occurred_at) < bindparam("until", type_=BigInteger()),
)
"""The same, of runs that were under way within a time."""


def _of_runs(table: Table, key: Column[Any]) -> Select[Any]:
    return (
        select(table)
        .where(
            key >= bindparam("first", type_=key.type),
            key <= bindparam("last", type_=key.type),
        )
        .order_by(*table.primary_key)
    )


RUNS_BETWEEN: Final[tuple[Select[Any], ...]] = (
    _of_runs(EVENTS, EVENTS.c.execution_id),
    _of_runs(EXECUTIONS, EXECUTIONS.c.id),
    _of_runs(DISPATCHES, DISPATCHES.c.execution_id),
    _of_runs(STEPS, STEPS.c.execution_id),
    _of_runs(APPROVALS, APPROVALS.c.execution_id),
)
"""What an auditor compares of the runs from one id to another: the log, then the read tables."""


def _without_log(table: Table, key: Column[Any]) -> Select[Any]:
    has_log = exists(select(literal_column("1")).where(EVENTS.c.execution_id == key))
    return (
        select(literal_column(f"'{table.name}'"), key).where(~has_log).group_by(key).order_by(key)
    )


ROWS_WITHOUT_LOG: Final[tuple[Select[Any], ...]] = (
    _without_log(EXECUTIONS, EXECUTIONS.c.id),
    _without_log(DISPATCHES, DISPATCHES.c.execution_id),
    _without_log(STEPS, STEPS.c.execution_id),
    _without_log(APPROVALS, APPROVALS.c.execution_id),
)
"""Runs that a read table has rows of, and the log has nothing."""
