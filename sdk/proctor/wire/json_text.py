"""JSON text into Python values, the same way at both ends."""

import json
from typing import Any


def parsed(text: str) -> Any:
    """Return a JSON document as Python values; raises ValueError.

    An integer of more digits than Python converts becomes its text.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_integer)


def _integer(literal: str) -> int | str:
    try:
        return int(literal)
    except ValueError:
        return literal
