"""Who must agree to a call, who has, and what is still missing. Pure.

An approval is bound to one step, so to its arguments. It holds the gates that the rules closed;
each is lifted when as many of its approvers as it asks for have agreed.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proctor.wire.words import ApprovalStatus
from proctor_kernel.core.identity import Json, quoted


@dataclass(frozen=True, slots=True)
class Gate:
    """Forbidden unless `quorum` of `approvers` agree within `timeout_micros`."""

    rule_id: str
    reason: str
    approvers: tuple[str, ...]
    """Names or groups (`user:` or `group:` before one says which); empty: whoever may approve."""
    quorum: int
    timeout_micros: int
    message: str = ""

    @property
    def asked(self) -> tuple[str, tuple[str, ...], int]:
        """What a grant lifts: this rule, as long as it asks the same people."""
        return (self.rule_id, self.approvers, self.quorum)


@dataclass(frozen=True, slots=True)
class Vote:
    """Somebody agreed."""

    by: str
    groups: tuple[str, ...]
    at: int
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class Approval:
    """One call that waits for people, or did."""

    approval_id: str
    step_id: str
    gates: tuple[Gate, ...]
    expires_at: int
    requested_at: int
    message: str = ""
    status: ApprovalStatus = ApprovalStatus.PENDING
    votes: tuple[Vote, ...] = ()
    decided_by: str = ""
    decided_at: int | None = None
    rationale: str = ""


def may_decide(gate: Gate, by: str, groups: Iterable[str]) -> bool:
    """True when the gate asks this person, by name or by a group."""
    if not gate.approvers:
        return True
    names = {by, f"user:{by}", *groups, *(f"group:{group}" for group in groups)}
    return not names.isdisjoint(gate.approvers)


def agreed(gate: Gate, votes: Iterable[Vote]) -> int:
    """Return how many different people that the gate asks have agreed."""
    return len({vote.by for vote in votes if may_decide(gate, vote.by, vote.groups)})


def closed(gates: Sequence[Gate], votes: Sequence[Vote]) -> tuple[Gate, ...]:
    """Return the gates that these votes do not lift."""
    return tuple(gate for gate in gates if agreed(gate, votes) < gate.quorum)


def gates_to_json(gates: Sequence[Gate]) -> Json:
    """Return gates as events and the read table keep them."""
    return Json("[" + ",".join(map(_gate_to_json, gates)) + "]")


def gates_from_json(text: str) -> tuple[Gate, ...]:
    """Read back what `gates_to_json` wrote; raises ValueError."""
    try:
        return tuple(
            Gate(
                rule_id=each["rule_id"],
                reason=each["reason"],
                approvers=tuple(each["approvers"]),
                quorum=each["quorum"],
                timeout_micros=each["timeout_micros"],
                message=each["message"],
            )
            for each in json.loads(text)
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"not gates: {error}") from error


def votes_to_json(votes: Sequence[Vote]) -> str:
    """Return votes as the read table keeps them."""
    return json.dumps(
        [
            {
                "by": each.by,
                "groups": list(each.groups),
                "at": each.at,
                "rationale": each.rationale,
            }
            for each in votes
        ]
    )


def _gate_to_json(gate: Gate) -> str:
    approvers = ",".join(map(quoted, gate.approvers))
    return (
        f'{{"rule_id":{quoted(gate.rule_id)},"reason":{quoted(gate.reason)},'
        f'"approvers":[{approvers}],"quorum":{gate.quorum},'
        f'"timeout_micros":{gate.timeout_micros},"message":{quoted(gate.message)}}}'
    )
