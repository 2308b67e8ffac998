"""Cedar text as tokens with line numbers, cut into one run of tokens per policy.

cedarpy says what is wrong with a policy but never where, and deep nesting kills the process in
its parser. So the text is split here, each policy is parsed by itself, and what is too deep
never reaches the parser. Source: Cedar reference, grammar.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

NESTING_MAX: Final = 32
"""Brackets inside one another. The parser crashes at about 80 on a stack of 1 MB."""

IFS_MAX: Final = 32
"""`if` expressions in one policy; chained ones nest like brackets do."""

OPERATORS_MAX: Final = 1000
"""Operators and clauses in one policy. Far more of them exhaust the evaluator's stack."""

_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t\r\n\f]+|//[^\n]*)
  | (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<number>[0-9]+)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_][A-Za-z0-9_]*)*)
  | (?P<mark>::|==|!=|<=|>=|&&|\|\||[][(){}<>.,;:@?!+*-])
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN: Final = {"(": ")", "[": "]", "{": "}"}
_CLOSE: Final = frozenset(_OPEN.values())
_OPERATORS: Final = frozenset(
    {"&&", "||", "+", "-", "*", "!", "==", "!=", "<", ">", "<=", ">=", "when", "unless"}
)


class Unreadable(Exception):
    """Text that is not a sequence of policies, at `line`."""

    def __init__(self, line: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Token:
    """One word of Cedar. `kind`: string, number, word or mark."""

    kind: str
    text: str
    line: int
    start: int
    """Offset in the text."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """One policy: its text without what surrounds it, and its tokens without the last `;`."""

    text: str
    line: int
    tokens: tuple[Token, ...]


def split(text: str) -> Iterator[Fragment]:
    """Cut `text` into policies.

    Raises:
        Unreadable: a character or string that Cedar does not have, brackets that do not match
            or nest too deep, a policy without its `;`. What came before it was yielded.
    """
    held: list[Token] = []
    open_brackets: list[Token] = []
    for token in tokens(text):
        held.append(token)
        if token.kind != "mark":
            continue
        if token.text in _OPEN:
            open_brackets.append(token)
            if len(open_brackets) > NESTING_MAX:
                raise Unreadable(token.line, f"brackets nest deeper than {NESTING_MAX} levels")
        elif token.text in _CLOSE:
            if not open_brackets or _OPEN[open_brackets[-1].text] != token.text:
                raise Unreadable(token.line, f"unexpected {token.text!r}")
            open_brackets.pop()
        elif token.text == ";" and not open_brackets:
            yield _fragment(text, held)
            held = []
    if open_brackets:
        opened = open_brackets[-1]
        raise Unreadable(opened.line, f"{opened.text!r} is never closed")
    if held:
        raise Unreadable(
            held[-1].line,
            f"the policy that begins in line {held[0].line} does not end",
            "a policy ends with ';'",
        )


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of `text`, without white space and comments."""
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unexpected(text, at, line)
        kind = str(match.lastgroup)
        if kind != "space":
            yield Token(kind, match[0], line, at)
        line += match[0].count("\n")
        at = match.end()


def unquoted(token: Token) -> str:
    """Return what a string token stands for (Cedar reference, string escapes).

    Raises:
        Unreadable: an escape that Cedar does not have.
    """

    def meant(match: re.Match[str]) -> str:
        escape = match[0]
        if escape in _ESCAPES:
            return _ESCAPES[escape]
        code = match[1] or match[2]
        if code is None or int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF:
            raise Unreadable(token.line, f"unknown escape {escape!r} in a string")
        return chr(int(code, 16))

    return _ESCAPE.sub(meant, token.text[1:-1])


_ESCAPE: Final = re.compile(r"\\x([0-7][0-9A-Fa-f])|\\u\{([0-9A-Fa-f]{1,6})\}|\\.", re.DOTALL)
_ESCAPES: Final = {
    r"\n": "\n", r"\r": "\r", r"\t": "\t", r"\0": "\0", r"\\": "\\", r"\'": "'", r"\"": '"',
    r"\*": "*",
}  # fmt: skip


def _fragment(text: str, held: list[Token]) -> Fragment:
    first, last = held[0], held[-1]
    words = [token.text for token in held if token.kind in ("word", "mark")]
    if words.count("if") > IFS_MAX:
        raise Unreadable(first.line, f"a policy with more than {IFS_MAX} 'if' expressions")
    if sum(word in _OPERATORS for word in words) > OPERATORS_MAX:
        raise Unreadable(first.line, f"a policy with more than {OPERATORS_MAX} operators")
    return Fragment(text[first.start : last.start + 1], first.line, tuple(held[:-1]))


def _unexpected(text: str, at: int, line: int) -> Unreadable:
    if text[at] == '"':
        return Unreadable(line, "a string that is never closed")
    if text.startswith("/*", at):
        return Unreadable(line, "Cedar has no /* */ comments", "begin each line with //")
    if text[at] == "\ufeff":
        return Unreadable(line, "a byte order mark", "save the file as UTF-8 without one")
    return Unreadable(line, f"unexpected character {text[at]!r}")
