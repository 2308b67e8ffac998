"""Facts: what Cedar cannot look for in an argument, computed before it is asked.

`facts.toml` names them; a rule asks `context.facts.contains("external-url")`:

    [external-url]
    tools = ["fetch"]                    # left out: every call that has the argument
    argument = "url"                     # dotted path; a list stands for each of its elements
    host_not_in = ["example.com", "*.example.com"]
    label = "untrusted"                  # a call that has the fact leaves this on the session

Each fact looks for one thing, and its key says how doubt is settled:

    matches, host_not_in, path_not_under, email_domain_not_in, sql_other_than
        warn: the fact holds when any value has it, or cannot be understood
    matches_all, host_in, path_under, email_domain_in, sql_only
        vouch: the fact holds when there is a value, and every value has it beyond doubt

    text_equals, text_contains, text_one_of, text_matches, target_glob, target_matches
        exact: about the text of one value (JSON, when it is not a text) or of the call's target;
        no doubt is settled, so a rule must say what becomes of every other value

So a forbid that asks for a warning, and a permit that asks for a voucher, both stay shut in doubt.
An argument that is not there has no facts. `numbers = "float"` beside a `text_...` writes numbers
as Go does that has read them as floats.

`matches` also looks at a text as it is read: without invisible characters, and full-width letters
plain. What looks alike in other scripts it does not know, so a list of what is allowed holds better
than a pattern of what is not.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

import re2

from proctor_policy import inspect_value, texts
from proctor_policy.origins import is_origin
from proctor_policy.problem import Problem, line_of_error

_COMMON: Final = frozenset({"tools", "argument", "label", "numbers"})

Look = Callable[[str], bool | None]
"""Whether a text has what is looked for; None: it cannot be understood."""

Mode = Literal["warns", "vouches", "exact", "target"]
"""How a fact settles doubt; `target`: it is exact, and about the target of the call."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One named fact."""

    name: str
    tools: frozenset[str] | None
    """The targets it is about; None: all."""
    argument: tuple[str, ...]
    look: Look
    mode: Mode
    label: str | None
    text_of: Callable[[Any], str]
    """The text of a value, for exact facts."""

    def holds(self, target: str, args: Any) -> bool:
        """True when a call has this fact."""
        if self.mode == "target":
            return self.look(target) is True
        if self.mode == "exact":
            found, value = _exact_value(args, self.argument)
            return found and self.look(self.text_of(value)) is True
        seen = [
            self.look(value) if type(value) is str else None
            for value in _values(args, self.argument)
        ]
        if self.mode == "vouches":
            return bool(seen) and all(each is True for each in seen)
        return any(each is not False for each in seen)


@dataclass(frozen=True, slots=True)
class FactSet:
    """The facts of a rule set."""

    facts: tuple[Fact, ...] = ()

    def of(self, target: str, args: Any) -> tuple[Fact, ...]:
        """Return the facts of a call, in the order of their names."""
        return tuple(
            fact
            for fact in self.facts
            if (fact.tools is None or target in fact.tools) and fact.holds(target, args)
        )


