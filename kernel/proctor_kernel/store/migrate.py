"""The tables of a database, brought to what this code expects.

Alembic's revisions say how; it is imported only when there is something to do, since a database
that is up to date, or new, needs none of it.
"""

from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Select, column, inspect, select, table, text

from proctor_kernel.store import positions as positions  # adds to what `create_all` makes
from proctor_kernel.store.database import SCHEMA_HEAD, StoreError
from proctor_kernel.store.statements import METADATA

REVISION: Final[Select[Any]] = select(column("version_num")).select_from(table("alembic_version"))
"""The revision that a database is at."""

_MIGRATIONS: Final = Path(__file__).with_name("migrations")


def revision_of(connection: Connection) -> str | None:
    """Return the revision that a database is at, or None when it has no tables of ours."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).first()
    return None if found is None else str(found[0])


def to_head(connection: Connection, name: str) -> None:
    """Create or upgrade the tables, within the caller's transaction.

    Raises:
        StoreError: the database is newer than this code.
    """
    revision = revision_of(connection)
    if revision == SCHEMA_HEAD:
        return
    if revision is None:
        METADATA.create_all(connection)
        connection.execute(
            text(
                "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
                "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
            )
        )
        connection.execute(
            text("INSERT INTO alembic_version (version_num) VALUES (:head)"), {"head": SCHEMA_HEAD}
        )
        return
    upgrade(connection, name)


def upgrade(connection: Connection, name: str) -> None:
    """Run the revisions that a database lacks, from the first one on if it has none.

    Raises:
        StoreError: the database is newer than this code.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StoreError(f"{name}: {error}; a newer Proctor has used this database") from error
