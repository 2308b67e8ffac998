"""A verdict told to a person, or to a program."""

from collections.abc import Iterator
from typing import Any, assert_never

from proctor_policy.gates import ApprovalGate, RateGate, ShadowGate
from proctor_policy.ruleset import Explanation, Opinion
from proctor_policy.verdict import Decision


def as_lines(explanation: Explanation) -> Iterator[str]:
    """Yield the explanation as lines of text."""
    verdict = explanation.verdict
    yield f"{verdict.decision}: {verdict.reason}" if verdict.reason else str(verdict.decision)
    yield f"decided by: {', '.join(verdict.rule_ids)}"
    for line in lifting(explanation):
        yield f"to lift it: {line}"
    if explanation.opinions:
        yield ""
        yield "rules in whose scope the call lies:"
    for opinion in explanation.opinions:
        policy = opinion.policy
        place = f"{policy.file}:{policy.line}" if policy.path else policy.file
        yield f"  {_word(opinion):<15} {policy.effect} {policy.id}  ({place})"
        if opinion.failure is not None:
            yield f"  {'':<15} {opinion.failure}"
    yield ""
    yield f"rule set {verdict.ruleset}"


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON values."""
    verdict = explanation.verdict
    return {
        "decision": str(verdict.decision),
        "reason": verdict.reason,
        "rule_ids": list(verdict.rule_ids),
        "shadow": list(verdict.shadow),
        "errors": list(verdict.errors),
        "ruleset": verdict.ruleset,
        "to_lift": list(lifting(explanation)),
        "rules": [
            {
                "id": opinion.policy.id,
                "effect": opinion.policy.effect,
                "file": opinion.policy.file,
                "line": opinion.policy.line,
                "applies": opinion.applies,
                "failure": opinion.failure,
            }
            for opinion in explanation.opinions
        ],
    }


def lifting(explanation: Explanation) -> Iterator[str]:
    """Yield what would have to be otherwise for the call to be allowed."""
    verdict = explanation.verdict
    if verdict.decision is Decision.ALLOW:
        for gate in verdict.gates:
            yield _gate(gate)
        return
    failing = [
        opinion
        for opinion in explanation.opinions
        if opinion.policy.effect == "forbid"
        and opinion.failure is not None
        and not isinstance(opinion.policy.gate, ShadowGate)
    ]
    for opinion in failing:
        yield f"give {opinion.policy.id} arguments that it can judge: {opinion.failure}"
    forbidding = [
        opinion.policy
        for opinion in explanation.opinions
        if opinion.applies and opinion.policy.effect == "forbid"
    ]
    for policy in forbidding:
        if policy.gate is None:
            yield f"nothing lifts {policy.id}; its condition must not hold"
    if not any(each.applies and each.policy.effect == "permit" for each in explanation.opinions):
        yield "a permit must apply to the call"
    for policy in forbidding:
        if isinstance(policy.gate, ApprovalGate | RateGate):
            yield _gate(policy.gate)


def _gate(gate: ApprovalGate | RateGate) -> str:
    match gate:
        case ApprovalGate():
            who = ", ".join(gate.approvers) or "whoever may approve"
            many = "" if gate.quorum == 1 else f" ({gate.quorum} people)"
            return f"an approval by {who}{many}, for {gate.rule_id}"
        case RateGate():
            return (
                f"fewer than {gate.limit} such calls in {gate.window_seconds} s per {gate.per}, "
                f"for {gate.rule_id}"
            )
        case _:
            assert_never(gate)


def _word(opinion: Opinion) -> str:
    if opinion.failure is not None:
        return "fails"
    return "applies" if opinion.applies else "does not apply"
