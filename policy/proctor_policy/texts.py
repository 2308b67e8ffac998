"""Values as the text that a rule about text compares, and globs as patterns (protocol 8.2)."""

import json
from decimal import Decimal
from typing import Any, Final

from proctor_policy.values import Number

_SPECIAL: Final = frozenset(r".+*?()|[]{}^$\\")


def json_text(value: Any) -> str:
    """Return a text as it is, and any other value as compact JSON, numbers as they were sent."""
    return value if type(value) is str else _json(value)


def float_text(value: Any) -> str:
    """Return what Go prints for a value whose numbers were read as 64-bit floats (`%v`)."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case Number() | int():
            return _go_float(float(value))
        case str():
            return value
        case list():
            return "[" + " ".join(map(float_text, value)) + "]"
        case _:
            items = (f"{key}:{float_text(value[key])}" for key in sorted(value))
            return "map[" + " ".join(items) + "]"


def glob_pattern(glob: str, *, crosses_slashes: bool = True) -> str:
    """Return the RE2 pattern of a whole glob: `*`, `?`, `[a-z]`, `[^a-z]` and `\\x`.

    Raises:
        ValueError: a class that does not end, or a backslash with nothing after it.
    """
    anything = "(?s:.)" if crosses_slashes else "[^/]"
    parts = []
    at = 0
    while at < len(glob):
        character = glob[at]
        if character == "*":
            parts.append(f"{anything}*")
        elif character == "?":
            parts.append(anything)
        elif character == "[":
            text, at = _class(glob, at)
            parts.append(text)
        elif character == "\\":
            at += 1
            if at == len(glob):
                raise ValueError(f"the glob {glob!r} ends in a backslash")
            parts.append(literal(glob[at]))
        else:
            parts.append(literal(character))
        at += 1
    return "".join(parts)


def _class(glob: str, start: int) -> tuple[str, int]:
    at = start + 1
    negated = glob[at : at + 1] == "^"
    at += negated
    members: list[str] = []
    while glob[at : at + 1] != "]" or not members:
        low, at = _member(glob, at)
        high = low
        if glob[at : at + 1] == "-":
            high, at = _member(glob, at + 1)
        if high < low:
            raise ValueError(f"the glob {glob!r} has a range that runs backwards")
        members.append(f"\\x{{{ord(low):x}}}-\\x{{{ord(high):x}}}")
    return f"[{'^' if negated else ''}{''.join(members)}]", at


def _member(glob: str, at: int) -> tuple[str, int]:
    if glob[at : at + 1] == "\\":
        at += 1
    elif glob[at : at + 1] in ("-", "]"):
        raise ValueError(f"the glob {glob!r} has a class that is not understood")
    if at >= len(glob):
        raise ValueError(f"the glob {glob!r} has a class that never ends")
    return glob[at], at + 1


def literal(character: str) -> str:
    """Return the pattern of one character."""
    return f"\\{character}" if character in _SPECIAL else character


def _json(value: Any) -> str:
    match value:
        case Number():
            return str(value)
        case list():
            return "[" + ",".join(map(_json, value)) + "]"
        case dict():
            return (
                "{" + ",".join(f"{_json(key)}:{_json(item)}" for key, item in value.items()) + "}"
            )
        case _:
            return json.dumps(value, ensure_ascii=False)


def _go_float(number: float) -> str:
    """Return the shortest text of a float, with an exponent from 1e+06 on and below 1e-04."""
    if number == 0:
        return "0" if str(number)[0] != "-" else "-0"
    exponent = Decimal(repr(number)).adjusted()
    if exponent < -4 or exponent >= 6:
        digits, _, power = f"{Decimal(repr(number)).normalize():e}".partition("e")
        sign, plain = power[0], power[1:]
        return f"{digits}e{sign}{plain:0>2}"
    text = f"{Decimal(repr(number)):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
