"""SQLite: one file, one connection, one process. The embedded store, and that of `proctor dev`."""

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Literal, get_args

from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import StaticPool
from sqlalchemy.sql.base import Executable

from proctor_kernel.store import migrate
from proctor_kernel.store.database import (
    Change,
    Conflict,
    Removal,
    Row,
    StoreError,
    StoreUnavailable,
)
from proctor_kernel.store.rows import Values
from proctor_kernel.store.statements import EVENTS
from proctor_kernel.store.watch import UNWATCHED, StoreWatch

Synchronous = Literal["FULL", "NORMAL"]
"""FULL survives a power cut; NORMAL may lose the last commits to one, never to a crash."""

IN_MEMORY: Final = ":memory:"

_APPLICATION_ID: Final = 0x50524354
_BUSY_SECONDS: Final = 5.0
_LATEST_POSITION: Final = """
SELECT max(coalesce((SELECT max(position) FROM events), 0),
           coalesce((SELECT max(position) FROM sinks), 0),
           coalesce((SELECT max(position) FROM checkpoints), 0))
"""


class SQLite:
    """One SQLite file in WAL mode, on one connection.

    SQLAlchemy compiles the statements, once each; they run on the driver itself, because
    what SQLAlchemy does for each call would cost more than SQLite's own work.
    """

    def __init__(self, path: str, synchronous: Synchronous, watch: StoreWatch = UNWATCHED) -> None:
        """Open or create the file.

        Raises:
            StoreError: it is not ours, is read-only, damaged, or newer than this code.
        """
        if synchronous not in get_args(Synchronous):
            raise ValueError(f"synchronous must be 'FULL' or 'NORMAL', not {synchronous!r}")
        self.name = path
        self.is_shared = False
        self._watch = watch
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
        self._position = 0
        self._version = -1
        self._follow_others()

    def close(self) -> None:
        """Close the file; a later open finds everything that was acknowledged."""
        self._connection.close()
        self._engine.dispose()

    async def aclose(self) -> None:
        """Close the file, as `close` does."""
        self.close()

    def write(self, changes: Sequence[Change | Removal]) -> None:
        """Write `changes` in one transaction; when this returns they are durable."""
        with self._exclusively():
            self._put(changes)

    async def read(self, statement: Executable, **values: object) -> list[Row]:
        """Run one select."""
        with self._told_plainly():
            return [dict(row) for row in self._connection.execute(statement, values).mappings()]

    async def run(self, statement: Executable, **values: object) -> int:
        """Run one statement that changes rows; durable when it returns; returns how many."""
        with self._exclusively():
            return int(self._connection.execute(statement, values).rowcount)

    @asynccontextmanager
    async def exclusively(self, lock: str) -> AsyncIterator["_Transaction"]:
        """Hold the file's write lock for a block that is one transaction."""
        # INVARIANT: the block awaits only the transaction, which never lets others run: the
        # connection is theirs too.
        with self._exclusively():
            yield _Transaction(self)

    async def settled(self) -> int:
        """Return the position of the next event: there is one writer at a time."""
        with self._told_plainly():
            self._follow_others()
        return self._position + 1

    async def ping(self) -> None:
        """Raise `StoreUnavailable` when the file cannot be read."""
        with self._told_plainly():
            self._driver.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()

    @contextmanager
    def _exclusively(self) -> Iterator[None]:
        with self._told_plainly(), _transaction(self._driver):
            yield

    @contextmanager
    def _told_plainly(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, DatabaseError) as error:
            original = getattr(error, "orig", None) or error
            if isinstance(original, sqlite3.IntegrityError):
                raise Conflict(str(original)) from error
            self._watch.unavailable()
            raise StoreUnavailable(f"{self.name}: {_plainly(error)}") from error

    def _put(self, changes: Sequence[Change | Removal]) -> None:
        for change in changes:
            match change:
                case Removal(table, keys):
                    (key, *_) = table.primary_key
                    sql = f"DELETE FROM {table.name} WHERE {key.name} = ?"
                    self._driver.executemany(sql, [(value,) for value in keys])
                case Change(table, rows) if table is EVENTS:
                    self._driver.executemany(self._write_sql(change), self._placed(rows))
                case Change() if change.rows:
                    self._driver.executemany(self._write_sql(change), change.rows)

    def _follow_others(self) -> None:
        """Count on from what was written to the file by others than this connection."""
        version = self._driver.execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            # What was shipped or signed counts too: retention may have deleted the latest events.
            latest = self._driver.execute(_LATEST_POSITION).fetchone()[0]
            self._version, self._position = version, max(self._position, latest)

    def _placed(self, rows: Sequence[Values]) -> Iterator[Values]:
        self._follow_others()
        for row in rows:
            self._position += 1
            yield {**row, "position": self._position}

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


class _Transaction:
    """The block of `SQLite.exclusively`."""

    def __init__(self, database: SQLite) -> None:
        self._database = database

    async def read(self, statement: Executable, **values: object) -> list[Row]:
        """Run a select."""
        return await self._database.read(statement, **values)

    async def run(self, statement: Executable, **values: object) -> int:
        """Run a statement that changes rows; returns how many."""
        return int(self._database._connection.execute(statement, values).rowcount)

    async def put(self, changes: Sequence[Change]) -> None:
        """Write rows."""
        self._database._put(changes)


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
        if tables and owner != _APPLICATION_ID:
            raise StoreError(
                f"{path}: this is another program's database; name a new file, or one of ours"
            )
        driver.execute("PRAGMA journal_mode=WAL")
        driver.execute(f"PRAGMA synchronous={synchronous}")
        with _transaction(driver):
            # Written even when it is the same: a file that cannot be written is found now.
            driver.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            migrate.to_head(connection, path)


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
