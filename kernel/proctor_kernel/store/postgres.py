"""PostgreSQL, for any number of kernels on the same runs.

SQLAlchemy compiles the statements, once each; they run on asyncpg itself. What is appended goes in
one statement of its own: a data-modifying WITH, so one round trip, wholly or not at all.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from sqlalchemy import BigInteger, Boolean, Column, Integer, Table
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.base import Executable

from proctor_kernel.store import migrate, positions
from proctor_kernel.store.database import (
    Change,
    Conflict,
    Removal,
    Row,
    StoreError,
    StoreUnavailable,
)
from proctor_kernel.store.tables import ASSIGNED
from proctor_kernel.store.watch import UNWATCHED, StoreWatch

CONNECTIONS_MAX: Final = 10
"""Connections of one kernel process, one more for listening aside."""

STATEMENT_SECONDS_MAX: Final = 10.0
"""How long one statement, or waiting for a connection, may take before it counts as failed."""

_MIGRATION_LOCK: Final = 0x50524354
_CHANNEL: Final = "proctor"
_NOTICE_BYTES_MAX: Final = 7900
_RELISTEN_SECONDS: Final = 0.5
_DIALECT: Final = asyncpg_dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's own

_GONE: Final = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.exceptions.CannotConnectNowError,
    asyncpg.exceptions.ReadOnlySQLTransactionError,
    asyncpg.exceptions.TransactionRollbackError,
)

_logger = logging.getLogger(__name__)

Heard = Callable[[str], None]


class Postgres:
    """A pool of connections to one database."""

    is_shared = True

    def __init__(self, pool: "asyncpg.Pool[Any]", name: str, watch: StoreWatch = UNWATCHED) -> None:
        self.name = name
        self._watch = watch
        self._pool = pool
        self._compiled: dict[Executable, tuple[str, Any]] = {}
        self._writes: dict[tuple[Any, ...], str] = {}
        self._listening: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Close every connection."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._pool.close()

    async def write(self, changes: Sequence[Change | Removal]) -> None:
        """Write `changes` in one statement; when this returns they are durable."""
        parts = [each for each in changes if isinstance(each, Removal) or each.rows]
        if not parts:
            return
        sql = self._write_sql(parts)
        values = [value for part in parts for value in _arrays(part)]
        with self._told_plainly():
            await self._pool.execute(sql, *values, timeout=STATEMENT_SECONDS_MAX)

    async def read(self, statement: Executable, **values: object) -> list[Row]:
        """Run one select."""
        sql, arguments = self._prepared(statement, values)
        with self._told_plainly():
            found = await self._pool.fetch(sql, *arguments, timeout=STATEMENT_SECONDS_MAX)
        return [dict(row) for row in found]

    async def run(self, statement: Executable, **values: object) -> int:
        """Run one statement that changes rows; durable when it returns; returns how many."""
        sql, arguments = self._prepared(statement, values)
        with self._told_plainly():
            status = await self._pool.execute(sql, *arguments, timeout=STATEMENT_SECONDS_MAX)
        return _count(status)

    @asynccontextmanager
    async def exclusively(self, lock: str) -> AsyncIterator["_Transaction"]:
        """Open a transaction that holds an advisory lock by this name to its end."""
        with self._told_plainly():
            async with (
                self._pool.acquire(timeout=STATEMENT_SECONDS_MAX) as connection,
                connection.transaction(),
            ):
                await connection.execute(
                    "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))",
                    lock,
                    timeout=STATEMENT_SECONDS_MAX,
                )
                yield _Transaction(self, connection)

    async def settled(self) -> int:
        """Return the position below which no event is committed any more."""
        with self._told_plainly():
            found = await self._pool.fetchval(positions.SETTLED, timeout=STATEMENT_SECONDS_MAX)
        return int(found)

    async def ping(self) -> None:
        """Raise `StoreUnavailable` when the database does not answer within two seconds."""
        with self._told_plainly():
            await self._pool.fetchval("SELECT 1", timeout=2.0)

    async def notify(self, text: str) -> None:
        """Tell every process that listens; `text` of at most 7,900 bytes."""
        assert len(text.encode()) <= _NOTICE_BYTES_MAX, "whoever writes a notice keeps it short"
        with self._told_plainly():
            await self._pool.execute(
                "SELECT pg_notify($1, $2)", _CHANNEL, text, timeout=STATEMENT_SECONDS_MAX
            )

    def listen(self, heard: Heard, missed: Callable[[], None]) -> None:
        """Call `heard` with each notice from now on.

        `missed` is called whenever some may have been lost, because the connection was.
        """
        self._listening = asyncio.create_task(self._listen(heard, missed), name="listen")

    async def _listen(self, heard: Heard, missed: Callable[[], None]) -> None:
        while True:
            try:
                await self._listen_once(heard, missed)
            except (*_GONE, asyncpg.PostgresError) as error:
                _logger.warning("%s: not listening: %s", self.name, error)
            await asyncio.sleep(_RELISTEN_SECONDS)

    async def _listen_once(self, heard: Heard, missed: Callable[[], None]) -> None:
        async with self._pool.acquire(timeout=STATEMENT_SECONDS_MAX) as connection:
            lost = asyncio.Event()

            def end(_: Any) -> None:
                lost.set()

            def take(*told: Any) -> None:
                heard(str(told[3]))

            connection.add_termination_listener(end)
            await connection.add_listener(_CHANNEL, take)
            try:
                missed()
                await lost.wait()
            finally:
                # The pool does not take back a connection that still listens.
                connection.remove_termination_listener(end)
                if not connection.is_closed():
                    await connection.remove_listener(_CHANNEL, take)

    @contextmanager
    def _told_plainly(self) -> Iterator[None]:
        try:
            yield
        except asyncpg.UniqueViolationError as error:
            raise Conflict(str(error)) from error
        except _GONE as error:
            text = str(error) or type(error).__name__
            self._watch.unavailable()
            raise StoreUnavailable(f"{self.name}: {text}") from error

    def _prepared(self, statement: Executable, values: Row) -> tuple[str, list[Any]]:
        if statement not in self._compiled:
            compiled = statement.compile(dialect=_DIALECT)  # type: ignore[attr-defined]  # has it
            self._compiled[statement] = (str(compiled), compiled)
        sql, compiled = self._compiled[statement]
        given = compiled.construct_params(values)
        return sql, [given[name] for name in compiled.positiontup or ()]

    def _write_sql(self, parts: Sequence[Change | Removal]) -> str:
        key = tuple(
            (part.table.name, isinstance(part, Change) and part.replace, type(part))
            for part in parts
        )
        if key not in self._writes:
            self._writes[key] = _with(parts)
        return self._writes[key]


class _Transaction:
    """The block of `Postgres.exclusively`."""

    def __init__(self, database: Postgres, connection: Any) -> None:
        self._database = database
        self._connection = connection

    async def read(self, statement: Executable, **values: object) -> list[Row]:
        """Run a select."""
        sql, arguments = self._database._prepared(statement, values)
        found = await self._connection.fetch(sql, *arguments, timeout=STATEMENT_SECONDS_MAX)
        return [dict(row) for row in found]

    async def run(self, statement: Executable, **values: object) -> int:
        """Run a statement that changes rows; returns how many."""
        sql, arguments = self._database._prepared(statement, values)
        status = await self._connection.execute(sql, *arguments, timeout=STATEMENT_SECONDS_MAX)
        return _count(status)

    async def put(self, changes: Sequence[Change]) -> None:
        """Write rows."""
        parts = [each for each in changes if each.rows]
        if parts:
            values = [value for part in parts for value in _arrays(part)]
            await self._connection.execute(
                self._database._write_sql(parts), *values, timeout=STATEMENT_SECONDS_MAX
            )


async def open_postgres(
    url: str, *, connections_max: int = CONNECTIONS_MAX, watch: StoreWatch = UNWATCHED
) -> Postgres:
    """Connect, bring the tables up to date under a lock that replicas share, and open a pool.

    `url`: `postgresql://user:password@host:port/database`, as libpq reads it.

    Raises:
        StoreError: the database cannot be reached or used; says which and why.
    """
    name = _without_password(url)
    try:
        await _migrate(url, name)
        pool = await asyncpg.create_pool(
            url,
            min_size=2,
            max_size=connections_max + 1,
            command_timeout=STATEMENT_SECONDS_MAX,
            reset=_leave,
            server_settings={"application_name": "proctor", "TimeZone": "UTC"},
        )
    except (*_GONE, asyncpg.PostgresError, ValueError) as error:
        raise StoreError(f"{name}: {str(error) or type(error).__name__}") from error
    return Postgres(pool, name, watch)


async def _leave(_: Any) -> None:
    """Reset nothing when a connection goes back to the pool.

    What we do leaves no session state behind, and asking the server to drop it would be a second
    round trip for every append.
    """


async def _migrate(url: str, name: str) -> None:
    async def connect() -> Any:
        return await asyncpg.connect(url, timeout=STATEMENT_SECONDS_MAX)

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            # Held to the end of the transaction: replicas that start together take turns.
            await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            await connection.run_sync(lambda sync: migrate.to_head(sync, name))
            found = (await connection.exec_driver_sql(positions.LATEST_AND_NEXT)).one()
            if found.latest is not None and found.latest >= found.next:
                await connection.exec_driver_sql(
                    positions.ahead_of(found.latest, found.transaction)
                )
    finally:
        await engine.dispose()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", "@")))


def _with(parts: Sequence[Change | Removal]) -> str:
    number = 0
    written = []
    for index, part in enumerate(parts):
        table = part.table
        if isinstance(part, Removal):
            number += 1
            (key, *_) = table.primary_key
            written.append(
                f"w{index} AS (DELETE FROM {table.name} "
                f'WHERE "{key.name}" = ANY(${number}::text[]))'
            )
            continue
        columns = _given(table)
        names = ", ".join(f'"{column.name}"' for column in columns)
        arrays = ", ".join(
            f"${number + offset}::{_type(column)}[]" for offset, column in enumerate(columns, 1)
        )
        number += len(columns)
        written.append(
            f"w{index} AS (INSERT INTO {table.name} ({names}) "
            f"SELECT * FROM unnest({arrays}){_on_conflict(table) if part.replace else ''})"
        )
    return f"WITH {', '.join(written)} SELECT 1"


def _on_conflict(table: Table) -> str:
    keys = ", ".join(f'"{column.name}"' for column in table.primary_key)
    others = ", ".join(
        f'"{column.name}" = excluded."{column.name}"'
        for column in table.columns
        if not column.primary_key
    )
    return f" ON CONFLICT ({keys}) DO UPDATE SET {others}"


def _type(column: "Column[Any]") -> str:
    match column.type:
        case BigInteger():
            return "bigint"
        case Integer():
            return "integer"
        case Boolean():
            return "boolean"
        case _:
            return "text"


def _arrays(part: Change | Removal) -> list[list[Any]]:
    if isinstance(part, Removal):
        return [list(part.keys)]
    return [[row[column.name] for row in part.rows] for column in _given(part.table)]


def _given(table: Table) -> "list[Column[Any]]":
    return [column for column in table.columns if not column.info.get(ASSIGNED)]


def _count(status: str) -> int:
    # "INSERT 0 1", "UPDATE 3", "DELETE 2"
    last = status.rpartition(" ")[2]
    return int(last) if last.isdigit() else 0
