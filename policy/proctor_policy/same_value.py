"""When two texts are the same value: folded, numbers however they are written, and whole.

Texts that were seen are read generously (NFKC), a value that is asked about is not: one with
look-alike characters that NFKC would change is none that anybody named.
"""

import re
import unicodedata
from decimal import Decimal
from typing import Final

CHARACTERS_MIN: Final = 3
"""Characters of the shortest value that is looked for."""

_DIGITS_MAX: Final = 40
_SPACED_CHARACTERS_MAX: Final = 64
_JOINERS: Final = "-._@+%&~\u2010"
_SPACE: Final = re.compile(r"\s+")
_WORD: Final = re.compile(r"[^\W_]+")
_NUMERAL: Final = r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+|(?:0|[1-9][0-9]*+))(?:\.[0-9]+)?"
_NUMBER: Final = re.compile(rf"\+?({_NUMERAL})")
_NUMBERS: Final = re.compile(
    rf"(?<!\w)(?<!\w[{_JOINERS}])(?<![0-9][,:/])({_NUMERAL})(?!\w)(?![{_JOINERS}]\w)(?![,:/][0-9])"
)


def text_of(leaf: str | int) -> str:
    """Return the text of a leaf; a number literal, of whatever kind, without its exponent."""
    if type(leaf) is str:
        return leaf
    text = str(leaf)
    if "e" not in text and "E" not in text:
        return text
    number = Decimal(text)
    return f"{number:f}" if -_DIGITS_MAX < number.adjusted() < _DIGITS_MAX else text


def number(text: str) -> str | None:
    """Return the one way to write a number, or None when the text is none."""
    if len(text) > 2 * _DIGITS_MAX:
        return None
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    plain = match[1].replace(",", "")
    if "." in plain:
        plain = plain.rstrip("0").rstrip(".")
    return "0" if plain == "-0" else plain


def numbers(text: str) -> set[str]:
    """Return the numbers that stand by themselves in a text, each in its one way."""
    return {found for numeral in _NUMBERS.findall(text) if (found := number(numeral)) is not None}


def words(text: str) -> list[str]:
    """Return the runs of letters and digits of a text, in their order."""
    return _WORD.findall(text)


def seen(text: str) -> str:
    """Return the form in which a text that was seen is searched."""
    return _folded(unicodedata.normalize("NFKC", text))


def asked(text: str) -> str | None:
    """Return the form of a value that is looked up in what was `seen`; None: it never matches."""
    if not text.isascii() and any(
        unicodedata.normalize("NFKC", each) != each for each in set(text)
    ):
        return None
    folded = _folded(unicodedata.normalize("NFC", text))
    return folded if len(folded) >= CHARACTERS_MIN else None


def _folded(text: str) -> str:
    # Not casefold(): it makes strasse of straße, and those are two domains.
    return _SPACE.sub(" ", text.lower()).strip()


def without_spaces(text: str) -> str | None:
    """Return the other form of an account or telephone number that is written in groups."""
    if " " in text and len(text) <= _SPACED_CHARACTERS_MAX and any(map(str.isdigit, text)):
        return text.replace(" ", "")
    return None


def is_whole(value: str, text: str, at: int) -> bool:
    """True when what stands at a place is no part of something longer, as in `example.co.uk`."""
    end = at + len(value)
    before, after = text[max(0, at - 2) : at][::-1], text[end : end + 2]
    if before and before[0] in _before(value):
        return False
    return not (_goes_on(value, value[0], before) or _goes_on(value, value[-1], after))


def _before(value: str) -> str:
    """Return what makes another name of a value by standing before it, as in `.env` or `~/a`."""
    if value[0] in "/\\":
        return "/\\" + _JOINERS
    return "./\\" if "/" in value or "\\" in value else "."


def _goes_on(value: str, edge: str, beyond: str) -> bool:
    """True when what lies beyond an edge, nearest first, belongs to the same word or name."""
    if not beyond:
        return False
    if _is_of_word(beyond[0]):
        return True
    if len(beyond) < 2 or not _is_of_word(beyond[1]):
        return False
    if beyond[0] in _JOINERS:
        return True
    if beyond[0] in "/\\":
        return "/" in value or "\\" in value or (edge.isdigit() and beyond[1].isdigit())
    return (beyond[0] == ":" or (beyond[0] == "," and edge.isdigit())) and beyond[1].isdigit()


def _is_of_word(character: str) -> bool:
    return character.isalnum() or unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")
