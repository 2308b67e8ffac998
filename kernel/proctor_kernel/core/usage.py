"""How many tokens a model call used, read from whatever its provider answered (protocol 5.3)."""

import json
from collections.abc import Iterator
from typing import Any, Final

_INPUT_KEYS: Final = frozenset(
    {"prompt_tokens", "input_tokens", "inputTokens", "promptTokenCount", "prompt_eval_count"}
)
_OUTPUT_KEYS: Final = frozenset(
    {"completion_tokens", "output_tokens", "outputTokens", "candidatesTokenCount", "eval_count"}
)
_DEPTH_MAX: Final = 32
_TOKENS_MAX: Final = 2**31


def tokens_of(result_json: str) -> tuple[int | None, int | None]:
    """Return the input and output tokens that a recorded result tells of; None: it does not."""
    # Searched first: parsing every long answer would cost more than it tells.
    if "oken" not in result_json and "eval_count" not in result_json:
        return None, None
    found_in: int | None = None
    found_out: int | None = None
    for document in _documents(json.loads(result_json, parse_int=_integer)):
        for key, number in _numbers(document, 0):
            if key in _INPUT_KEYS:
                found_in = max(found_in or 0, number)
            elif key in _OUTPUT_KEYS:
                found_out = max(found_out or 0, number)
    return found_in, found_out


def _integer(literal: str) -> int:
    # Longer ones are no count of tokens, and Python refuses to convert them.
    return int(literal) if len(literal) < 19 else 0


def _documents(result: Any) -> Iterator[Any]:
    body = result.get("body") if isinstance(result, dict) else None
    if not isinstance(body, str) or not body:
        yield result
        return
    whole = _parsed(body)
    if whole is not None:
        yield whole
        return
    for line in body.splitlines():
        if line.startswith("data:"):
            yield _parsed(line.removeprefix("data:").strip())


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_int=_integer)
    except (ValueError, RecursionError):
        return None


def _numbers(value: Any, depth: int) -> Iterator[tuple[str, int]]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < _TOKENS_MAX:
                yield key, item
            else:
                yield from _numbers(item, depth + 1)
