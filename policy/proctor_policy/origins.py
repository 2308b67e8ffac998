"""Where the values of a call come from: what the user asked, or what was read before.

Prompt injection works by putting the attacker's value into an argument. So for each argument a
rule can ask `context.origins.<argument>`: a set with `"input"` when the value occurs in the run's
input, and for each earlier tool whose result has it, `"tool:<name>"` and that tool's labels. An
empty set: the model made it up.

Origins vouch, they do not accuse: what is certain is only that a value *was* seen. A model can
rewrite what it read, so to hold a call because something untrusted was read, ask
`context.session.labels`; `origins` is for `unless { ...contains("input") }`.

- A value matches as a whole, case and white space folded, in a value or in a text: `example.co`
  does not occur in `example.co.uk`, nor `1111` in `ACC-1111`. Parts never add up.
- Sources are read generously (NFKC), the call is not: a value with look-alike characters that
  NFKC would change is none that anybody named.
- What is shorter than `CHARACTERS_MIN` never matches: it occurs everywhere.
- A number matches however it is written: 1200, "1200.00", `1,200`. With leading zeros it is text.
- Of a list or record, an origin counts only when every value in it has it. So must a key, unless
  it reads like the name of a field; keys in results are no values.
- What a call puts in does not come out of it: a result has no value that was in the arguments of
  its own call, or any search tool that repeats its query would launder it.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from proctor_policy.same_value import (
    CHARACTERS_MIN,
    asked,
    is_whole,
    number,
    numbers,
    seen,
    text_of,
    without_spaces,
    words,
)

VALUES_MAX: Final = 100_000
"""Values that one index holds."""

TEXT_CHARACTERS_MAX: Final = 4 * 1024 * 1024
"""Characters of text that one index holds."""

WORK_MAX: Final = 8_000_000
"""Characters looked at for one call, or so; what is still open then is not vouched for."""

INPUT: Final = "input"
TOOL_PREFIX: Final = "tool:"


def is_origin(label: str) -> bool:
    """True for a word that says where a value comes from, and so can be no label."""
    return label == INPUT or label.startswith(TOOL_PREFIX)


_LEAF_WORK: Final = 1_000
_FIND_WORK: Final = 100
_FIELD: Final = re.compile(r"[A-Za-z_-]{1,40}[0-9]{0,2}")


@dataclass(frozen=True, slots=True)
class _Call:
    """What a call put in, so that its result does not vouch for it."""

    text: str
    """All of it in one, without spaces."""
    names: tuple[str, ...]
    """Addresses, paths and the like in it: with `https://` before them they are what they were."""
    numbers: frozenset[str]

    def gave(self, value: str) -> bool:
        """True when a text of the result may only repeat what was asked."""
        return value.replace(" ", "") in self.text or any(name in value for name in self.names)


@dataclass(frozen=True, slots=True)
class _Source:
    """A text or number that the run has seen."""

    text: str
    origins: frozenset[str]
    call: _Call | None


class _WorkDone(Exception):
    """A call that takes longer to look through than calls may."""


class OriginIndex:
    """What a run has been given and has read, to look the values of a call up in.

    Grows as the run goes on; adding costs what the document is long, not what is there already.
    When it would grow over its bounds it forgets everything, and from then on vouches for nothing.
    """

    def __init__(self) -> None:
        self._words: dict[str, list[_Source]] = {}
        self._numbers: dict[str, list[_Source]] = {}
        self._values = 0
        self._characters = 0
        self.forgot = False

    def add_input(self, document: str) -> None:
        """Add the input of the run, a JSON document."""
        self._add(document, frozenset({INPUT}), None)

    def add_result(
        self, document: str, *, tool: str, labels: frozenset[str], args: str | None = None
    ) -> None:
        """Add what a tool returned, with the labels and `args` of that call; JSON documents."""
        # A label that is an origin by its name would make a result look like what the user asked.
        origins = {label for label in labels if not is_origin(label)} | {f"{TOOL_PREFIX}{tool}"}
        self._add(document, frozenset(origins), args)

    def of(self, args: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return the origins of each argument that has a value, sorted.

        `args` are as `values.parse` gives them. Those that take more than `WORK_MAX` to look up,
        and those after them, have no origins.
        """
        found: dict[str, list[str]] = {
            name: [] for name, value in args.items() if value is not None
        }
        if self.forgot:
            return found
        lookup = _Lookup(self._words, self._numbers)
        try:
            for name in found:
                found[name] = sorted(lookup.of_value(args[name]))
        except _WorkDone:
            return found
        return found

    def _add(self, document: str, origins: frozenset[str], args: str | None) -> None:
        if self.forgot:
            return
        try:
            if len(document) > TEXT_CHARACTERS_MAX:
                raise ValueError("longer than what the index holds")
            call = None if args is None else _put_in(args)
            self._grow(0 if call is None else len(call.text))
            for leaf in _leaves(_read(document)):
                if isinstance(leaf, str):
                    self._add_text(seen(text_of(leaf)), origins, call)
        except (ValueError, RecursionError):
            # Not JSON, too deep or too much: what is missing would be missed.
            self._forget()

    def _grow(self, characters: int) -> None:
        self._values += 1
        self._characters += characters
        if self._values > VALUES_MAX or self._characters > TEXT_CHARACTERS_MAX:
            raise ValueError("more than what the index holds")

    def _add_text(self, text: str, origins: frozenset[str], call: _Call | None) -> None:
        if len(text) < CHARACTERS_MIN:
            return
        self._grow(len(text))
        source = _Source(text, origins, call)
        for word in set(words(text)):
            self._words.setdefault(word, []).append(source)
        for each in numbers(text):
            self._numbers.setdefault(each, []).append(source)
        spaced = without_spaces(text)
        if spaced is not None:
            self._add_text(spaced, origins, call)

    def _forget(self) -> None:
        self.forgot = True
        self._words.clear()
        self._numbers.clear()


