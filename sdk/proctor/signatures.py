"""Signatures of tools: made from a JSON Schema, and taken apart into named arguments."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, get_type_hints

_TYPES: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def json_schema(of: Mapping[str, Any] | type | None) -> dict[str, Any]:
    """Return the JSON Schema of arguments, given as one or as a pydantic model."""
    if of is None:
        return {"type": "object", "properties": {}, "additionalProperties": True}
    if isinstance(of, Mapping):
        return dict(of)
    from pydantic import TypeAdapter

    return TypeAdapter(of).json_schema()


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a JSON Schema for the arguments of a function, by its annotations."""
    from pydantic import PydanticUserError, TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema

    hints = _hints(function)
    properties: dict[str, Any] = {}
    required = []
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            continue
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        try:
            properties[name] = TypeAdapter(hints.get(name, Any)).json_schema()
        except (PydanticUserError, PydanticInvalidForJsonSchema):
            properties[name] = {}
    gathers = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": gathers,
    }


def returns_text(function: Callable[..., Any]) -> bool:
    """Whether a function may return any text by its annotation, or has none."""
    annotation = getattr(function, "__annotations__", {}).get("return", Any)
    return annotation in (str, Any, object, "str", "Any", "object")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):  # an annotation of what does not exist at run time
        return {}


def of_schema(schema: Mapping[str, Any]) -> inspect.Signature:
    """Return a keyword-only signature for the properties of `schema`.

    What cannot be a parameter (a name that is no identifier, a schema that is open) is taken
    by a `**` parameter.
    """
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required") or ()
    names = [name for name in known if isinstance(name, str) and name.isidentifier()]
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if name in required else None,
            annotation=_annotation(known[name], optional=name not in required),
        )
        for name in names
    ]
    if len(names) < len(known) or schema.get("additionalProperties") or not known:
        parameters.append(
            inspect.Parameter(_free("extra", names), inspect.Parameter.VAR_KEYWORD, annotation=Any)
        )
    return inspect.Signature(parameters, return_annotation=Any)


def annotations(of: inspect.Signature) -> dict[str, Any]:
    """Return resolved annotations: frameworks look names up that are not there otherwise."""
    found = {name: parameter.annotation for name, parameter in of.parameters.items()}
    return {**found, "return": of.return_annotation}


def named(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return bound arguments by name, those of a `**` parameter beside the others."""
    args: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD and not value.keys() & bound.arguments.keys():
            args.update(value)
        else:
            args[name] = value
    return args


def _annotation(schema: object, *, optional: bool) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    found = _TYPES.get(kind, Any) if isinstance(kind, str) else Any
    return found | None if optional and found is not Any else found


def _free(name: str, taken: list[str]) -> str:
    while name in taken:
        name += "_"
    return name
