"""A call, and what Cedar is asked about it.

    principal  Agent::"<agent id>"
    action     Action::"<tool>" | Action::"llm_call" | Action::"local"
    resource   Tool::"<tool>" | Model::"<model>" | Local::"<step name>"
    context    { input, session, facts, origins?, idempotency, time, user? }

Entity ids are data, never text that is parsed: a tool may be called anything, and is only ever
that. A name that a person could mistake for another is denied.
"""

import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from proctor_policy import values
from proctor_policy.origins import OriginIndex
from proctor_policy.policy import Uid

NAME_CHARACTERS_MAX: Final = 256
"""Characters of a tool's, model's or step's name, or of an agent's id."""

TOOL_CALL: Final[Uid] = ("Action", "tool_call")
"""The group that every tool's action is in."""

_ACTIONS: Final = {"llm_call": ("Action", "llm_call"), "local": ("Action", "local")}
_RESOURCES: Final = {"tool_call": "Tool", "llm_call": "Model", "local": "Local"}
_RESERVED_TOOLS: Final = frozenset({"tool_call", *_ACTIONS})

# Cc control, Cf format (bidirectional marks, zero width), Cs surrogates, Co private, Cn
# unassigned, Zl and Zp line breaks.
_REFUSED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_REPLACEMENT: Final = "\ufffd"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Session:
    """What the run has done so far, before this call."""

    tools: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    steps: int = 0
    tool_calls: int = 0
    llm_calls: int = 0
    denials: int = 0
    tokens: int = 0
    elapsed_seconds: int = 0
    calls: int = 0
    """Earlier calls of this very target."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that asks whether it may run."""

    principal: str
    kind: str
    """`tool_call`, `llm_call` or `local`."""
    target: str
    args_json: str
    idempotency: str
    session: Session
    now_micros: int
    """Microseconds since 1970, UTC."""
    user: str | None = None
    origins: Callable[[], OriginIndex] | None = None
    """What the run has been given and has read. Called only when a rule asks for origins."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Who does what to what: all that a policy's scope can see of a call."""

    principal: Uid
    action: Uid
    resource: Uid


class CallRefused(Exception):
    """A call that no rule is asked about; the message is the reason of its denial."""


def subject_of(call: Call) -> Subject:
    """Return the entities of a call; raises `CallRefused` for a name that could deceive."""
    resource_type = _RESOURCES.get(call.kind)
    if resource_type is None:
        raise CallRefused(f"a call of unknown kind {call.kind!r}")
    _check_name("agent id", call.principal)
    _check_name("name", call.target)
    if call.kind == "tool_call" and call.target in _RESERVED_TOOLS:
        raise CallRefused(f"the name {call.target!r} is taken: it is an action of its own")
    return Subject(
        principal=("Agent", call.principal),
        action=_ACTIONS.get(call.kind, ("Action", call.target)),
        resource=(resource_type, call.target),
    )


def given_to(call: Call) -> Any:
    """Return the arguments of a call with their numbers exact (`values.parse`).

    Raises:
        values.ValueRefused: the arguments cannot be judged.
    """
    return values.parse(call.args_json, f"the arguments of {call.target}")


def as_record(given: Any) -> dict[str, Any]:
    """Return arguments as rules see them: what is not an object is `{"value": ...}`.

    A rule that names an argument then fails to evaluate, and denies.
    """
    return given if isinstance(given, dict) else {"value": given}


def context_of(call: Call, args: dict[str, Any], facts: Iterable[str]) -> dict[str, Any]:
    """Return the context of a call in cedarpy's JSON form.

    Raises:
        values.ValueRefused: the arguments cannot be judged.
    """
    context = {
        "input": values.to_cedar(args, f"the arguments of {call.target}"),
        "facts": list(facts),
        "session": _session(call.session),
        "idempotency": call.idempotency,
        "time": _time(call.now_micros),
    }
    if call.user is not None:
        context["user"] = {"__entity": {"type": "User", "id": call.user}}
    return context


def _session(session: Session) -> dict[str, Any]:
    return {
        "tools": sorted(session.tools),
        "labels": sorted(session.labels),
        "steps": session.steps,
        "tool_calls": session.tool_calls,
        "llm_calls": session.llm_calls,
        "denials": session.denials,
        "tokens": session.tokens,
        "elapsed_seconds": session.elapsed_seconds,
        "calls": session.calls,
    }


def _time(now_micros: int) -> dict[str, Any]:
    """Return hour (0 to 23), weekday (1 is Monday, 7 Sunday) and the moment itself, in UTC."""
    now = _EPOCH + timedelta(microseconds=now_micros)
    # Cedar takes milliseconds and a literal Z; an offset with a colon is an error to it.
    text = now.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
    return {
        "hour": now.hour,
        "weekday": now.isoweekday(),
        "now": {"__extn": {"fn": "datetime", "arg": text}},
    }


def _check_name(what: str, name: str) -> None:
    if not name:
        raise CallRefused(f"an empty {what}")
    if len(name) > NAME_CHARACTERS_MAX:
        raise CallRefused(f"a {what} of {len(name)} characters; {NAME_CHARACTERS_MAX} are allowed")
    if name.isascii() and name.isprintable():
        return
    if any(
        unicodedata.category(character) in _REFUSED_CATEGORIES or character == _REPLACEMENT
        for character in name
    ):
        raise CallRefused(f"the {what} {name!a} has invisible or undefined characters")
    if unicodedata.normalize("NFKC", name) != name:
        raise CallRefused(f"the {what} {name!a} has look-alike characters (it is not NFKC)")
