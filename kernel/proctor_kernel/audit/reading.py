"""Reads a database for an auditor: nothing is written, also beside a kernel that is at work.

Rows come as the driver has them, since a checker believes no column to be of its type. Nothing
here needs SQLAlchemy, which would take each worker as long to import as it has to check.
"""

import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

Rows = Sequence[Sequence[Any]]

Read = Callable[..., Awaitable[Rows]]
"""SQL and its values, in order -> rows."""

_OURS: Final = 0x50524354


class CannotRead(Exception):
    """The database cannot be checked. The message names it and says why."""


class Source:
    """A database that is only read."""

    def __init__(self, where: str) -> None:
        """`where`: a SQLite file, or `postgresql://...`."""
        self.where = where
        self.is_postgres = where.startswith(("postgresql://", "postgres://"))
        self.name = _without_password(where) if self.is_postgres else where

    @asynccontextmanager
    async def opened(self) -> "AsyncIterator[Snapshots]":
        """Open it for the time of a block.

        Raises:
            CannotRead: it is not there, not ours, or does not answer.
        """
        if self.is_postgres:
            async with _postgres(self) as opened:
                yield opened
        else:
            connection = _sqlite(self.where)
            try:
                yield _File(connection, self.where)
            finally:
                connection.close()


class Snapshots:
    """An open database."""

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Read]:
        """Give a way to read; all that is read in one block is of one moment."""
        raise NotImplementedError
        yield  # it is a generator


class _File(Snapshots):
    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Read]:
        async def read(sql: str, *values: Any) -> Rows:
            return self._connection.execute(sql, values).fetchall()

        try:
            self._connection.execute("BEGIN")
            try:
                yield read
            finally:
                self._connection.execute("ROLLBACK")
        except sqlite3.DatabaseError as error:
            raise CannotRead(f"{self._name}: {error}") from error


class _Server(Snapshots):
    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self._name = name

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Read]:
        import asyncpg

        async def read(sql: str, *values: Any) -> Rows:
            rows: Rows = await self._connection.fetch(sql, *values)
            return rows

        try:
            async with self._connection.transaction(isolation="repeatable_read", readonly=True):
                yield read
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise CannotRead(f"{self._name}: {str(error) or type(error).__name__}") from error


@asynccontextmanager
async def _postgres(source: Source) -> AsyncIterator[_Server]:
    import asyncpg

    try:
        connection = await asyncpg.connect(
            source.where,
            timeout=10,
            server_settings={
                "application_name": "proctor audit",
                "default_transaction_read_only": "on",
            },
        )
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, ValueError) as error:
        raise CannotRead(f"{source.name}: {str(error) or type(error).__name__}") from error
    try:
        yield _Server(connection, source.name)
    finally:
        await connection.close()


def _sqlite(path: str) -> sqlite3.Connection:
    if not Path(path).is_file():
        raise CannotRead(f"{path}: there is no such file; name the database with --database")
    address = f"file:{quote(str(Path(path).resolve()))}?mode=ro"
    try:
        try:
            connection = _connected(address)
        except sqlite3.OperationalError:
            # Reading a file in WAL mode makes files beside it, which a folder that cannot be
            # written does not take. Whoever writes to the database has made them.
            if os.path.exists(f"{path}-wal"):
                raise
            connection = _connected(f"{address}&immutable=1")
    except sqlite3.DatabaseError as error:
        raise CannotRead(f"{path}: {error}") from error
    if connection.execute("PRAGMA application_id").fetchone()[0] != _OURS:
        connection.close()
        raise CannotRead(f"{path}: this is not a database of Proctor")
    return connection


def _connected(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=5)
    # Bytes that are no text must be found, not stop the search.
    connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", "@")))
