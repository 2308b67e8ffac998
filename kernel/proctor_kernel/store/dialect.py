"""Where databases differ: how one is opened, how rows are replaced, what its errors mean.

`SQLite` is the embedded store. A second database is a second class with the same methods.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from sqlalchemy import Delete, Engine, Table, create_engine
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import StaticPool

from proctor_kernel.store.rows import Values
from proctor_kernel.store.statements import METADATA

Synchronous = Literal["FULL", "NORMAL"]
"""FULL survives a power cut; NORMAL may lose the last commits to one, never to a crash."""

IN_MEMORY: Final = ":memory:"

_APPLICATION_ID: Final = 0x50524354
_SCHEMA_VERSION: Final = 1
_BUSY_SECONDS: Final = 5.0


class StoreError(Exception):
    """The database cannot be used. The message names it and says what to do."""


class StoreUnavailable(StoreError):
    """The database could not record just now; nothing of it was kept, and a retry is safe."""


class Conflict(Exception):
    """A row with this primary key is there already."""


@dataclass(frozen=True, slots=True)
class Change:
    """Rows for one table; `replace`: a row with the same key gives way."""

    table: Table
    rows: Sequence[Values]
    replace: bool


class SQLite:
    """One SQLite file in WAL mode, on one connection.

    SQLAlchemy compiles the statements, once each; they run on the driver itself, because
    what SQLAlchemy does for each call would cost more than SQLite's own work.
    """

    def __init__(self, path: str, synchronous: Synchronous) -> None:
        """Open or create the file.

        Raises:
            StoreError: it is not ours, is read-only, damaged, or newer than this code.
        """
        if synchronous not in get_args(Synchronous):
            raise ValueError(f"synchronous must be 'FULL' or 'NORMAL', not {synchronous!r}")
        self.name = path
        self._sql: dict[tuple[str, bool], str] = {}
        check_place(path)
        self._engine = create_engine(
            f"sqlite:///{path}",
            poolclass=StaticPool,
            isolation_level="AUTOCOMMIT",
            connect_args={"timeout": _BUSY_SECONDS, "check_same_thread": False},
        )
        try:
            _prepare(self._engine, path, synchronous)
            self._connection = self._engine.connect()
        except (DatabaseError, sqlite3.Error) as error:
            self._engine.dispose()
            raise StoreError(f"{path}: {_plainly(error)}") from error
        except StoreError:
            self._engine.dispose()
            raise
        driver = self._connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        self._driver = driver

    def close(self) -> None:
        """Close the file; a later open finds everything that was acknowledged."""
        self._connection.close()
        self._engine.dispose()

    def write(self, changes: Sequence[Change]) -> None:
        """Write `changes` in one transaction; when this returns they are durable.

        Raises:
            Conflict: a row that must be new exists; nothing was written.
            StoreUnavailable: the file could not be written; nothing was written.
        """
        with self.exclusively():
            self.put(changes)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Hold the file's write lock for a block that is one transaction.

        Raises:
            Conflict, StoreUnavailable: as `write`; nothing of the block was written.
        """
        try:
            with _transaction(self._driver):
                yield
        except sqlite3.IntegrityError as error:
            raise Conflict(str(error)) from error
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self.name}: {_plainly(error)}") from error

    def put(self, changes: Sequence[Change]) -> None:
        """Write `changes` within the block of `exclusively`."""
        for change in changes:
            if change.rows:
                self._driver.executemany(self._write_sql(change), change.rows)

    def run(self, statement: Delete, **values: object) -> None:
        """Run a statement that returns nothing, within the block of `exclusively`."""
        self._connection.execute(statement, values)

    def read(self, statement: Any, **values: object) -> list[dict[str, Any]]:
        """Run one select and return its rows as column -> value.

        Raises:
            StoreUnavailable: the file could not be read.
        """
        try:
            return [dict(row) for row in self._connection.execute(statement, values).mappings()]
        except DatabaseError as error:
            raise StoreUnavailable(f"{self.name}: {_plainly(error)}") from error

    def _write_sql(self, change: Change) -> str:
        key = (change.table.name, change.replace)
        if key not in self._sql:
            statement = insert(change.table)
            if change.replace:
                replaced = {
                    column.name: statement.excluded[column.name]
                    for column in change.table.columns
                    if not column.primary_key
                }
                statement = statement.on_conflict_do_update(
                    index_elements=list(change.table.primary_key), set_=replaced
                )
            self._sql[key] = str(statement.compile(dialect=sqlite_dialect(paramstyle="named")))
        return self._sql[key]


@contextmanager
def _transaction(driver: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE: the lock is taken before anything is written, so a busy file fails here.
    driver.execute("BEGIN IMMEDIATE")
    try:
        yield
        driver.execute("COMMIT")
    except BaseException:
        if driver.in_transaction:
            driver.execute("ROLLBACK")
        raise


def check_place(path: str) -> None:
    """Raise `StoreError` when no database file can be at `path`."""
    if path == IN_MEMORY:
        return
    file = Path(path)
    if file.is_dir():
        raise StoreError(f"{path}: this is a folder; name a database file in it")
    if not file.parent.is_dir():
        raise StoreError(f"{path}: the folder {str(file.parent)!r} does not exist")


def _prepare(engine: Engine, path: str, synchronous: Synchronous) -> None:
    """Make the file ours if it is new; otherwise check that it is."""
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        tables = driver.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        owner = driver.execute("PRAGMA application_id").fetchone()[0]
        version = driver.execute("PRAGMA user_version").fetchone()[0]
        if tables and owner != _APPLICATION_ID:
            raise StoreError(
                f"{path}: this is another program's database; name a new file, or one of ours"
            )
        if tables and version != _SCHEMA_VERSION:
            raise StoreError(
                f"{path}: its schema is version {version}, this Proctor reads {_SCHEMA_VERSION}"
            )
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute(f"PRAGMA synchronous={synchronous}")
        with _transaction(driver):
            # Written even when it is the same: a file that cannot be written is found now.
            driver.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            driver.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
            METADATA.create_all(connection)


def _plainly(error: Exception) -> str:
    """Return what a driver's error means for whoever chose the file."""
    text = str(getattr(error, "orig", None) or error)
    advice = {
        "file is not a database": "this is not a SQLite database; name a new file",
        "attempt to write a readonly database": "the file or its folder is read-only",
        "unable to open database file": "it cannot be opened; check the folder's permissions",
        "database is locked": "another process holds it; stop that one or wait",
        "database disk image is malformed": "the file is damaged; restore it from a backup",
        "database or disk is full": "the disk is full",
    }
    return advice.get(text, text)
