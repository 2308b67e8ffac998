"""The log of one run, read from the database itself, as the API would show it."""

from proctor_kernel import views
from proctor_kernel.audit.reading import Source
from proctor_kernel.audit.sql import Sql
from proctor_kernel.store import statements
from proctor_kernel.views import View


async def entries(where: str, execution_id: str) -> list[View]:
    """Return every entry of a run's log, in order; empty when there is no such run.

    Raises:
        CannotRead: the database cannot be read.
    """
    source = Source(where)
    sql = Sql(source.is_postgres)
    columns = [column.name for column in statements.EVENTS.columns]
    async with source.opened() as opened, opened.snapshot() as read:
        log = await read(sql.text(statements.LOG_OF_EXECUTION), execution_id)
        targets = await read(sql.text(statements.TARGETS_OF_STEPS), execution_id)
    called = {step_id: (kind, target) for step_id, kind, target in targets}
    rows = [dict(zip(columns, row, strict=True)) for row in log]
    return [views.to_python(views.event(row, called)) for row in rows]


async def ids(where: str) -> list[str]:
    """Return the ids of all runs; raises `CannotRead`."""
    source = Source(where)
    async with source.opened() as opened, opened.snapshot() as read:
        found = await read(Sql(source.is_postgres).text(statements.EXECUTION_IDS))
    return [str(row[0]) for row in found]
