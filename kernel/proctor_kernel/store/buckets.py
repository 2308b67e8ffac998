"""Rate buckets: how many calls of a kind started within the last so many seconds.

A bucket remembers each call for as long as its window, so a limit is never overshot, not even
at the edge of a window. A token is held under the id of its step: deciding twice takes one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Database


@dataclass(frozen=True, slots=True)
class Token:
    """Room for one call in one bucket."""

    bucket: str
    limit: int
    window_micros: int


@dataclass(frozen=True, slots=True)
class Full:
    """A bucket without room, and when it has some again: microseconds since 1970."""

    token: Token
    until: int


class Buckets:
    """The rate buckets of a database, shared by every kernel on it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def take(self, tokens: Sequence[Token], *, holder: str, now: int) -> tuple[Full, ...]:
        """Take all of `tokens` for one step, or none: returns those that have no room.

        Atomic between callers and kernels, and durable when it returns.

        Raises:
            StoreUnavailable: the database could not be written; nothing was taken.
        """
        # One lock for all of them: in a fixed order, two calls could wait for each other.
        async with self._database.exclusively("rate_tokens") as block:
            full = []
            for token in tokens:
                since = now - token.window_micros
                await block.run(statements.SPENT_TOKENS, bucket=token.bucket, since=since)
                held = await block.read(
                    statements.TOKENS_OF_BUCKET, bucket=token.bucket, since=since
                )
                taken = sorted(row["taken_at"] for row in held if row["holder"] != holder)
                if len(taken) >= token.limit:
                    leaving = taken[len(taken) - token.limit]
                    full.append(Full(token, leaving + token.window_micros))
            if not full:
                rows = [
                    {"bucket": token.bucket, "holder": holder, "taken_at": now} for token in tokens
                ]
                await block.put([Change(statements.RATE_TOKENS, rows, replace=True)])
            return tuple(full)
