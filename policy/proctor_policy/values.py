"""JSON into Cedar values: total, exact, and never an instruction.

Arguments come from a language model, so this is a security boundary. Cedar has 64-bit integers,
decimals with four places, no other numbers and no null, and it reads some keys as commands.
Numbers are read from the text, so nothing is rounded on the way:

- null in an object: the key is left out; in an array: refused, since Cedar cannot hold its place
- an integer of 64 bits: a Long; any other: a string
- a number with a point or exponent: a decimal when four places hold it exactly; else a string,
  so that comparing it as a number fails, and a failed comparison denies
- a key that Cedar would interpret (`__entity`, `__extn`, `__expr`): refused

What is refused is denied with the reason. (Source: Cedar reference, JSON entities and context.)
"""

import json
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NoReturn

DEPTH_MAX: Final = 64
"""Arrays and objects inside one another that are given to Cedar; it gives up at 126."""

NODES_MAX: Final = 20_000
"""Values in one document; beyond, evaluating it would hold everybody up."""

CHARACTERS_MAX: Final = 1_048_576
"""Characters of one document."""

RESERVED_KEYS: Final = frozenset({"__entity", "__extn", "__expr"})

_LONG_DIGITS: Final = 19
_LONG_MAX: Final = 2**63 - 1
_DECIMAL_MAX: Final = Decimal("922337203685477.5807")
_DECIMAL_PLACES: Final = 4
_LITERAL_CHARACTERS: Final = 64


class ValueRefused(Exception):
    """A document that Cedar is not shown; the message is the reason of the denial."""


class Number(str):
    """A number that is no Long, as it was written."""

    __slots__ = ()


class NumberText(str):
    """A number that no Cedar type holds exactly. Cedar sees its text; it equals no literal."""

    __slots__ = ()


def parse(text: str, what: str) -> Any:
    """Return the JSON document `text` with its numbers exact; `what` names it in refusals.

    Integers of 64 bits become int; other numbers stay literals for `to_cedar`.

    Raises:
        ValueRefused: not JSON, or too large or deep to be judged.
    """
    if len(text) > CHARACTERS_MAX:
        raise ValueRefused(f"{what} is longer than {CHARACTERS_MAX} characters")
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueRefused(f"{what} nests deeper than {DEPTH_MAX} levels") from None
    except ValueError as error:
        raise ValueRefused(f"{what} is not JSON: {error}") from None


def to_cedar(value: Any, what: str) -> Any:
    """Return what `parse` gave as a Cedar value in cedarpy's JSON form.

    Raises:
        ValueRefused: a reserved key, a null in an array, an unpaired surrogate, or too large
            or deep to be judged.
    """
    return _Converter(what).convert(value, 0)


def type_of(value: Any) -> str:
    """Return how a Cedar value in JSON form is typed: string, long, boolean, decimal, ..."""
    match value:
        case NumberText():
            return "number"
        case bool():
            return "boolean"
        case int():
            return "long"
        case str():
            return "string"
        case list():
            return "set"
        case {"__extn": {"fn": str(name)}}:
            return name
        case _:
            return "record"


class _Converter:
    def __init__(self, what: str) -> None:
        self._what = what
        self._nodes = 0

    def convert(self, value: Any, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise ValueRefused(f"{self._what} has more than {NODES_MAX} values")
        match value:
            case None:
                raise ValueRefused(f"{self._what} is null, which no rule can judge")
            case bool() | int():
                return value
            case Number():
                return _decimal(value)
            case str():
                return self._text(value)
        if depth >= DEPTH_MAX:
            raise ValueRefused(f"{self._what} nests deeper than {DEPTH_MAX} levels")
        if isinstance(value, list):
            if any(item is None for item in value):
                raise ValueRefused(f"{self._what} has a null in an array, which no rule can judge")
            return [self.convert(item, depth + 1) for item in value]
        assert isinstance(value, dict), "the last kind of JSON value"
        return {
            self._key(key): self.convert(item, depth + 1)
            for key, item in value.items()
            if item is not None
        }

    def _key(self, key: str) -> str:
        if key in RESERVED_KEYS:
            raise ValueRefused(f"{self._what} has the reserved key {key!r}")
        return self._text(key)

    def _text(self, text: str) -> str:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueRefused(f"{self._what} has an unpaired surrogate, which is not text")
        return text


def _decimal(literal: str) -> Any:
    # Long literals are text at once: converting `1e999999999` would fill the memory.
    if len(literal) > _LITERAL_CHARACTERS:
        return NumberText(literal)
    try:
        number = Decimal(literal)
    except InvalidOperation:
        return NumberText(literal)
    if not number:
        return _extension("0.0")
    if not -_DECIMAL_PLACES <= number.adjusted() <= _LONG_DIGITS or abs(number) > _DECIMAL_MAX:
        return NumberText(literal)
    rounded = round(number, _DECIMAL_PLACES)
    if rounded != number:
        return NumberText(literal)
    return _extension(f"{rounded:f}")


def _extension(text: str) -> dict[str, Any]:
    return {"__extn": {"fn": "decimal", "arg": text}}


def _integer(literal: str) -> int | Number:
    if len(literal) > _LONG_DIGITS + 1:
        return Number(literal)
    number = int(literal)
    return number if -_LONG_MAX - 1 <= number <= _LONG_MAX else Number(literal)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(
    parse_float=Number, parse_int=_integer, parse_constant=_refuse_constant
)