def read(file: str, text: str, problems: list[Problem]) -> FactSet:
    """Read the text of a `facts.toml`; what is wrong goes to `problems`."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(file, line_of_error(error, text), f"not TOML: {error}"))
        return FactSet()
    found = []
    for name in sorted(tables):
        try:
            found.append(_fact(name, tables[name]))
        except FactInvalid as error:
            line = _line_of_table(text, name)
            problems.append(Problem(file, line, f"fact {name!r}: {error}", error.hint))
    return FactSet(tuple(found))


class FactInvalid(Exception):
    """A fact that is not one; the message says why, `hint` what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _fact(name: str, table: Any) -> Fact:
    if not isinstance(table, dict):
        raise FactInvalid("expected a table", f"write [{name}]")
    looks = [key for key in table if key in _LOOKS]
    for key in table:
        if key not in _COMMON and key not in _LOOKS:
            near = get_close_matches(key, [*_COMMON, *_LOOKS], n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(_LOOKS)}"
            raise FactInvalid(f"unknown key {key!r}", hint)
    if len(looks) != 1:
        raise FactInvalid("it must look for exactly one thing", f"one of: {', '.join(_LOOKS)}")
    make, mode = _LOOKS[looks[0]]
    argument = table.get("argument", "the target" if mode == "target" else None)
    if not isinstance(argument, str) or not all(argument.split(".")):
        raise FactInvalid("argument must name one, as 'to' or 'mail.to'")
    if table.get("numbers", "json") not in _TEXTS or ("numbers" in table and mode != "exact"):
        raise FactInvalid("numbers must be 'json' or 'float', beside a text_...")
    if mode in ("warns", "vouches") and set(argument) & set("[]*"):
        raise FactInvalid(
            f"argument {argument!r}: a list stands for each of its elements",
            "leave the brackets out",
        )
    tools = table.get("tools")
    label = table.get("label")
    if label is not None and (not isinstance(label, str) or not label):
        raise FactInvalid(f"label must be a word, not {label!r}")
    if label is not None and is_origin(label):
        raise FactInvalid(f"the label {label!r} is an origin of its own", "choose another one")
    return Fact(
        name=name,
        tools=None if tools is None else frozenset(_texts("tools", tools)),
        argument=tuple(argument.split(".")),
        look=make(table[looks[0]]),
        mode=mode,
        label=label,
        text_of=_TEXTS[table.get("numbers", "json")],
    )


