"""The arguments of tools as types, from the JSON Schemas that MCP servers publish.

What cannot be typed is left open and noted, never refused: servers publish what they like.
Numbers follow the conversion of values: `integer` is a Long, `number` a decimal.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, Literal

from proctor_policy.problem import Problem
from proctor_policy.values import Number

REFERENCES_MAX: Final = 32
"""References that are followed one after another before a type is left open."""

Kind = Literal["string", "long", "decimal", "boolean"]

_KINDS: Final[Mapping[str, Kind]] = {
    "string": "string",
    "integer": "long",
    "number": "decimal",
    "boolean": "boolean",
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value of one of Cedar's plain types."""

    kind: Kind


@dataclass(frozen=True, slots=True)
class SetOf:
    """A list, which Cedar takes for a set."""

    of: "Type"


@dataclass(frozen=True, slots=True)
class Record:
    """An object. `closed`: what is not named in it is a mistake."""

    fields: Mapping[str, "Type"]
    required: frozenset[str]
    closed: bool


@dataclass(frozen=True, slots=True)
class Open:
    """Anything: `why` it could not be typed."""

    why: str


Type = Scalar | SetOf | Record | Open


@dataclass(frozen=True, slots=True)
class Note:
    """An argument that was left open."""

    tool: str
    path: str
    why: str

    def __str__(self) -> str:
        return f"{self.tool}: {self.path or 'the arguments'}: left open, {self.why}"


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools whose arguments are known."""

    inputs: Mapping[str, Record] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()


def read(file: str, text: str, problems: list[Problem]) -> dict[str, Type]:
    """Read a document of MCP's `tools/list` form; what is wrong goes to `problems`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(Problem(file, getattr(error, "lineno", None), f"not JSON: {error}"))
        return {}
    listed = _listed(document)
    if listed is None:
        hint = 'expected {"tools": [...]}, as an MCP server lists them'
        problems.append(Problem(file, None, "no list of tools", hint))
        return {}
    found: dict[str, Type] = {}
    for number, tool in enumerate(listed, 1):
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not name:
            problems.append(Problem(file, None, f"tool {number} has no name"))
        elif not _is_text(name):
            continue  # a call of such a name is denied whatever the rules say
        elif name in found:
            problems.append(Problem(file, None, f"tool {name!r} is there twice"))
        else:
            schema = tool.get("inputSchema", tool.get("input_schema"))
            found[name] = type_of_schema(schema, schema)
    return found


def gather(types: Mapping[str, Type]) -> Tools:
    """Return what is known of tools, and what was left open."""
    inputs = {}
    notes = []
    for name, known in sorted(types.items()):
        notes += [Note(name, path, why) for path, why in _open_places(known, "")]
        if isinstance(known, Record):
            inputs[name] = known
    return Tools(inputs, tuple(notes))


def type_of_schema(schema: Any, root: Any, followed: int = 0) -> Type:
    """Return the type that a JSON Schema stands for; `root` is where references lead from."""
    if not isinstance(schema, dict):
        return Open("there is no schema")
    if isinstance(schema.get("$ref"), str):
        if followed >= REFERENCES_MAX:
            return Open("its references go in circles")
        return type_of_schema(_referred(schema["$ref"], root), root, followed + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(key), list):
            return _one_of(schema[key], root, followed)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return _enumerated(values)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _one_of([{**schema, "type": each} for each in kind], root, followed)
    if isinstance(kind, str) and kind in _KINDS:
        return Scalar(_KINDS[kind])
    if kind == "array":
        return _array(schema, root, followed)
    if kind == "object" or "properties" in schema:
        return _object(schema, root, followed)
    return Open(f"its type is {kind!r}" if kind else "it has no type")


