"""What makes two calls the same call: canonical JSON, the hash of arguments, the step id.

Protocol section 3, whose vectors are the tests' data. Everything starts from JSON *text*,
because the protocol hashes number literals as they were received (`1.0` is not `1`).
"""

import json
import re
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Final, NewType, NoReturn

from proctor.wire.words import JSON_BYTES_MAX, JSON_DEPTH_MAX

Json = NewType("Json", str)
"""Text that is known to be one JSON document."""

NULL: Final = Json("null")

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_UNSTORABLE: Final = re.compile("[\ud800-\udfff\x00]")
_JSON_SPACE: Final = " \t\n\r"
_BRACKET_OR_STRING: Final = re.compile(r'[\[\]{}]|"(?:[^"\\]|\\.)*"')
_HTML: Final = re.compile("[<>&\u2028\u2029]")
_HTML_ESCAPES: Final = {character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


class JsonRefused(ValueError):
    """Text that is not JSON, or that is larger or deeper than both ends allow."""


class Number(str):
    """A JSON number as it was written, which no Python number would keep."""

    __slots__ = ()


def canonical(text: str) -> Json:
    """Bring one JSON document into the form that is hashed.

    Keys are sorted by code point, duplicate keys keep the last, numbers keep their literal,
    unpaired surrogates become U+FFFD (protocol 3).

    Raises:
        JsonRefused: `text` is not JSON (`NaN` and `Infinity` are not), is over
            `JSON_BYTES_MAX` or nests deeper than `JSON_DEPTH_MAX`.
    """
    _measure(text)
    return Json(_write(_decode(_LITERAL_DECODER, text), 0))


def checked(text: str) -> Json:
    """Accept one JSON document as it is written, without the white space around it.

    Raises:
        JsonRefused: as `canonical` does, and for unpaired surrogates outside of escapes.
    """
    text = text.strip(_JSON_SPACE)
    if not text.isascii() and _SURROGATE.search(text):
        raise JsonRefused("the document has unpaired surrogates")
    _measure(text)
    # Fewer brackets than levels allowed cannot nest too deep, whatever they enclose.
    if text.count("[") + text.count("{") > JSON_DEPTH_MAX and _depth(text) > JSON_DEPTH_MAX:
        raise JsonRefused(f"the document nests deeper than {JSON_DEPTH_MAX} levels")
    _decode(_PLAIN_DECODER, text)
    return Json(text)


def parsed(text: Json) -> object:
    """Return the value of a JSON document: dicts, lists, texts, booleans, None and `Number`s."""
    return _decode(_LITERAL_DECODER, text)


def written(value: object) -> Json:
    """Return the canonical JSON of what `parsed` returns."""
    return Json(_write(value, 0))


def args_hash(canonical_args: Json) -> str:
    """Return the hex SHA-256 of arguments in canonical form."""
    return sha256(canonical_args.encode()).hexdigest()


def step_id(
    *, execution_id: str, kind: str, target: str, hash_of_args: str, occurrence: int
) -> str:
    """Return the id of a step: a hash of its content, so that a replay finds it again."""
    preimage = b"".join(
        _length_prefixed(part)
        for part in (execution_id, kind, target, hash_of_args, str(occurrence))
    )
    return sha256(preimage).hexdigest()


def trace_id(execution_id: str) -> str:
    """Return the trace of a run: 32 hex characters, the same for every export of it."""
    return sha256(b"trace:" + execution_id.encode()).hexdigest()[:32]


def span_id(of_step_id: str) -> str:
    """Return the span of a step: 16 hex characters, the same for every export of it."""
    return sha256(b"span:" + of_step_id.encode()).hexdigest()[:16]


def storable(name: str) -> str:
    """Replace what no database column holds (NUL, unpaired surrogates) by U+FFFD.

    Policies refuse U+FFFD in a name, so a name that needed this is recorded and denied.
    """
    return _UNSTORABLE.sub("\ufffd", name)


def quoted(text: str) -> Json:
    """Return `text` as a JSON string in canonical form."""
    body = encode_basestring(_SURROGATE.sub("\ufffd", text))
    return Json(_HTML.sub(_html_escape, body))


def _html_escape(match: re.Match[str]) -> str:
    return _HTML_ESCAPES[match[0]]


def _length_prefixed(part: str) -> bytes:
    encoded = part.encode()
    return b"%d:%s" % (len(encoded), encoded)


def _refuse_constant(name: str) -> NoReturn:
    raise JsonRefused(f"{name} is not JSON")


# Made once: building a decoder costs more than decoding what most tools are called with.
_LITERAL_DECODER: Final = json.JSONDecoder(
    parse_int=Number, parse_float=Number, parse_constant=_refuse_constant
)
# Numbers as text here too: Python refuses to convert integers of more than 4,300 digits.
_PLAIN_DECODER: Final = json.JSONDecoder(
    parse_int=str, parse_float=str, parse_constant=_refuse_constant
)


def _measure(text: str) -> None:
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    if size > JSON_BYTES_MAX:
        raise JsonRefused(f"the document is larger than {JSON_BYTES_MAX} bytes")


def _decode(decoder: json.JSONDecoder, text: str) -> object:
    try:
        return decoder.decode(text)
    except RecursionError:
        raise JsonRefused(f"the document nests deeper than {JSON_DEPTH_MAX} levels") from None
    except json.JSONDecodeError as error:
        raise JsonRefused(f"not JSON: {error}") from None


def _depth(text: str) -> int:
    deepest = depth = 0
    for match in _BRACKET_OR_STRING.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest


def _write(value: object, depth: int) -> str:
    # `Number` before `str`: a number is carried as the text it was written in.
    match value:
        case None:
            return "null"
        case True:
            return "true"
        case False:
            return "false"
        case Number():
            return str(value)
        case str():
            return quoted(value)
    if depth >= JSON_DEPTH_MAX:
        raise JsonRefused(f"the document nests deeper than {JSON_DEPTH_MAX} levels")
    if isinstance(value, list):
        return "[" + ",".join(_write(item, depth + 1) for item in value) + "]"
    assert isinstance(value, dict)
    members = {_SURROGATE.sub("\ufffd", key): item for key, item in value.items()}
    return (
        "{"
        + ",".join(f"{quoted(key)}:{_write(members[key], depth + 1)}" for key in sorted(members))
        + "}"
    )
