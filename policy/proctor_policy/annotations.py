"""The annotations that a policy may carry: a closed table, so that a misspelt one is found."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from proctor_policy.policy import Policy
from proctor_policy.problem import Problem
from proctor_policy.verdict import BUILT_IN_IDS

KNOWN: Final = {
    "id": "what decisions call the policy; required, and unique in the rule set",
    "reason": "what the model and the operator are told",
}

_RESERVED_PREFIX: Final = "__"


def check(policy: Policy) -> Iterator[Problem]:
    """Yield what is wrong with the annotations of one policy."""

    def problem(message: str, hint: str | None = None) -> Problem:
        return Problem(policy.file, policy.line, message, hint)

    for name in policy.annotations:
        if name not in KNOWN:
            near = get_close_matches(name, KNOWN, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(KNOWN)}"
            yield problem(f"unknown annotation {name!r}", hint)
    rule_id = policy.annotations.get("id", "")
    if not rule_id:
        yield problem("a policy without an id", 'put @id("a-name-of-its-own") before it')
    elif rule_id in BUILT_IN_IDS or rule_id.startswith(_RESERVED_PREFIX):
        yield problem(f"the id {rule_id!r} is taken by a built-in rule", "choose another one")
    if "reason" in policy.annotations and not policy.annotations["reason"]:
        yield problem("an empty reason", "say why, or leave the annotation out")
