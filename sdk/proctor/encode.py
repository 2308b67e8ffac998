"""User values as JSON text: exactly, or not at all.

A value that JSON cannot carry as it is raises `TypeError` naming where it stands, because a
value that was changed on the way would be judged, recorded and hashed as something it is not.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final
from uuid import UUID

from proctor.wire.words import JSON_BYTES_MAX, JSON_DEPTH_MAX

_PLAIN: Final = frozenset({str, int, bool, type(None)})
"""What is JSON as it is. A float is not among them: some are none."""

_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def to_json(value: object, what: str) -> str:
    """Return `value` as one JSON document. `what` names it in errors: `argument 'to' of mail`.

    Tuples become lists. Pydantic models, dataclasses, enums, dates, UUIDs, paths and decimals
    become what pydantic makes of them.

    Raises:
        TypeError: not JSON (NaN and infinities are not), a key that is not a string, deeper
            than `JSON_DEPTH_MAX` or larger than `JSON_BYTES_MAX`.
    """
    try:
        text = _ENCODER.encode(_plain(value, what, 0))
        size = len(text.encode())
    except UnicodeEncodeError:
        raise TypeError(f"{what} has an unpaired surrogate, which is not text") from None
    except ValueError as error:  # an integer of more digits than Python converts
        raise TypeError(f"{what} is not JSON: {error}") from None
    if size > JSON_BYTES_MAX:
        raise TypeError(f"{what} takes {size} bytes as JSON; at most {JSON_BYTES_MAX} are allowed")
    return text


def args_to_json(args: Mapping[str, object], target: str) -> str:
    """Return the arguments of a call as one JSON object; errors name the argument."""
    members = [
        f"{json.dumps(name)}:{to_json(value, f'argument {name!r} of {target}')}"
        for name, value in args.items()
    ]
    text = "{" + ",".join(members) + "}"
    if len(text.encode()) > JSON_BYTES_MAX:
        raise TypeError(f"the arguments of {target} take more than {JSON_BYTES_MAX} bytes as JSON")
    return text


def _plain(value: Any, what: str, depth: int) -> object:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        if not math.isfinite(value):
            raise TypeError(f"{what} is {value!r}, which JSON does not have")
        return value
    if depth >= JSON_DEPTH_MAX:
        raise TypeError(f"{what} nests deeper than {JSON_DEPTH_MAX} levels")
    # Most of what there is in a value is plain: that spares a call each.
    if kind is list or kind is tuple:
        return [item if type(item) in _PLAIN else _plain(item, what, depth + 1) for item in value]
    if kind is dict or isinstance(value, Mapping):
        return {
            key if type(key) is str else _key(key, what): item
            if type(item) in _PLAIN
            else _plain(item, what, depth + 1)
            for key, item in value.items()
        }
    return _plain(_converted(value, what), what, depth + 1)


def _key(key: object, what: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{what} has the key {key!r}; the keys of a JSON object are strings")
    return str(key)


def _converted(value: Any, what: str) -> object:
    """Take one layer off a value that is not plain JSON: what is below is looked at in turn."""
    match value:
        case Enum():
            return value.value
        case str():
            return str.__str__(value)
        case bool() | int():
            return int(value)
        case float():
            return float(value)
        case list() | tuple():
            return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(type(value), "__pydantic_serializer__") and hasattr(value, "model_dump"):
        # In Python mode: what is in the fields is looked at here, like everything else.
        return value.model_dump(by_alias=True, warnings=False)
    return _scalar(value, what)


_SCALARS: Final = (date, time, timedelta, UUID, PurePath, Decimal)


def _scalar(value: object, what: str) -> str:
    from pydantic import AnyUrl
    from pydantic_core import to_jsonable_python

    # A list of what is known to stand for one text. Pydantic alone would decode bytes, mask
    # secrets and use generators up: what came out would not be what was passed.
    if isinstance(value, (*_SCALARS, AnyUrl)):
        return str(to_jsonable_python(value))
    raise TypeError(f"{what} is of type {type(value).__name__}, which is not JSON")