def coerced(value: Any, known: Type) -> Any:
    """Return a parsed value (`values.parse`) with its numbers as its type has them.

    A whole number where a decimal is meant is one, and `14380.0` where an integer is meant is a
    Long. Nothing else changes: what does not fit is left for the rules to refuse.
    """
    match known:
        case Scalar("decimal") if type(value) is int:
            return Number(f"{value}.0")
        case Scalar("long") if isinstance(value, Number) and len(value) <= _LITERAL_MAX:
            return _whole(value)
        case SetOf(of) if isinstance(value, list):
            return [coerced(item, of) for item in value]
        case Record() if isinstance(value, dict):
            return {
                key: coerced(item, known.fields[key]) if key in known.fields else item
                for key, item in value.items()
            }
        case _:
            return value


_LITERAL_MAX: Final = 40


def _whole(literal: Number) -> Any:
    number = Decimal(literal)
    if number.adjusted() < 19 and number == number.to_integral_value():
        whole = int(number)
        if -(2**63) <= whole < 2**63:
            return whole
    return literal


def _listed(document: Any) -> list[Any] | None:
    if isinstance(document, dict) and isinstance(document.get("result"), dict):
        document = document["result"]
    if isinstance(document, dict):
        document = document.get("tools")
    return document if isinstance(document, list) else None


def _referred(reference: str, root: Any) -> Any:
    if not reference.startswith("#"):
        return None
    at = root
    for part in reference.removeprefix("#").split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        at = at.get(key) if isinstance(at, dict) else None
    return at


def _one_of(schemas: list[Any], root: Any, followed: int) -> Type:
    """Return the one type that all alternatives have, null apart."""
    if followed >= REFERENCES_MAX:
        return Open("it nests too deep")
    types: list[Type] = []
    for each in schemas:
        if isinstance(each, dict) and each.get("type") == "null":
            continue
        found = type_of_schema(each, root, followed + 1)
        if found not in types:
            types.append(found)
    return types[0] if len(types) == 1 else Open("it may be of several types")


def _enumerated(values: list[Any]) -> Type:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {str}:
        return Scalar("string")
    if kinds == {int}:
        return Scalar("long")
    if kinds == {bool}:
        return Scalar("boolean")
    return Open("its values are of several types")


def _array(schema: Mapping[str, Any], root: Any, followed: int) -> Type:
    if not isinstance(schema.get("items"), dict):
        return Open("its elements have no schema")
    if followed >= REFERENCES_MAX:
        return Open("it nests too deep")
    of = type_of_schema(schema["items"], root, followed + 1)
    return Open(f"of its elements: {of.why}") if isinstance(of, Open) else SetOf(of)


def _object(schema: Mapping[str, Any], root: Any, followed: int) -> Type:
    properties = schema.get("properties")
    if followed >= REFERENCES_MAX:
        return Open("it nests too deep")
    if not isinstance(properties, dict):
        properties = {}
    extra = schema.get("additionalProperties", not properties) or schema.get("patternProperties")
    required = schema.get("required")
    return Record(
        fields={
            str(name): type_of_schema(each, root, followed + 1)
            for name, each in properties.items()
            if _is_text(str(name))
        },
        required=frozenset(
            name
            for name in (required if isinstance(required, list) else ())
            if isinstance(name, str) and not _nullable(properties.get(name))
        ),
        closed=not extra,
    )


def _is_text(name: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _nullable(schema: Any) -> bool:
    """True for what may be null: null is handed to Cedar as absent."""
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    if kinds == "null" or (isinstance(kinds, list) and "null" in kinds):
        return True
    options = [*(schema.get("anyOf") or ()), *(schema.get("oneOf") or ())]
    return any(isinstance(each, dict) and each.get("type") == "null" for each in options)


def _open_places(known: Type, path: str) -> Iterator[tuple[str, str]]:
    match known:
        case Open(why):
            yield path, why
        case SetOf(of):
            yield from _open_places(of, f"{path}[]")
        case Record(fields):
            for name, each in fields.items():
                yield from _open_places(each, f"{path}.{name}" if path else name)
        case Scalar():
            pass
