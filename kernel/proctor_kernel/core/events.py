"""Everything that can happen to a run: a closed union of frozen dataclasses.

An event's name is `TYPES`' key (protocol 4.2; `dispatch.claimed` is ours: it numbers the
attempts). Its JSON is derived from its fields: unset ones are left out, and user values
(`Json`) are embedded as the text they are, so that what is hashed is what was received.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from json.decoder import JSONDecoder, scanstring  # type: ignore[attr-defined]  # not in typeshed
from types import MappingProxyType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from proctor.wire.words import Decision, Idempotency, Reason, StepKind
from proctor_kernel.core.identity import Json, quoted


@dataclass(frozen=True, slots=True)
class ExecutionCreated:
    """A client asked for a run."""

    agent_id: str
    input: Json


@dataclass(frozen=True, slots=True)
class ExecutionStarted:
    """The run may be delivered to its agent."""


@dataclass(frozen=True, slots=True)
class ExecutionCompleted:
    """The handler returned `output`. `passed_over`: recorded steps that it did not propose."""

    output: Json
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionFailed:
    """The handler raised, or could not be reached (protocol 10.3)."""

    reason: str
    passed_over: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecutionCancelled:
    """Somebody or something ended the run."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class DispatchQueued:
    """A delivery to the agent is due."""

    dispatch_id: str


@dataclass(frozen=True, slots=True)
class DispatchClaimed:
    """An attempt to deliver began; every earlier attempt of the run has lost its lease."""

    dispatch_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StepProposed:
    """An agent asked whether a call may run."""

    step_id: str
    kind: StepKind
    target: str
    args: Json
    args_hash: str
    occurrence: int
    idempotency: Idempotency
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class StepAllowed:
    """The policies allow the call."""

    step_id: str
    decision: Decision
    reason: str
    rule_ids: tuple[str, ...]
    ruleset: str
    policy_micros: int
    errors: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()
    """Rules on trial that would have forbidden it."""


@dataclass(frozen=True, slots=True)
class StepDenied:
    """The call may not run. `ruleset` is empty when no rule was asked."""

    step_id: str
    decision: Decision
    reason: str
    rule_ids: tuple[str, ...]
    ruleset: str
    policy_micros: int
    errors: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()
    """Rules on trial that would have forbidden it."""


@dataclass(frozen=True, slots=True)
class StepRateLimited:
    """A limit was used up, so the call became no step: proposed again, it is asked again."""

    kind: StepKind
    target: str
    args: Json
    args_hash: str
    reason: str
    rule_ids: tuple[str, ...]
    ruleset: str
    policy_micros: int
    errors: tuple[str, ...] = ()
    shadow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepExecuting:
    """The body was told to run; again, when an earlier attempt left it without an outcome.

    `labels` go on the session from this moment.
    """

    step_id: str
    labels: tuple[str, ...] = ()
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class StepSucceeded:
    """The body returned `result`."""

    step_id: str
    result: Json


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The body raised, or its outcome is unknown and it may not run again."""

    step_id: str
    error: Json


@dataclass(frozen=True, slots=True)
class StepCancelled:
    """The run ended while the body was under way."""

    step_id: str
    error: Json


StepEvent = (
    StepProposed
    | StepAllowed
    | StepDenied
    | StepExecuting
    | StepSucceeded
    | StepFailed
    | StepCancelled
)
ExecutionEvent = (
    ExecutionCreated | ExecutionStarted | ExecutionCompleted | ExecutionFailed | ExecutionCancelled
)
DispatchEvent = DispatchQueued | DispatchClaimed
Event = ExecutionEvent | DispatchEvent | StepEvent | StepRateLimited

TYPES: Final[Mapping[str, type[Event]]] = MappingProxyType(
    {
        "execution.created": ExecutionCreated,
        "execution.started": ExecutionStarted,
        "execution.completed": ExecutionCompleted,
        "execution.failed": ExecutionFailed,
        "execution.cancelled": ExecutionCancelled,
        "dispatch.queued": DispatchQueued,
        "dispatch.claimed": DispatchClaimed,
        "step.proposed": StepProposed,
        "step.allowed": StepAllowed,
        "step.denied": StepDenied,
        "step.rate_limited": StepRateLimited,
        "step.executing": StepExecuting,
        "step.succeeded": StepSucceeded,
        "step.failed": StepFailed,
        "step.cancelled": StepCancelled,
    }
)
_NAMES: Final = {cls: name for name, cls in TYPES.items()}


def name(event: Event) -> str:
    """Return the event's type as the log and the wire spell it."""
    return _NAMES[type(event)]


def to_json(event: Event) -> str:
    """Return the payload of `event`: one JSON object, fields in order, unset ones left out."""
    members = []
    for key, codec in _CODECS[type(event)]:
        value = getattr(event, key)
        if value is not None:
            members.append(f'"{key}":{codec.write(value)}')
    return "{" + ",".join(members) + "}"


def from_json(type_name: str, payload: str) -> Event:
    """Read back what `to_json` wrote.

    Raises:
        ValueError: an unknown type, or a payload that is not of this type's form.
    """
    cls = TYPES.get(type_name)
    if cls is None:
        raise ValueError(f"unknown event type {type_name!r}")
    raw = _members(payload)
    try:
        known = {key: codec.read(raw.pop(key)) for key, codec in _CODECS[cls] if key in raw}
        if raw:
            raise ValueError(f"{type_name} has no field {next(iter(raw))!r}")
        return cls(**known)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not a payload of {type_name}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Codec:
    write: Callable[[Any], str]
    read: Callable[[str], Any]


def _embedded(text: str) -> Json:
    return Json(text)


_JSON: Final = _Codec(write=str, read=_embedded)
_STR: Final = _Codec(write=quoted, read=json.loads)
_INT: Final = _Codec(write=str, read=json.loads)
_STRS: Final = _Codec(
    write=lambda items: "[" + ",".join(map(quoted, items)) + "]",
    read=lambda text: tuple(json.loads(text)),
)


def _codec(hint: Any) -> _Codec:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (arg for arg in get_args(hint) if arg is not type(None))
    if hint is Json:
        return _JSON
    if hint is int:
        return _INT
    if hint == tuple[str, ...]:
        return _STRS
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return _Codec(write=quoted, read=lambda text: hint(json.loads(text)))
    assert hint is str, hint
    return _STR


_CODECS: Final = {
    cls: tuple((field.name, _codec(get_type_hints(cls)[field.name])) for field in fields(cls))
    for cls in TYPES.values()
}

_scan_value: Final = JSONDecoder(parse_int=str, parse_float=str).raw_decode


def _members(payload: str) -> dict[str, str]:
    """Split one flat JSON object, written without white space, into key -> raw value text."""
    members: dict[str, str] = {}
    at = 1
    if payload[:1] != "{" or payload[-1:] != "}":
        raise ValueError("a payload is a JSON object")
    while payload[at : at + 1] != "}":
        if payload[at : at + 1] != '"':
            raise ValueError(f"expected a key at character {at}")
        key, at = scanstring(payload, at + 1)
        if payload[at : at + 1] != ":":
            raise ValueError(f"expected ':' at character {at}")
        _, end = _scan_value(payload, at + 1)
        members[key] = payload[at + 1 : end]
        at = end + 1 if payload[end : end + 1] == "," else end
    if at != len(payload) - 1:
        raise ValueError(f"unexpected text at character {at}")
    return members
