"""What an event looks like when it leaves: masked values hashed or gone, wherever they come back.

The masks of the rules folder name values by their place. A model repeats what it has read, so a
value that was masked once is also looked for in everything that the run says afterwards: in other
arguments and results, in errors, reasons and rationales. Pure.
"""

import hmac
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Any, Final, get_args, get_type_hints

from proctor_kernel.core import events, identity
from proctor_kernel.core.identity import Json, Number, parsed, written
from proctor_policy import masks
from proctor_policy.masks import DROPPED, How, Masks, Part, Path

ECHO_CHARACTERS_MIN: Final = 4
"""A shorter value is masked in its place only: looked for everywhere, it would hit by chance."""

ECHOES_MAX: Final = 5000
"""Masked values that are looked for in one run; with more of them, its texts do not leave."""

GONE: Final = "[masked]"

_GONE: Final = identity.quoted(GONE)
_TOO_MANY: Final = identity.quoted("[masked: the run has too many masked values to look for]")

_FREE_TEXTS: Final = frozenset(
    {
        "reason",
        "error",
        "errors",
        "message",
        "rationale",
        "session",
        "idempotency_key",
        "on_behalf_of",
    }
)
"""Texts that people, agents or engines write; the others are names and hashes."""


@dataclass(frozen=True)
class Echoes:
    """Masked values of one run, and what stands in their place."""

    tokens: tuple[tuple[str, str], ...] = ()

    @cached_property
    def _token_of(self) -> dict[str, str]:
        return dict(self.tokens)

    @cached_property
    def _pattern(self) -> "re.Pattern[str]":
        longest_first = sorted(self._token_of, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))

    def with_more(self, found: dict[str, str]) -> "Echoes":
        """Return these and `found`."""
        new = {text: token for text, token in found.items() if text not in self._token_of}
        return Echoes((*self.tokens, *new.items())) if new else self

    @property
    def are_too_many(self) -> bool:
        """True when they are no longer looked for one by one."""
        return len(self.tokens) > ECHOES_MAX

    def text(self, text: str) -> str:
        """Return a text without them."""
        if not self.tokens:
            return text
        return GONE if self.are_too_many else self._pattern.sub(self._token, text)

    def json(self, text: Json) -> Json:
        """Return a JSON document without them."""
        if not self.tokens:
            return text
        if self.are_too_many:
            return _TOO_MANY
        value = parsed(text)
        without = self._without(value)
        return text if without == value else written(without)

    def _without(self, value: object) -> object:
        match value:
            case Number():
                return self._token_of.get(value, value)
            case str():
                return self._pattern.sub(self._token, value)
            case list():
                return [self._without(item) for item in value]
            case dict():
                return {
                    self._pattern.sub(self._token, key): self._without(item)
                    for key, item in value.items()
                }
            case _:
                return value

    def _token(self, match: "re.Match[str]") -> str:
        return self._token_of[match[0]]


NO_ECHOES: Final = Echoes()


@dataclass(frozen=True, slots=True)
class Redactor:
    """Masks, with the key of their hashes."""

    masks: Masks
    key: bytes

    def event(
        self, event: events.Event, *, agent_id: str, target: str, echoes: Echoes
    ) -> tuple[events.Event, Echoes]:
        """Return an event as it may leave, and all masked values of its run by then.

        `agent_id`: of the run. `target`: what the event's step calls; "" for other events.
        """
        changes: dict[str, Any] = dict(_dropped(event))
        if not self.masks.masks and not changes:
            return event, echoes
        found: dict[str, str] = {}
        for name, part, owner in _parts(event, agent_id, target):
            text = getattr(event, name)
            paths = self.masks.of(part, owner) if text is not None else ()
            if paths:
                changes[name] = self._masked(text, paths, found)
        echoes = echoes.with_more(found)
        if echoes.tokens:
            changes |= dict(_without(echoes, replace(event, **changes)))
        if "args" in changes:
            # Whoever knows what it may be could try until the hash is the same.
            changes["args_hash"] = GONE
        return (replace(event, **changes) if changes else event), echoes

    def _masked(
        self, text: Json, paths: tuple[tuple[Path, How], ...], found: dict[str, str]
    ) -> Json:
        value = parsed(text)
        for path, how in paths:
            value = masks.apply(value, path, partial(self._token, how=how, found=found))
        return identity.NULL if value is DROPPED else written(value)

    def _token(self, value: object, *, how: How, found: dict[str, str]) -> object:
        for scalar in _scalars(value):
            token = self._hash(scalar) if how == "hash" else GONE
            found.update(dict.fromkeys(_spellings(scalar), token))
        return self._hash(value) if how == "hash" else DROPPED

    def _hash(self, value: object) -> str:
        digest = hmac.digest(self.key, written(value).encode(), "sha256")
        return f"masked:{digest.hex()[:16]}"


def _parts(event: events.Event, agent_id: str, target: str) -> Iterator[tuple[str, Part, str]]:
    """Yield the fields that masks can be about, with the name that the mask must have."""
    match event:
        case events.StepProposed() | events.StepRateLimited():
            yield "args", "args", event.target
        case events.StepSucceeded():
            yield "result", "result", target
        case events.StepFailed() | events.StepCancelled():
            yield "error", "error", target
        case events.ExecutionCreated():
            yield "input", "input", event.agent_id
        case events.ExecutionCompleted():
            yield "output", "output", agent_id
            yield "state", "state", agent_id
        case _:
            return


def _dropped(event: events.Event) -> Iterator[tuple[str, Json]]:
    """Yield how an agent reaches what it holds: nobody who reads a trail needs it."""
    match event:
        case events.ResourceRegistered():
            yield "configuration", _GONE
        case events.ResourceBound():
            yield "binding", _GONE
        case _:
            return


def _without(echoes: Echoes, event: events.Event) -> Iterator[tuple[str, Any]]:
    """Yield the fields that change when masked values are taken out of an event."""
    for name, is_json in _SAID_IN[type(event)]:
        value = getattr(event, name)
        if value is None or isinstance(value, StrEnum):
            continue
        if isinstance(value, tuple):
            without: Any = tuple(map(echoes.text, value))
        else:
            without = echoes.json(value) if is_json else echoes.text(value)
        if without != value:
            yield name, without


def _said_in(cls: type[events.Event]) -> Iterator[tuple[str, bool]]:
    hints = get_type_hints(cls)
    for each in fields(cls):
        is_json = Json in (hints[each.name], *get_args(hints[each.name]))
        if is_json or each.name in _FREE_TEXTS:
            yield each.name, is_json


_SAID_IN: Final = {cls: tuple(_said_in(cls)) for cls in events.TYPES.values()}
"""Type of event -> its fields that may repeat a value, and whether each is JSON."""


def _scalars(value: object) -> Iterator[str]:
    match value:
        case str():
            if len(value.strip()) >= ECHO_CHARACTERS_MIN:
                yield value if isinstance(value, Number) else value.strip()
        case list():
            for item in value:
                yield from _scalars(item)
        case dict():
            for item in value.values():
                yield from _scalars(item)
        case _:
            return


def _spellings(text: str) -> Iterator[str]:
    """Yield a text as it is, and as it stands within JSON that is itself a text."""
    for escape in (False, True):
        inner = json.dumps(text, ensure_ascii=escape)[1:-1]
        yield inner
        yield json.dumps(inner, ensure_ascii=escape)[1:-1]
    yield text
