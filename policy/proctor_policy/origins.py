"""Where the values of a call come from: what the user asked, or what was read before.

Prompt injection works by putting the attacker's value into an argument. So for each argument a
rule can ask `context.origins.<argument>`: a set with `"input"` when the value occurs in the run's
input, and for each earlier tool whose result has it, `"tool:<name>"` and that tool's labels. An
empty set: the model made it up.

A value matches as a whole, case and white space folded, in a value or at word borders in a text.
What is shorter than `CHARACTERS_MIN` never matches: it occurs everywhere. A number matches however
it is written. Of a list or record, an origin counts only when every value in it has it.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

CHARACTERS_MIN: Final = 3
"""Characters of the shortest value that is looked for."""

VALUES_MAX: Final = 50_000
"""Values that one index holds."""

TEXT_CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""Characters of text that one index holds."""

INPUT: Final = "input"
TOOL_PREFIX: Final = "tool:"


def is_origin(label: str) -> bool:
    """True for a word that says where a value comes from, and so can be no label."""
    return label == INPUT or label.startswith(TOOL_PREFIX)


_SPACE: Final = re.compile(r"\s+")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?")
_DIGITS_MAX: Final = 40
_SEPARATOR: Final = "\0"


class OriginIndex:
    """What a run has been given and has read, to look the values of a call up in.

    Grows as the run goes on. When it would grow over its bounds it forgets everything, and from
    then on vouches for nothing.
    """

    def __init__(self) -> None:
        self._values: dict[str, frozenset[str]] = {}
        self._texts: dict[frozenset[str], list[str]] = {}
        self._joined: dict[frozenset[str], str] = {}
        self._characters = 0
        self.forgot = False

    def add_input(self, document: str) -> None:
        """Add the input of the run, a JSON document."""
        self._add(document, frozenset({INPUT}))

    def add_result(self, document: str, *, tool: str, labels: frozenset[str]) -> None:
        """Add what a tool returned, a JSON document, with the labels of that call."""
        self._add(document, labels | {f"{TOOL_PREFIX}{tool}"})

    def of(self, args: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return the origins of each argument that has a value, sorted."""
        return {
            name: sorted(self._of_value(value)) for name, value in args.items() if value is not None
        }

    def _add(self, document: str, origins: frozenset[str]) -> None:
        if self.forgot:
            return
        for leaf in _leaves(json.loads(document, parse_float=Decimal, parse_int=Decimal)):
            folded = _folded(leaf)
            if folded is None:
                continue
            for key in {folded, _compact(folded)}:
                self._values[key] = self._values.get(key, frozenset()) | origins
            if isinstance(leaf, str) and not folded.isalnum():
                self._texts.setdefault(origins, []).append(folded)
                self._joined.pop(origins, None)
                self._characters += len(folded)
        if len(self._values) > VALUES_MAX or self._characters > TEXT_CHARACTERS_MAX:
            self.forgot = True
            self._values.clear()
            self._texts.clear()
            self._joined.clear()

    def _of_value(self, value: Any) -> frozenset[str]:
        found: frozenset[str] | None = None
        for leaf in _leaves(value):
            here = self._of_leaf(leaf)
            found = here if found is None else found & here
            if not found:
                break
        return found or frozenset()

    def _of_leaf(self, leaf: Any) -> frozenset[str]:
        folded = _folded(leaf)
        if folded is None or self.forgot:
            return frozenset()
        found = self._values.get(folded, frozenset())
        found |= self._values.get(_compact(folded), frozenset())
        for origins, texts in self._texts.items():
            if not origins <= found:
                joined = self._joined.get(origins)
                if joined is None:
                    joined = self._joined[origins] = _SEPARATOR.join(texts)
                if _occurs(folded, joined):
                    found |= origins
        return found


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            if item is not None:
                yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _folded(leaf: Any) -> str | None:
    """Return the form in which a value is compared, or None when it never matches."""
    if isinstance(leaf, bool) or leaf is None:
        return None
    text = _SPACE.sub(" ", unicodedata.normalize("NFKC", str(leaf)).casefold()).strip()
    if len(text) <= _DIGITS_MAX and _NUMBER.fullmatch(text):
        text = _number(text)
    return text if len(text) >= CHARACTERS_MIN and _SEPARATOR not in text else None


def _number(text: str) -> str:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    if not -_DIGITS_MAX < number.adjusted() < _DIGITS_MAX:
        return text
    plain = f"{number:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def _compact(folded: str) -> str:
    return folded.replace(" ", "")


def _occurs(value: str, text: str) -> bool:
    at = text.find(value)
    while at >= 0:
        if _begins(value, text, at) and _ends(value, text, at + len(value)):
            return True
        at = text.find(value, at + 1)
    return False


def _begins(value: str, text: str, at: int) -> bool:
    if at == 0 or not value[0].isalnum():
        return True
    before = text[at - 1]
    # 00 is not a value of its own in 5.00, nor 5 in -5.
    return not (
        before.isalnum()
        or (
            value[0].isdigit()
            and before in ".,-"
            and at > 1
            and (before == "-" or text[at - 2].isdigit())
        )
    )


def _ends(value: str, text: str, end: int) -> bool:
    if end >= len(text) or not value[-1].isalnum():
        return True
    after = text[end]
    return not (
        after.isalnum()
        or (value[-1].isdigit() and after in ".," and text[end + 1 : end + 2].isdigit())
    )
