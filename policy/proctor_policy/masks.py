"""Masks: what must not leave with the audit trail. `redact.toml` names it by path:

    [[mask]]
    tools = ["send_money", "crm_*"]       # left out: every tool, model and local step
    args = ["recipient.iban", "cards.number"]
    result = ["*"]
    how = "drop"                          # or "hash", which is the default

    [[mask]]
    agents = ["support"]                  # left out: every agent
    input = ["customer.email"]            # of the run; `output` and `state` likewise

A path names members by dots; a list stands for each of its elements, and `*` for whatever is there.
`error` has the paths of a failed step's error. A hash is keyed, so that equal values can be told to
be equal by whoever reads the trail, and not be guessed.
"""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, get_args

from proctor_policy.problem import Problem, line_of_error

How = Literal["hash", "drop"]

Part = Literal["args", "result", "error", "input", "output", "state"]
"""The values of a call, and of a run, that a mask can be about."""

ANYTHING: Final = "*"
DROPPED: Final = object()
"""What `apply` is given for a value that leaves nothing behind."""

_OF_CALLS: Final = frozenset({"args", "result", "error"})
_PARTS: Final = get_args(Part)

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mask:
    """What is masked of the calls of some tools, or of the runs of some agents."""

    names: tuple[str, ...]
    """Names or globs of tools, or of agents for a mask of runs; empty: all."""
    paths: dict[Part, tuple[Path, ...]] = field(hash=False)
    how: How = "hash"

    def is_about(self, name: str) -> bool:
        """True when the mask covers this tool, or this agent."""
        return not self.names or any(fnmatchcase(name, glob) for glob in self.names)


@dataclass(frozen=True, slots=True)
class Masks:
    """All masks of a rules folder, in the order of the file."""

    masks: tuple[Mask, ...] = ()

    def of(self, part: Part, name: str) -> tuple[tuple[Path, How], ...]:
        """Return what to mask in one value: of a call, by tool; of a run, by agent."""
        return tuple(
            (path, mask.how)
            for mask in self.masks
            if part in mask.paths and mask.is_about(name)
            for path in mask.paths[part]
        )


def apply(value: Any, path: Path, replace: Callable[[Any], Any]) -> Any:
    """Return `value` with what `path` names replaced; `replace` may return `DROPPED`."""
    if not path:
        return replace(value)
    head, *rest = path
    if isinstance(value, dict):
        return {
            key: left
            for key, item in value.items()
            if (left := apply(item, tuple(rest), replace) if head in (key, ANYTHING) else item)
            is not DROPPED
        }
    if isinstance(value, list):
        # A place in a list is kept, so that the others keep theirs.
        found = (apply(item, path, replace) for item in value)
        return [None if left is DROPPED else left for left in found]
    return replace(value) if path == (ANYTHING,) else value


def read(file: str, text: str, problems: list[Problem]) -> Masks:
    """Read the text of a `redact.toml`; what is wrong goes to `problems`."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(file, line_of_error(error, text), f"not TOML: {error}"))
        return Masks()
    lines = [
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.replace(" ", "").startswith("[[mask]]")
    ]
    problems += [
        Problem(file, None, f"unknown table {key!r}", "write [[mask]]")
        for key in document
        if key != "mask"
    ]
    tables = document.get("mask", [])
    if not isinstance(tables, list):
        problems.append(Problem(file, None, "mask is one table", "write [[mask]], not [mask]"))
        return Masks()
    found = []
    for index, table in enumerate(tables):
        try:
            found.append(_mask(table))
        except _Invalid as error:
            line = lines[index] if index < len(lines) else None
            problems.append(Problem(file, line, str(error), error.hint))
    return Masks(tuple(found))


class _Invalid(Exception):
    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def _mask(table: dict[str, Any]) -> Mask:
    known = ("tools", "agents", "how", *_PARTS)
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
            raise _Invalid(f"unknown key {key!r}", hint)
    paths: dict[Part, tuple[Path, ...]] = {
        part: tuple(map(_path, _texts(table, part))) for part in _PARTS if part in table
    }
    if not paths:
        raise _Invalid("it masks nothing", f"name paths in one of: {', '.join(_PARTS)}")
    of_calls = not _OF_CALLS.isdisjoint(paths)
    if of_calls and not _OF_CALLS.issuperset(paths):
        raise _Invalid("it is about calls and about runs", "write two masks")
    if of_calls and "agents" in table:
        raise _Invalid("calls are masked by tool, not by agent", "write tools = [...]")
    if not of_calls and "tools" in table:
        raise _Invalid("runs are masked by agent, not by tool", "write agents = [...]")
    how = table.get("how", "hash")
    if how not in get_args(How):
        raise _Invalid(f"how is {how!r}", "write 'hash' or 'drop'")
    names = tuple(_texts(table, "tools" if of_calls else "agents"))
    return Mask(names, paths, how)


def _texts(table: dict[str, Any], key: str) -> Iterable[str]:
    given = table.get(key, [])
    if not isinstance(given, list) or not all(isinstance(each, str) and each for each in given):
        raise _Invalid(f"{key} must be a list of texts", f'write {key} = ["..."]')
    if key in table and not given:
        raise _Invalid(f"{key} is empty, which would mask nothing", "leave it out for all")
    return given


def _path(text: str) -> Path:
    parts = tuple(text.split("."))
    if not all(parts):
        raise _Invalid(f"{text!r} is no path", "write names by dots, as 'recipient.iban', or '*'")
    return parts
