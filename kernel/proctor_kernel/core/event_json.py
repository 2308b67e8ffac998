"""Events as the log keeps them: a type name and one JSON object, derived from the fields.

Unset fields are left out, and user values (`Json`) are embedded as the text they are, so that
what is hashed is what was received.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]  # not in typeshed
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from proctor_kernel.core.events import TYPES, Event
from proctor_kernel.core.identity import Json, quoted

_NAMES: Final = {cls: name for name, cls in TYPES.items()}


def name(event: Event) -> str:
    """Return the event's type as the log and the wire spell it."""
    return _NAMES[type(event)]


def to_json(event: Event) -> str:
    """Return the payload of `event`: one JSON object, fields in order, unset ones left out."""
    members = []
    for key, codec in _CODECS[type(event)]:
        value = getattr(event, key)
        if value is not None:
            members.append(f'"{key}":{codec.write(value)}')
    return "{" + ",".join(members) + "}"


def from_json(type_name: str, payload: str) -> Event:
    """Read back what `to_json` wrote.

    Raises:
        ValueError: an unknown type, or a payload that is not of this type's form.
    """
    cls = TYPES.get(type_name)
    if cls is None:
        raise ValueError(f"unknown event type {type_name!r}")
    raw = _members(payload)
    try:
        known = {key: codec.read(raw.pop(key)) for key, codec in _CODECS[cls] if key in raw}
        if raw:
            raise ValueError(f"{type_name} has no field {next(iter(raw))!r}")
        return cls(**known)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a payload of {type_name}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Codec:
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _embedded(text: str) -> Json:
    return Json(text)


_JSON: Final = _Codec(write=str, read=_embedded)
_STR: Final = _Codec(write=quoted, read=json.loads)
_INT: Final = _Codec(write=str, read=json.loads)
_BOOL: Final = _Codec(write=lambda value: "true" if value else "false", read=json.loads)
_STRS: Final = _Codec(
    write=lambda items: "[" + ",".join(map(quoted, items)) + "]",
    read=lambda text: tuple(json.loads(text)),
)


def _codec(hint: Any) -> _Codec:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
    if hint is Json:
        return _JSON
    if hint is int:
        return _INT
    if hint is bool:
        return _BOOL
    if hint == tuple[str, ...]:
        return _STRS
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _Codec(write=quoted, read=lambda text: hint(json.loads(text)))
    assert hint is str, hint
    return _STR


_CODECS: Final = {
    cls: tuple((field.name, _codec(get_type_hints(cls)[field.name])) for field in fields(cls))
    for cls in TYPES.values()
}

_scan_value: Final = JSONDecoder(parse_int=str, parse_float=str).raw_decode


def _members(payload: str) -> dict[str, str]:
    """Split one flat JSON object, written without white space, into key -> raw value text."""
    members: dict[str, str] = {}
    at = 1
    if payload[:1] != "{" or payload[-1:] != "}":
        raise ValueError("a payload is a JSON object")
    while payload[at : at + 1] != "}":
        if payload[at : at + 1] != '"':
            raise ValueError(f"expected a key at character {at}")
        key, at = scanstring(payload, at + 1)
        if payload[at : at + 1] != ":":
            raise ValueError(f"expected ':' at character {at}")
        _, end = _scan_value(payload, at + 1)
        members[key] = payload[at + 1 : end]
        at = end + 1 if payload[end : end + 1] == "," else end
    if at != len(payload) - 1:
        raise ValueError(f"unexpected text at character {at}")
    return members
