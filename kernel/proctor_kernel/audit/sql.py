"""Statements as text, for those who read a database without SQLAlchemy."""

from typing import Any

from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from proctor_kernel.audit.checking import Select, Selects
from proctor_kernel.store import statements


class Sql:
    """Statements as the driver of one kind of database takes them."""

    def __init__(self, is_postgres: bool) -> None:
        self._dialect = asyncpg_dialect() if is_postgres else sqlite_dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own

    def text(self, statement: Any) -> str:
        """Return the SQL of a statement; its values are given in order."""
        return str(statement.compile(dialect=self._dialect))

    @property
    def selects(self) -> Selects:
        """How the runs between two ids are read."""
        log, *tables = (self._select(statement) for statement in statements.RUNS_BETWEEN)
        return Selects(log, tuple(tables))

    def _select(self, statement: Any) -> Select:
        columns = tuple(column.name for column in statement.selected_columns)
        key = "execution_id" if "execution_id" in columns else "id"
        return Select(self.text(statement), columns, key)
