"""API keys: tokens with scopes, a principal's name and groups. Only a hash of a token is kept."""

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode, Scope
from proctor_kernel import admit, world
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Database
from proctor_kernel.views import View, api_key

NAME_CHARACTERS_MAX: Final = 200
_PREFIX: Final = "prk_"
_KEPT_SECONDS: Final = 5
_KEPT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a key, and what they may do."""

    name: str
    scopes: frozenset[str]
    groups: tuple[str, ...]


class ApiKeys:
    """The keys of a database. A token is believed from memory for a few seconds."""

    def __init__(
        self,
        database: Database,
        *,
        now_micros: Callable[[], int],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._database = database
        self._now_micros = now_micros
        self._changed = changed
        self._kept: dict[str, tuple[int, Holder | None]] = {}

    def forget(self) -> None:
        """Believe nothing from memory: some key has changed."""
        self._kept.clear()

    async def holder(self, token: str) -> Holder | None:
        """Return who holds a token, or None for one that is unknown or revoked."""
        digest = _digest(token)
        now = self._now_micros()
        kept = self._kept.get(digest)
        if kept is not None and now < kept[0]:
            return kept[1]
        key_id = token.removeprefix(_PREFIX).partition(".")[0]
        found = await self._database.read(statements.API_KEY_BY_ID, key_id=key_id)
        holder = None
        if found and found[0]["revoked_at"] is None:
            row = found[0]
            if secrets.compare_digest(row["token_hash"], digest):
                holder = Holder(
                    row["name"],
                    frozenset(json.loads(row["scopes"])),
                    tuple(json.loads(row["groups"])),
                )
        if len(self._kept) >= _KEPT_MAX:
            self._kept.clear()
        self._kept[digest] = (now + _KEPT_SECONDS * 1_000_000, holder)
        return holder

    async def create(self, name: str, scopes: Sequence[str], groups: Sequence[str] = ()) -> View:
        """Make a key; the view has its token, which cannot be seen again.

        Raises:
            WireError: `validation_error` for a name or a scope that is none.
        """
        if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.strip():
            raise WireError(
                ErrorCode.VALIDATION_ERROR, f"name: must have 1 to {NAME_CHARACTERS_MAX} characters"
            )
        known = {str(scope) for scope in Scope}
        for scope in scopes:
            if scope not in known:
                raise WireError(
                    ErrorCode.VALIDATION_ERROR,
                    f"scopes: unknown scope {scope!r}; known are: {', '.join(sorted(known))}",
                )
        if not scopes:
            raise WireError(ErrorCode.VALIDATION_ERROR, "scopes: must not be empty")
        key_id = world.new_id()
        token = _token(key_id)
        row = {
            "id": key_id,
            "name": admit.name("name", name),
            "scopes": json.dumps(sorted(set(scopes))),
            "groups": json.dumps([admit.name("groups", each) for each in dict.fromkeys(groups)]),
            "token_hash": _digest(token),
            "created_at": self._now_micros(),
            "revoked_at": None,
        }
        writing = self._database.write([Change(statements.API_KEYS, [row])])
        if writing is not None:
            await writing
        return {**api_key(row), "token": token}

    async def rotate(self, key_id: str) -> View:
        """Give a key another token; the old one is worthless at once."""
        found = await self._database.read(statements.API_KEY_BY_ID, key_id=key_id)
        if not found:
            raise WireError(ErrorCode.NOT_FOUND, f"no API key {key_id!r}")
        token = _token(key_id)
        if not await self._database.run(
            statements.ROTATE_API_KEY, of_key=key_id, new_hash=_digest(token)
        ):
            raise WireError(ErrorCode.CONFLICT, "the key is revoked")
        self.forget()
        self._changed()
        return {**api_key(found[0]), "token": token}

    async def revoke(self, key_id: str) -> None:
        """Make a key worthless; doing so again changes nothing."""
        found = await self._database.read(statements.API_KEY_BY_ID, key_id=key_id)
        if not found:
            raise WireError(ErrorCode.NOT_FOUND, f"no API key {key_id!r}")
        await self._database.run(statements.REVOKE_API_KEY, of_key=key_id, now=self._now_micros())
        self.forget()
        self._changed()


def _token(key_id: str) -> str:
    return f"{_PREFIX}{key_id}.{secrets.token_urlsafe(32)}"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
