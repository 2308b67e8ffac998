"""Request bodies: read within limits, split without losing a literal, checked strictly.

User values stay the text that was received (`Json` fields), since the protocol hashes number
literals as they were sent. Everything else is checked by pydantic; an unknown field is an error.
"""

import asyncio
import json
import re
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]  # not in typeshed
from typing import Annotated, Any, Final, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError, WithJsonSchema

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode
from proctor_kernel.settings import Settings

JsonText = Annotated[str, WithJsonSchema({"description": "any JSON value"})]
"""A field that holds any JSON value, as the text that was received."""


class Body(BaseModel):
    """A request body; unknown fields are refused, at every depth."""

    model_config = ConfigDict(extra="forbid")


class Empty(Body):
    """No body, or an empty object."""


T = TypeVar("T", bound=Body)

_SPACE: Final = re.compile(r"[ \t\n\r]*")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers as text: Python refuses to convert integers of more than 4,300 digits.
_scan: Final = JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=_refuse_constant
).raw_decode


NESTED: Final[dict[str, Any]] = {}
"""Schemas that those of documented bodies refer to, by name."""


async def read(request: Request, settings: Settings) -> bytes:
    """Return the body of a request.

    Raises:
        WireError: `validation_error` for one that is too large or takes too long to come.
    """
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > settings.body_bytes_max:
        raise _too_large(settings)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_seconds_max):
            # Straight from the server, which costs a small request less than Starlette's stream.
            while True:
                message = await request.receive()
                if message["type"] != "http.request":
                    raise WireError(ErrorCode.VALIDATION_ERROR, "the client went away")
                body += message.get("body", b"")
                if len(body) > settings.body_bytes_max:
                    raise _too_large(settings)
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise WireError(ErrorCode.VALIDATION_ERROR, "the body did not come in time") from None


def parse(model: type[T], raw: bytes) -> T:
    """Return a body as its model; raises `validation_error` that says what is wrong and where."""
    try:
        members = split(raw.decode()) if raw.strip() else {}
        given = {
            name: text if _is_json(model, name) else json.loads(text)
            for name, text in members.items()
        }
        return model.model_validate(given)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
            for each in error.errors(include_url=False, include_context=False)
        ]
        raise WireError(ErrorCode.VALIDATION_ERROR, "; ".join(problems)) from None
    except (ValueError, RecursionError) as error:
        text = "it nests too deep" if isinstance(error, RecursionError) else str(error)
        raise WireError(ErrorCode.VALIDATION_ERROR, f"the body is not JSON: {text}") from None


def split(text: str) -> dict[str, str]:
    """Split a JSON object into field -> the text of its value; of two of a name, the last.

    Raises:
        ValueError: not one JSON object.
    """
    at = _after_space(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("expected an object")
    members: dict[str, str] = {}
    at = _after_space(text, at + 1)
    while text[at : at + 1] != "}":
        if text[at : at + 1] != '"':
            raise ValueError(f"expected a field's name at character {at}")
        name, at = scanstring(text, at + 1)
        at = _after_space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"expected ':' at character {at}")
        at = _after_space(text, at + 1)
        try:
            _, end = _scan(text, at)
        except StopIteration as stop:
            raise ValueError(f"expected a value at character {stop.value}") from None
        members[name] = text[at:end]
        at = _after_space(text, end)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
            if text[at : at + 1] == "}":
                raise ValueError(f"expected a field's name at character {at}")
        elif text[at : at + 1] != "}":
            raise ValueError(f"expected ',' or '}}' at character {at}")
    if _after_space(text, at + 1) != len(text):
        raise ValueError(f"text after the object, at character {at + 1}")
    return members


def documented(model: type[Body], *, required: bool = True) -> dict[str, Any]:
    """Return what OpenAPI says of a route that reads this body itself."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    NESTED.update(schema.pop("$defs", {}))
    return {
        "requestBody": {
            "required": required,
            "content": {"application/json": {"schema": schema}},
        }
    }


def _is_json(model: type[Body], name: str) -> bool:
    field = model.model_fields.get(name)
    return field is not None and any(isinstance(each, WithJsonSchema) for each in field.metadata)


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _too_large(settings: Settings) -> WireError:
    return WireError(
        ErrorCode.VALIDATION_ERROR, f"the body is larger than {settings.body_bytes_max} bytes"
    )
