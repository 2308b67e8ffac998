"""The annotations that a policy may carry: a closed table, so that a misspelt one is found."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, get_args

from proctor_policy.gates import (
    ApprovalGate,
    Gate,
    Per,
    RateGate,
    ShadowGate,
    duration_seconds,
    limit_of,
)
from proctor_policy.policy import Policy
from proctor_policy.problem import Problem
from proctor_policy.verdict import BUILT_IN_IDS

_RESERVED_PREFIX: Final = "__"

QUORUM_MAX: Final = 100
"""People that one approval may ask for."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One row of the table."""

    meaning: str
    gate: str | None = None
    """The gate that it belongs to; None: it goes with any policy."""
    required: bool = False
    """Required by its gate."""


KNOWN: Final[Mapping[str, Annotation]] = MappingProxyType(
    {
        "id": Annotation("what decisions call the policy; unique in the rule set", required=True),
        "reason": Annotation("what the model and the operator are told"),
        "gate": Annotation("what lifts the forbid: approval, rate_limit or shadow"),
        "approvers": Annotation("names or groups, separated by commas", "approval"),
        "quorum": Annotation("how many must grant it; 1 by default", "approval"),
        "timeout": Annotation("how long to wait, as 30m", "approval"),
        "message": Annotation("what an approver is shown", "approval"),
        "limit": Annotation("so many calls within so long, as 5/1m", "rate_limit", required=True),
        "per": Annotation("what the limit counts for: execution, agent or global", "rate_limit"),
        "wait": Annotation("how long a run may be put off until there is room", "rate_limit"),
    }
)


def check(policy: Policy) -> Iterator[Problem]:
    """Yield what is wrong with the annotations of one policy."""

    def problem(message: str, hint: str | None = None) -> Problem:
        return Problem(policy.file, policy.line, message, hint)

    for name, value in policy.annotations.items():
        if name not in KNOWN:
            yield problem(f"unknown annotation {name!r}", _nearest(name, KNOWN))
        elif not value and name != "id":
            yield problem(f"annotation {name!r} says nothing", "give it a value or leave it out")
    rule_id = policy.annotations.get("id", "")
    if not rule_id:
        yield problem("a policy without an id", 'put @id("a-name-of-its-own") before it')
    elif rule_id in BUILT_IN_IDS or rule_id.startswith(_RESERVED_PREFIX):
        yield problem(f"the id {rule_id!r} is taken by a built-in rule", "choose another one")
    try:
        gate_of(policy)
    except GateInvalid as error:
        yield problem(str(error), error.hint)


class GateInvalid(Exception):
    """A gate that is not one; the message says why, `hint` what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def gate_of(policy: Policy) -> Gate | None:
    """Return the gate of a policy, or None when nothing lifts it.

    Raises:
        GateInvalid: an unknown gate, one on a permit, or annotations that do not fit it.
    """
    given = policy.annotations
    name = given.get("gate")
    for each in given:
        belongs_to = KNOWN[each].gate if each in KNOWN else None
        if belongs_to is not None and belongs_to != name:
            raise GateInvalid(
                f"annotation {each!r} goes with a gate that the policy does not have",
                f'put @gate("{belongs_to}") beside it',
            )
    if name is None:
        return None
    if name not in _MAKERS:
        raise GateInvalid(f"unknown gate {name!r}", _nearest(name, _MAKERS))
    if policy.effect == "permit":
        raise GateInvalid(
            "a gate on a permit: a gate is a forbid that something lifts",
            "write the permit, and beside it a forbid with the gate",
        )
    for each, annotation in KNOWN.items():
        if annotation.required and annotation.gate == name and each not in given:
            raise GateInvalid(f"gate {name!r} needs @{each}: {annotation.meaning}")
    try:
        return _MAKERS[name](policy)
    except ValueError as error:
        raise GateInvalid(str(error)) from None


def _approval(policy: Policy) -> ApprovalGate:
    given = policy.annotations
    approvers = [name.strip() for name in given.get("approvers", "").split(",") if name.strip()]
    quorum = given.get("quorum", "1")
    if not quorum.isascii() or not quorum.isdecimal() or not 1 <= int(quorum) <= QUORUM_MAX:
        raise ValueError(f"quorum must be a number from 1 to {QUORUM_MAX}, not {quorum!r}")
    timeout = given.get("timeout")
    return ApprovalGate(
        rule_id=policy.id,
        reason=policy.reason,
        approvers=tuple(dict.fromkeys(approvers)),
        quorum=int(quorum),
        timeout_seconds=None if timeout is None else duration_seconds(timeout),
        message=given.get("message", ""),
    )


def _rate_limit(policy: Policy) -> RateGate:
    limit, window_seconds = limit_of(policy.annotations["limit"])
    per = policy.annotations.get("per", "execution")
    if per not in get_args(Per):
        raise ValueError(f"per must be execution, agent or global, not {per!r}")
    wait = policy.annotations.get("wait")
    return RateGate(
        policy.id,
        policy.reason,
        limit,
        window_seconds,
        per,  # type: ignore[arg-type]  # checked above
        wait_seconds=0 if wait is None else duration_seconds(wait),
    )


def _shadow(_: Policy) -> ShadowGate:
    return ShadowGate()


_MAKERS: Final[Mapping[str, Callable[[Policy], Gate]]] = MappingProxyType(
    {"approval": _approval, "rate_limit": _rate_limit, "shadow": _shadow}
)


def _nearest(word: str, known: Mapping[str, object]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
