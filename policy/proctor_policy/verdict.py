"""How a verdict is reached from what matched. Pure.

1. A forbid in whose scope the call lies and that fails to evaluate denies: Cedar skips it, which
   opens the door, and whoever picks the arguments picks the failure. A permit that fails does
   not permit, and a shadow rule that fails is only recorded.
2. A forbid that matches denies, with its reason; several are joined in the order of their ids.
3. No permit matches: denied, `no rule permits <target>`.
4. An approval gate that matches: `require_approval`; several: all of them.
5. A rate gate that matches is handed to the caller, who keeps the buckets.
6. Otherwise allowed, with the ids of the permits that decided.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from proctor_policy.gates import ApprovalGate, RateGate, ShadowGate
from proctor_policy.policy import Policy

NO_PERMIT: Final = "default"
LOCAL: Final = "local"
NO_RULES: Final = "no-rules"
INVALID_CALL: Final = "invalid-call"
ENGINE_ERROR: Final = "engine-error"

BUILT_IN_IDS: Final = frozenset({NO_PERMIT, LOCAL, NO_RULES, INVALID_CALL, ENGINE_ERROR})
"""Rule ids that decisions carry without a policy in a file."""


class Decision(StrEnum):
    """What the rules say of a call."""

    ALLOW = "allow"
    DENY = "deny"
    REQUIRE_APPROVAL = "require_approval"
    RATE_LIMITED = "rate_limited"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say of one call, and why."""

    decision: Decision
    reason: str
    """What the model and the operator are told; may be empty when allowed."""
    rule_ids: tuple[str, ...]
    """The rules that decided, sorted."""
    ruleset: str
    """Hash of the rule files that decided."""
    errors: tuple[str, ...] = ()
    """Rules that could not be evaluated, and why; sorted."""
    gates: tuple[ApprovalGate | RateGate, ...] = ()
    """What must be lifted before the call may run, sorted by rule id. A rate gate on an allowed
    call: allowed if its bucket has room."""
    shadow: tuple[str, ...] = ()
    """Rules on trial that would have forbidden it, sorted."""
    labels: tuple[str, ...] = ()
    """What the call leaves on the session when it starts, sorted."""
    policy_micros: int = 0


@dataclass(frozen=True, slots=True)
class Matches:
    """What became of the policies in whose scope a call lies."""

    satisfied: Collection[Policy]
    """Policies that apply. When a forbid without a gate does, permits may be missing."""
    failed: Mapping[Policy, str]
    """Policies that could not be evaluated -> why."""


def combine(matches: Matches, *, target: str, ruleset: str) -> Verdict:
    """Return the verdict on a call of `target`."""
    errors = tuple(sorted(f"{policy.id}: {why}" for policy, why in matches.failed.items()))
    forbids = _by_id(policy for policy in matches.satisfied if policy.effect == "forbid")
    shadow = tuple(policy.id for policy in forbids if isinstance(policy.gate, ShadowGate))
    gates = tuple(
        policy.gate for policy in forbids if isinstance(policy.gate, ApprovalGate | RateGate)
    )

    def verdict(
        decision: Decision,
        reason: str,
        rule_ids: Iterable[str],
        *needed: ApprovalGate | RateGate,
    ) -> Verdict:
        ids = tuple(sorted(rule_ids))
        return Verdict(decision, reason, ids, ruleset, errors, needed, shadow)

    broken = _by_id(
        policy
        for policy in matches.failed
        if policy.effect == "forbid" and not isinstance(policy.gate, ShadowGate)
    )
    if broken:
        reason = "; ".join(
            f"rule {policy.id} could not be evaluated: {matches.failed[policy]}"
            for policy in broken
        )
        return verdict(Decision.DENY, reason, [policy.id for policy in broken])
    forbidding = [policy for policy in forbids if policy.gate is None]
    if forbidding:
        reason = _joined(policy.reason for policy in forbidding)
        return verdict(Decision.DENY, reason, [policy.id for policy in forbidding])
    permitting = _by_id(policy for policy in matches.satisfied if policy.effect == "permit")
    if not permitting:
        return verdict(Decision.DENY, f"no rule permits {target}", [NO_PERMIT])
    approvals = [gate for gate in gates if isinstance(gate, ApprovalGate)]
    if approvals:
        reason = _joined(gate.reason for gate in approvals)
        ids = [gate.rule_id for gate in approvals]
        return verdict(Decision.REQUIRE_APPROVAL, reason, ids, *gates)
    reason = _joined(policy.annotations.get("reason", "") for policy in permitting)
    return verdict(Decision.ALLOW, reason, [policy.id for policy in permitting], *gates)


_SEVERITY: Final = (
    Decision.ALLOW,
    Decision.RATE_LIMITED,
    Decision.REQUIRE_APPROVAL,
    Decision.DENY,
)


def together(first: Verdict, second: Verdict) -> Verdict:
    """Return the verdict when two rule sets must both allow a call.

    The stricter decision stands, with the reasons of whoever takes it; gates add up.
    """
    decision = max(first.decision, second.decision, key=_SEVERITY.index)
    deciding = [each for each in (first, second) if each.decision is decision]
    return Verdict(
        decision,
        _joined(each.reason for each in deciding),
        tuple(sorted({rule_id for each in deciding for rule_id in each.rule_ids})),
        f"{first.ruleset}+{second.ruleset}",
        tuple(sorted((*first.errors, *second.errors))),
        tuple(sorted((*first.gates, *second.gates), key=lambda gate: gate.rule_id)),
        tuple(sorted((*first.shadow, *second.shadow))),
        tuple(sorted({*first.labels, *second.labels})),
        first.policy_micros + second.policy_micros,
    )


def _joined(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def _by_id(policies: Iterable[Policy]) -> list[Policy]:
    return sorted(policies, key=lambda policy: policy.id)
