"""What a text is, if it is so beyond doubt: a URL's host, a path, a mail domain, SQL's verbs.

Every function returns None for what two readers could understand differently: whoever writes the
argument is not whoever judges it, and the tool behind it is a third.
"""

import posixpath
import re
import unicodedata
from typing import Final

TEXT_CHARACTERS_MAX: Final = 65_536
"""Longer texts are not looked into."""

_INVISIBLE: Final = frozenset("\u034f\u115f\u1160\u3164") | {
    chr(code) for code in range(0xFE00, 0xFE10)
}
_HOST: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_NUMBER_HOST: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*")
_DOTTED_QUAD: Final = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}")
_URL: Final = re.compile(r"(?:https?|wss?)://([^/?#]*)(?:[/?#].*)?", re.IGNORECASE)
_PORT: Final = re.compile(r":[0-9]{1,5}")
_MAILBOX: Final = re.compile(r"[A-Za-z0-9._+-]{1,64}")
_OF_A_SHELL: Final = frozenset("\\$`{}")
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")

_SQL: Final = re.compile(
    r"""(?P<space>[ \t\r\n]+|--(?=[ \t\r\n]|$)[ -~\t]*(?=\r?\n|\Z)
                 |/\*(?![!+]|[Mm]!)(?:(?!/\*|\*/)[ -~\t\r\n])*\*/)
      | (?P<quoted>(?!'{3}|"{3})(?:'(?:[ -&(-\[\]-~\t\r\n]|'')*'|"(?:[ !#-\[\]-~\t\r\n]|"")*"
                  |`[ -\[\]-_a-~]*`|\[[A-Za-z0-9_ ,.:]*\]))
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*+(?!['"]))
      | (?P<end>;)
      | (?P<mark>[0-9.,()<>=!+%|&^~?:@]|-(?!-)|/(?![/*])|\*(?!/))""",
    re.VERBOSE,
)
"""What is not here is doubt: backslashes and prefixes before quotes, `$$`, `#`, `//`, braces,
comments inside comments or that MySQL and MariaDB run, `--` without a space, line ends that are
none to some, three quotes in a row, quotes inside brackets, all that is not ASCII. Databases end
strings, names and comments differently there, and a verb could hide in the difference."""

_SQL_TAKES_INTO: Final = frozenset({"insert", "replace", "merge"})
_SQL_TAKES_SET: Final = frozenset({"update", "merge"})

# fmt: off
_SQL_CHANGES: Final = frozenset([
    "alter", "analyse", "analyze", "attach", "backup", "begin", "bulk", "call", "checkpoint",
    "comment", "commit", "copy", "create", "dbcc", "deallocate", "declare", "delete", "deny",
    "detach", "disable", "do", "drop", "enable", "exec", "execute", "explain", "grant",
    "handler", "import", "insert", "install", "into", "kill", "listen", "load", "lock", "merge",
    "notify", "pragma", "prepare", "print", "raiserror", "reconfigure", "refresh", "reindex",
    "rename", "replace", "reset", "restore", "revoke", "rollback", "savepoint", "set",
    "shutdown", "throw", "truncate", "unlock", "update", "updatetext", "upsert", "use",
    "vacuum", "waitfor", "writetext",
])
# fmt: on
"""Words that can do something, wherever in a statement they stand: some databases take several
statements without a semicolon between."""


def plain(text: str) -> bool:
    """True for a text that looks like what it is: short enough, nothing invisible, NFKC."""
    if len(text) > TEXT_CHARACTERS_MAX:
        return False
    if text.isascii():
        return text.isprintable()
    return unicodedata.normalize("NFKC", text) == text and not any(
        unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        for character in text
    )


def as_seen(text: str) -> str | None:
    """Return a text as a reader takes it, NFKC and nothing invisible; None: too long for that."""
    if text.isascii():
        return text
    if len(text) > TEXT_CHARACTERS_MAX:
        return None
    return "".join(
        character
        for character in unicodedata.normalize("NFKC", text)
        if unicodedata.category(character) != "Cf" and character not in _INVISIBLE
    )


def host_name(text: str) -> str | None:
    """Return a host name in lower case without its last dot, or None."""
    if not text.isascii():  # before lower(), which makes a plain k of the Kelvin sign
        return None
    host = text.lower().removesuffix(".")
    if len(host) > 253:
        return None
    if _NUMBER_HOST.fullmatch(host):
        # 127.1, 0x7f.1 and 2130706433 are hosts to some and names to others.
        return host if _DOTTED_QUAD.fullmatch(host) else None
    return host if _HOST.fullmatch(host) else None


def url_host(text: str) -> str | None:
    """Return the host of an http or ws URL, or None: user information, IPv6, encodings."""
    if not plain(text) or "\\" in text or " " in text:
        return None
    match = _URL.fullmatch(text)
    # Up to the first slash: to some, https://example.com?@evil.test is at evil.test.
    if match is None or "@" in text[match.start(1) :].partition("/")[0]:
        return None
    name, colon, port = match[1].partition(":")
    if colon and not _PORT.fullmatch(colon + port):
        return None
    return host_name(name)


def email_domain(text: str) -> str | None:
    """Return the domain of one plain mail address, or None: names, lists, quotes, comments."""
    mailbox, at, domain = text.partition("@")
    if not at or not _MAILBOX.fullmatch(mailbox) or _NUMBER_HOST.fullmatch(domain):
        return None
    return host_name(domain) if "." in domain else None


def normal_path(text: str) -> str | None:
    """Return a path without `.`, `..` and doubled slashes, or None.

    None: encodings, `~`, what a shell would expand, names of dots or with spaces around them, and
    two slashes at the beginning (a host, to some). What links lead to is for the tool to check:
    this only knows the text.
    """
    if not text or not plain(text) or text.startswith("~") or _OF_A_SHELL & set(text):
        return None
    if _ENCODED.search(text) or (text.startswith("//") and not text.startswith("///")):
        return None
    for name in text.split("/"):
        if name != name.strip() or (name not in ("", ".", "..") and not name.strip(". ")):
            return None
    path = posixpath.normpath(text)
    return "/" + path.lstrip("/") if path.startswith("/") else path


def sql_verbs(text: str) -> frozenset[str] | None:
    """Return what the statements of a text do, in lower case, or None.

    The first word of each statement, and every word after it that could change something: a
    `WITH` that deletes is a delete, and a `SELECT ... INTO` is an into. Comments are no words.
    What a function does when it is called is not seen: that is for the grants of the database.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        return None
    verbs: set[str] = set()
    at, before = 0, ""
    while at < len(text):
        match = _SQL.match(text, at)
        if match is None:
            return None
        at = match.end()
        if match.lastgroup == "word":
            word = match[0].lower()
            verb = _verb(word, before, verbs)
            if verb is not None:
                verbs.add(verb)
            before = word
        elif match.lastgroup == "end":
            before = ""
        elif match.lastgroup == "quoted" and not before:
            return None
    return frozenset(verbs) or None


def _verb(word: str, before: str, verbs: set[str]) -> str | None:
    if not before:
        return "select" if word in ("with", "values", "table") else word
    if word == "into" and before in _SQL_TAKES_INTO:
        return None
    if word == "set" and verbs & _SQL_TAKES_SET:
        return None
    return word if word in _SQL_CHANGES else None
