"""Rate buckets: how many calls of a kind started within the last so many seconds.

A bucket remembers each call for as long as its window, so a limit is never overshot, not even
at the edge of a window. A token is held under the id of its step: deciding twice takes one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proctor_kernel.store import statements
from proctor_kernel.store.dialect import Change, SQLite


@dataclass(frozen=True, slots=True)
class Token:
    """Room for one call in one bucket."""

    bucket: str
    limit: int
    window_micros: int


class Buckets:
    """The rate buckets of a database, shared by every kernel on it."""

    def __init__(self, database: SQLite) -> None:
        self._database = database

    def take(self, tokens: Sequence[Token], *, holder: str, now: int) -> tuple[Token, ...]:
        """Take all of `tokens` for one step, or none: returns those that have no room.

        Atomic between callers and kernels, and durable when it returns.

        Raises:
            StoreUnavailable: the database could not be written; nothing was taken.
        """
        with self._database.exclusively():
            full = []
            for token in tokens:
                since = now - token.window_micros
                self._database.run(statements.SPENT_TOKENS, bucket=token.bucket, since=since)
                held = self._database.read(
                    statements.TOKENS_OF_BUCKET, bucket=token.bucket, since=since
                )
                if sum(row["holder"] != holder for row in held) >= token.limit:
                    full.append(token)
            if not full:
                rows = [
                    {"bucket": token.bucket, "holder": holder, "taken_at": now} for token in tokens
                ]
                self._database.put([Change(statements.RATE_TOKENS, rows, replace=True)])
            return tuple(full)