class _Literal(str):
    """A number as it is written in a document."""

    __slots__ = ()


class _Lookup:
    """Looks the values of one call up, as long as that takes no more than `WORK_MAX`."""

    def __init__(
        self, words: Mapping[str, list[_Source]], numbers: Mapping[str, list[_Source]]
    ) -> None:
        self._words = words
        self._numbers = numbers
        self._left = WORK_MAX

    def of_value(self, value: Any) -> frozenset[str]:
        """Return the origins that every value inside `value` has.

        Raises:
            _WorkDone: there is too much to look at.
        """
        found: frozenset[str] | None = None
        for leaf in _leaves(value, keys=_is_no_field):
            here = self._of_leaf(leaf)
            found = here if found is None else found & here
            if not found:
                break
        return found or frozenset()

    def _of_leaf(self, leaf: Any) -> frozenset[str]:
        self._spend(_LEAF_WORK)
        if not isinstance(leaf, str | int) or isinstance(leaf, bool):
            return frozenset()
        as_number = number(text_of(leaf))
        if as_number is not None:
            return self._of_number(as_number)
        text = asked(text_of(leaf))
        if text is None:
            return frozenset()
        spaced = without_spaces(text)
        return self._of_text(text) | (frozenset() if spaced is None else self._of_text(spaced))

    def _of_number(self, value: str) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        if len(value) < CHARACTERS_MIN:
            return found
        for source in self._numbers.get(value, ()):
            if not source.origins <= found:
                self._spend(_FIND_WORK)
                if source.call is None or value not in source.call.numbers:
                    found |= source.origins
        return found

    def _of_text(self, text: str) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        self._spend(len(text))
        for source in self._with_words_of(text):
            if source.origins <= found:
                continue
            self._spend(_FIND_WORK + len(source.text))
            if not self._occurs(text, source.text):
                continue
            if source.call is not None:
                self._spend(2 * len(source.call.text) + len(source.call.names) * len(text))
                if source.call.gave(text):
                    continue
            found |= source.origins
        return found

    def _with_words_of(self, text: str) -> Iterable[_Source]:
        """Return the sources that have the rarest word of a text; none if it has an unknown one."""
        rarest: list[_Source] = []
        for word in words(text):
            known = self._words.get(word)
            if known is None:
                return ()
            if not rarest or len(known) < len(rarest):
                rarest = known
        return rarest

    def _occurs(self, value: str, text: str) -> bool:
        at = text.find(value)
        while at >= 0:
            if is_whole(value, text, at):
                return True
            self._spend(_FIND_WORK)
            at = text.find(value, at + 1)
        return False

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise _WorkDone


def _leaves(value: Any, *, keys: Callable[[str], bool] | None = None) -> Iterator[Any]:
    """Yield the values inside a value, and those keys that `keys` says are values."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if keys is not None:
                yield from filter(keys, value)
            waiting.extend(item for item in value.values() if item is not None)
        elif isinstance(value, list):
            waiting.extend(value)
        else:
            yield value


def _is_no_field(key: str) -> bool:
    return _FIELD.fullmatch(key) is None


def _put_in(args: str) -> _Call:
    leaves = _leaves(_read(args), keys=lambda _: True)
    texts = [seen(text_of(leaf)) for leaf in leaves if isinstance(leaf, str)]
    return _Call(
        "\n".join(text.replace(" ", "") for text in texts),
        tuple(text for text in texts if len(text) >= CHARACTERS_MIN and _is_name(text)),
        frozenset(each for text in texts for each in numbers(text)),
    )


def _is_name(text: str) -> bool:
    return " " not in text and not text.isalnum()


def _read(document: str) -> Any:
    return json.loads(document, parse_float=_Literal, parse_int=_Literal)
