"""What rules over the API would say: of cases, and of calls that were recorded (protocol 1.4).

Each call is judged by itself, beside the files that are in force: what a session had done before is
not known here. Rules that look back are tested with `proctor policy test`.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from proctor.wire.json_text import parsed
from proctor.wire.words import Idempotency, StepKind
from proctor_kernel import views
from proctor_kernel.bundles import compiled
from proctor_kernel.store.database import Row
from proctor_kernel.views import View
from proctor_policy.call import Call, Session
from proctor_policy.ruleset import RuleSet
from proctor_policy.verdict import together

EXECUTIONS_MAX: Final = 1000
EXECUTIONS_DEFAULT: Final = 100


@dataclass(frozen=True, slots=True)
class Case:
    """A call, and what is expected of it."""

    agent_id: str
    kind: str
    target: str
    args_json: str
    name: str = ""
    expect: str | None = None
    expect_rule: str | None = None
    execution_id: str | None = None
    step_id: str | None = None
    was_rule: str | None = None


@dataclass(slots=True)
class Report:
    """What became of all cases."""

    results: list[View] = field(default_factory=list)
    failed: int = 0
    unexercised: list[str] = field(default_factory=list)

    def view(self) -> View:
        """Return it as the protocol shows it."""
        shown: View = {"results": self.results, "failed": self.failed}
        if self.unexercised:
            shown["unexercised_rules"] = self.unexercised
        return shown


def of_step(row: Row, agent_id: str) -> Case:
    """Return a recorded call as a case: what was decided of it is what is expected."""
    return Case(
        agent_id,
        row["kind"],
        row["target"],
        row["args"],
        expect=row["decision"],
        execution_id=row["execution_id"],
        step_id=row["step_id"],
        was_rule=next(iter(parsed(row["rule_ids"])), None),
    )


def rehearsed(bundle: str, files: RuleSet, cases: list[Case], now_micros: int) -> Report:
    """Return what the files and a bundle together say of each case; raises `BundleRefused`."""
    rules = compiled(bundle, files)
    report = Report()
    exercised: set[str] = set()
    for case in cases:
        call = Call(
            principal=case.agent_id,
            kind=case.kind,
            target=case.target,
            args_json=case.args_json,
            idempotency=Idempotency.SAFE_TO_RETRY,
            session=Session(),
            now_micros=now_micros,
        )
        own = rules.decide(call)
        exercised.update(own.rule_ids)
        verdict = together(files.decide(call), own)
        rule_id = verdict.rule_ids[0] if verdict.rule_ids else None
        failure = _failure(case, str(verdict.decision), verdict.rule_ids)
        report.failed += failure is not None
        report.results.append(
            _result(case, str(verdict.decision), rule_id, verdict.reason, failure)
        )
    report.unexercised = sorted({policy.id for policy in rules.policies} - exercised)
    return report


def _failure(case: Case, decision: str, rule_ids: tuple[str, ...]) -> str | None:
    if case.expect is not None and case.expect != decision:
        return f"expected {case.expect}, got {decision}"
    if case.expect_rule is not None and case.expect_rule not in rule_ids:
        return f"expected rule {case.expect_rule}, got {', '.join(rule_ids)}"
    return None


def _result(
    case: Case, decision: str, rule_id: str | None, reason: str, failure: str | None
) -> View:
    given: dict[str, Any] = {
        "name": case.name or None,
        "agent_id": case.agent_id,
        "kind": case.kind,
        "target": case.target,
        "args": views.Raw(case.args_json),
        "expect": case.expect,
        "expect_rule": case.expect_rule,
        "execution_id": case.execution_id,
        "step_id": case.step_id,
        "was_rule": case.was_rule,
        "decision": decision,
        "rule_id": rule_id,
        "reason": reason or None,
        "pass": failure is None,
        "failure": failure,
    }
    return {name: value for name, value in given.items() if value is not None}


KINDS: Final = frozenset(str(kind) for kind in StepKind)
