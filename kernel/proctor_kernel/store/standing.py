"""Statements that count what is there just now, for whoever watches the service."""

from typing import Any, Final

from sqlalchemy import Select, bindparam, distinct, func, or_, select

from proctor.wire.words import ApprovalStatus, ExecutionStatus
from proctor_kernel.store.statements import APPROVALS, DISPATCHES, EXECUTIONS, LIVE

_PENDING: Final = APPROVALS.c.status == str(ApprovalStatus.PENDING)

LIVE_BY_STATUS: Final[Select[Any]] = (
    select(EXECUTIONS.c.status, func.count().label("number"))
    .where(or_(*(EXECUTIONS.c.status == status for status in LIVE)))
    .group_by(EXECUTIONS.c.status)
)
"""Runs that have not ended, by status."""

OVERDUE: Final[Select[Any]] = select(func.count().label("number")).where(
    DISPATCHES.c.due_at <= bindparam("now")
)
"""Deliveries that somebody has to look at."""

PENDING_APPROVALS: Final[Select[int, Any]] = select(
    func.count().label("number"), func.min(APPROVALS.c.requested_at).label("oldest")
).where(_PENDING)
"""Approvals that wait, and since when the oldest does; null when none does."""

EXPIRING_APPROVALS: Final[Select[Any]] = select(func.count().label("number")).where(
    _PENDING, APPROVALS.c.expires_at <= bindparam("until")
)
"""Approvals that wait and are about to expire."""

WAITING_SESSIONS: Final[Select[Any]] = select(
    func.count(distinct(EXECUTIONS.c.session)).label("number"),
).where(EXECUTIONS.c.status == str(ExecutionStatus.PENDING), EXECUTIONS.c.session.is_not(None))
"""Sessions in which a run waits for its turn."""