def _values(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield what stands at a path, each element of a list by itself."""
    waiting = [(value, 0)]
    while waiting:
        value, at = waiting.pop()
        if isinstance(value, list):
            waiting.extend((item, at) for item in value)
        elif at == len(path):
            yield value
        elif isinstance(value, dict):
            if value.get(path[at]) is not None:
                waiting.append((value[path[at]], at + 1))
        elif value is not None:
            yield None  # something stands where an object is expected: that is doubt


def _exact_value(args: Any, path: Sequence[str]) -> tuple[bool, Any]:
    """Return whether a value stands at a path, and the value: the key as written comes first."""
    key = ".".join(path)
    if isinstance(args, dict) and key in args:
        return True, args[key]
    value = args
    for part in path:
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


def _texts(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise FactInvalid(f"{key} must be a list of texts, and not empty")
    return value


def _pattern(value: Any, *, whole: bool) -> Look:
    if not isinstance(value, str):
        raise FactInvalid("a pattern must be a text")
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(value, options)
    except re2.error as error:
        said = error.args[0].decode() if error.args else "it does not compile"
        raise FactInvalid(
            f"the pattern {value!r}: {said}", "RE2 has no back-references and no look-around"
        ) from None
    search = compiled.fullmatch if whole else compiled.search

    def look(text: str) -> bool | None:
        try:
            return search(text) is not None
        except UnicodeEncodeError:
            return None

    return look


def _as_seen(look: Look) -> Look:
    """Return a look that also takes a text as a reader sees it."""

    def sees(text: str) -> bool | None:
        found = look(text)
        if found is not False:
            return found
        seen = inspect_value.as_seen(text)
        return None if seen is None else look(seen)

    return sees


def _hosts(value: Any, *, inside: bool) -> Look:
    names = _domains("hosts", value)
    return _member(inspect_value.url_host, lambda host: _in_domains(host, names), inside=inside)


def _mail(value: Any, *, inside: bool) -> Look:
    names = _domains("domains", value)
    return _member(
        inspect_value.email_domain, lambda domain: _in_domains(domain, names), inside=inside
    )


def _paths(value: Any, *, inside: bool) -> Look:
    folders = []
    for folder in _texts("paths", value):
        plain = inspect_value.normal_path(folder)
        if plain is None or _is_up(plain):
            raise FactInvalid(f"{folder!r} is not a plain path", "as /srv/data, notes, or .")
        folders.append(plain.rstrip("/"))

    def under(path: str) -> bool:
        if "." in folders and not path.startswith("/") and not _is_up(path):
            return True
        return any(path == folder or path.startswith(f"{folder}/") for folder in folders)

    return _member(inspect_value.normal_path, under, inside=inside)


def _is_up(path: str) -> bool:
    return path == ".." or path.startswith("../")


def _sql(value: Any, *, inside: bool) -> Look:
    verbs = {verb.lower() for verb in _texts("verbs", value)}
    return _member(inspect_value.sql_verbs, lambda found: found <= verbs, inside=inside)


def _member(
    understand: Callable[[str], Any], belongs: Callable[[Any], bool], *, inside: bool
) -> Look:
    def look(text: str) -> bool | None:
        understood = understand(text)
        return None if understood is None else belongs(understood) is inside

    return look


def _domains(what: str, value: Any) -> frozenset[str]:
    names = frozenset(name.lower().rstrip(".") for name in _texts(what, value))
    for name in names:
        if inspect_value.host_name(name.removeprefix("*.")) is None:
            raise FactInvalid(f"{name!r} is not a host name", "as example.com, or *.example.com")
    return names


def _in_domains(host: str, names: frozenset[str]) -> bool:
    if host in names:
        return True
    parts = host.split(".")
    return any("*." + ".".join(parts[start:]) in names for start in range(1, len(parts)))


def _text(value: Any, compare: Callable[[str, str], bool]) -> Look:
    if not isinstance(value, str):
        raise FactInvalid(f"expected a text, not {value!r}")
    return lambda text: compare(text, value)


def _one_of(value: Any) -> Look:
    wanted = frozenset(_texts("text_one_of", value))
    return lambda text: text in wanted


def _glob(value: Any) -> Look:
    if not isinstance(value, str):
        raise FactInvalid(f"expected a glob, not {value!r}")
    try:
        return _pattern(texts.glob_pattern(value), whole=True)
    except ValueError as error:
        raise FactInvalid(str(error)) from None


_TEXTS: Final[Mapping[str, Callable[[Any], str]]] = {
    "json": texts.json_text,
    "float": texts.float_text,
}

_LOOKS: Final[Mapping[str, tuple[Callable[[Any], Look], Mode]]] = {
    "matches": (lambda value: _as_seen(_pattern(value, whole=False)), "warns"),
    "matches_all": (lambda value: _pattern(value, whole=True), "vouches"),
    "host_in": (lambda value: _hosts(value, inside=True), "vouches"),
    "host_not_in": (lambda value: _hosts(value, inside=False), "warns"),
    "path_under": (lambda value: _paths(value, inside=True), "vouches"),
    "path_not_under": (lambda value: _paths(value, inside=False), "warns"),
    "email_domain_in": (lambda value: _mail(value, inside=True), "vouches"),
    "email_domain_not_in": (lambda value: _mail(value, inside=False), "warns"),
    "sql_only": (lambda value: _sql(value, inside=True), "vouches"),
    "sql_other_than": (lambda value: _sql(value, inside=False), "warns"),
    "text_equals": (lambda value: _text(value, str.__eq__), "exact"),
    "text_contains": (lambda value: _text(value, str.__contains__), "exact"),
    "text_one_of": (_one_of, "exact"),
    "text_matches": (lambda value: _pattern(value, whole=False), "exact"),
    "target_glob": (_glob, "target"),
    "target_matches": (lambda value: _pattern(value, whole=True), "target"),
}
"""Key -> what makes the look, and how it settles doubt."""


def _line_of_table(text: str, name: str) -> int | None:
    begins = re.compile(rf"""\s*\[?\s*(["']?){re.escape(name)}\1\s*[].=]""")
    for number, line in enumerate(text.splitlines(), 1):
        if begins.match(line):
            return number
    return None
