"""The order of commits: a number for each event, which exporters follow without missing any.

A clock would not do: of two replicas, the one that took its time first may commit last. On
PostgreSQL the number is the transaction's own; nothing that commits from now on has one below the
oldest transaction still under way. On SQLite, with one writer, the store counts.
"""

from typing import Final

from sqlalchemy import DDL, event

from proctor_kernel.store import statements

_FUNCTION: Final = """
CREATE OR REPLACE FUNCTION proctor_position(of_transaction xid8) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT of_transaction::text::bigint + {ahead}'
"""

FROM_COMMITS: Final = (
    _FUNCTION.format(ahead=0),
    "ALTER TABLE events ALTER COLUMN position SET DEFAULT proctor_position(pg_current_xact_id())",
)
"""Let PostgreSQL fill in the column."""

DROP: Final = "DROP FUNCTION proctor_position(xid8)"

SETTLED: Final = "SELECT proctor_position(pg_snapshot_xmin(pg_current_snapshot()))"
"""The position below which PostgreSQL commits no event any more."""

LATEST_AND_NEXT: Final = (
    "SELECT greatest((SELECT max(position) FROM events), (SELECT max(position) FROM sinks),"
    " (SELECT max(position) FROM checkpoints)) AS latest,"
    " proctor_position(pg_current_xact_id()) AS next,"
    " pg_current_xact_id()::text::bigint AS transaction"
)
"""The highest position that anybody knows of, and the one that is given now.

What was shipped or signed counts too: retention may have deleted the latest events.
"""


def ahead_of(latest: int, transaction: int) -> str:
    """Return the statement that gives positions above `latest` from now on.

    A database that was restored from a dump has the positions of another server, whose transactions
    may have had higher numbers.
    """
    return _FUNCTION.format(ahead=latest + 1 - transaction)


for _statement in FROM_COMMITS:
    _ddl = DDL(_statement)  # type: ignore[no-untyped-call]  # SQLAlchemy's own
    event.listen(statements.EVENTS, "after_create", _ddl.execute_if(dialect="postgresql"))
