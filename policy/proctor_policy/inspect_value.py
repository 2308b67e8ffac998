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

_HOST: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_NUMBER_HOST: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*")
_DOTTED_QUAD: Final = re.compile(r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.(?!$)|$)){4}")
_URL: Final = re.compile(r"(?:https?|wss?)://([^/?#]*)(?:[/?#].*)?", re.IGNORECASE)
_PORT: Final = re.compile(r":[0-9]{1,5}")
_MAILBOX: Final = re.compile(r"[A-Za-z0-9._+-]{1,64}")
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")

_SQL: Final = re.compile(
    r"""(?P<space>\s+|--(?=\s|$)[^\n]*|/\*(?![!+])(?:(?!/\*|\*/).)*\*/)
      | (?P<quoted>'(?:[^'\\]|'')*'|"(?:[^"\\]|"")*"|`[^`\\]*`)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*(?!['"]))
      | (?P<end>;)
      | (?P<mark>[0-9.,()<>=!+*/%|&^~?:@\[\]{}]|-(?!-))""",
    re.VERBOSE | re.DOTALL,
)
"""What is not here is doubt: backslashes and prefixes before quotes, `$$`, `#`, comments inside
comments or that MySQL runs, `--` without a space. Databases end strings and comments differently
there, and a verb could hide in the difference."""

_SQL_CHANGES: Final = frozenset(
    [
        "alter",
        "analyze",
        "attach",
        "begin",
        "call",
        "comment",
        "commit",
        "copy",
        "create",
        "deallocate",
        "delete",
        "detach",
        "do",
        "drop",
        "exec",
        "execute",
        "explain",
        "grant",
        "handler",
        "import",
        "insert",
        "install",
        "into",
        "kill",
        "listen",
        "load",
        "lock",
        "merge",
        "notify",
        "pragma",
        "prepare",
        "refresh",
        "reindex",
        "rename",
        "replace",
        "reset",
        "revoke",
        "rollback",
        "savepoint",
        "set",
        "shutdown",
        "truncate",
        "unlock",
        "update",
        "upsert",
        "use",
        "vacuum",
    ]
)


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


def host_name(text: str) -> str | None:
    """Return a host name in lower case without its last dot, or None."""
    host = text.lower().removesuffix(".")
    if not host.isascii() or len(host) > 253:
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
    if match is None or "@" in match[1]:
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
    """Return a path without `.`, `..` and doubled slashes, or None: encodings, `~`, variables.

    What links lead to is for the tool to check: this only knows the text.
    """
    if not text or not plain(text) or "\\" in text or "$" in text or text.startswith("~"):
        return None
    if _ENCODED.search(text):
        return None
    path = posixpath.normpath(text)
    return "/" + path.lstrip("/") if path.startswith("/") else path


def sql_verbs(text: str) -> frozenset[str] | None:
    """Return what the statements of a text do, in lower case, or None.

    The first word of each statement, and every word after it that could change something: a
    `WITH` that deletes is a delete. Comments are no words; those that MySQL runs are doubt.
    """
    if len(text) > TEXT_CHARACTERS_MAX or not text.isascii():
        return None
    verbs: set[str] = set()
    at, begins = 0, True
    while at < len(text):
        match = _SQL.match(text, at)
        if match is None:
            return None
        at = match.end()
        if match.lastgroup == "word":
            word = match[0].lower()
            if begins or word in _SQL_CHANGES:
                verbs.add("select" if begins and word in ("with", "values", "table") else word)
            begins = False
        elif match.lastgroup == "end":
            begins = True
        elif match.lastgroup == "quoted" and begins:
            return None
    return frozenset(verbs) or None
