"""Is the log what was written? Every run's hash chain is recomputed from the stored rows."""

from dataclasses import dataclass

from proctor_kernel.core.chain import Break, first_break
from proctor_kernel.store import statements
from proctor_kernel.store.database import Database
from proctor_kernel.store.log import row_of


@dataclass(frozen=True, slots=True)
class Report:
    """What was checked, and the first broken place of each run that has one."""

    executions: int
    events: int
    breaks: tuple[Break, ...]


async def verify(database: Database) -> Report:
    """Check the chain of every run in `database`.

    An edited, dropped, inserted or reordered event is found. A log whose last events were
    cut off, or that was rewritten as a whole, is a valid chain: only a copy of its heads kept
    elsewhere shows that.
    """
    executions = events = 0
    breaks = []
    for row in await database.read(statements.EXECUTION_IDS):
        execution_id = row["execution_id"]
        rows = [
            row_of(values)
            for values in await database.read(
                statements.LOG_OF_EXECUTION, execution_id=execution_id
            )
        ]
        executions += 1
        events += len(rows)
        broken = first_break(execution_id, rows)
        if broken is not None:
            breaks.append(broken)
    return Report(executions, events, tuple(breaks))
