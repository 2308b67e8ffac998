"""A database as the kernel sees it: what SQLite and PostgreSQL both do, and what can go wrong.

One set of tables and statements serves both (`tables`, `statements`). A third database is a third
class with these methods.
"""

from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import Table
from sqlalchemy.sql.base import Executable

from proctor_kernel.store.rows import Values

Row = dict[str, Any]
"""Column -> value."""


class StoreError(Exception):
    """The database cannot be used. The message names it and says what to do."""


class StoreUnavailable(StoreError):
    """The database could not record just now; a retry is safe."""


class Conflict(Exception):
    """A row with this primary key is there already."""


@dataclass(frozen=True, slots=True)
class Change:
    """Rows for one table. `replace`: a row with the same key gives way."""

    table: Table
    rows: Sequence[Values]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows of one table that go: those whose first key column is one of `keys`."""

    table: Table
    keys: Sequence[str]


class Transaction(Protocol):
    """A block that happens wholly or not at all."""

    async def read(self, statement: Executable, **values: object) -> list[Row]:
        """Run a select."""
        ...

    async def run(self, statement: Executable, **values: object) -> int:
        """Run a statement that changes rows; returns how many."""
        ...

    async def put(self, changes: Sequence[Change]) -> None:
        """Write rows."""
        ...


class Database(Protocol):
    """Where everything is kept.

    Every method raises `StoreUnavailable` when the database cannot be asked just now.
    """

    @property
    def name(self) -> str:
        """What messages call it; without a password."""
        ...

    @property
    def is_shared(self) -> bool:
        """True when other processes may be at work on the same runs."""
        ...

    def write(self, changes: Sequence[Change | Removal]) -> Awaitable[None] | None:
        """Write `changes` in one transaction; None: they are durable already.

        Raises `Conflict` (now or when awaited) when a row that must be new exists; nothing was
        written then.
        """
        ...

    async def read(self, statement: Executable, **values: object) -> list[Row]:
        """Run one select."""
        ...

    async def run(self, statement: Executable, **values: object) -> int:
        """Run one statement that changes rows; durable when it returns; returns how many.

        Raises `Conflict` as `write` does.
        """
        ...

    def exclusively(self, lock: str) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction that no other block with the same lock overlaps.

        INVARIANT: the block awaits nothing but this transaction.
        """
        ...

    async def settled(self) -> int:
        """Return the position below which no event is committed any more (`EVENTS.position`)."""
        ...

    async def ping(self) -> None:
        """Raise `StoreUnavailable` when the database does not answer."""
        ...

    async def aclose(self) -> None:
        """Let go of it; a later open finds everything that was acknowledged."""
        ...


SCHEMA_HEAD: Final = "0001"
"""The migration that this code's tables are at."""
