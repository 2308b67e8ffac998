"""Two rule sets on the same calls: which verdicts change, and those that open first."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from proctor_policy.cases import Case, run
from proctor_policy.ruleset import RuleSet
from proctor_policy.verdict import Decision, Verdict


@dataclass(frozen=True, slots=True)
class Change:
    """One call on which two rule sets do not agree."""

    where: str
    target: str
    before: Verdict
    after: Verdict

    @property
    def opens(self) -> bool:
        """True when the call was held back and is not any more."""
        return self.after.decision is Decision.ALLOW and self.before.decision is not Decision.ALLOW


def changes(before: RuleSet, after: RuleSet, cases: Iterable[Case]) -> list[Change]:
    """Return the calls of `cases` whose verdicts differ, those that open first."""
    listed = list(cases)
    found = [
        Change(f"{case.file}:{play.line}", play.call.target, old, new)
        for case, was, now in zip(listed, run(before, listed), run(after, listed), strict=True)
        for play, old, new in zip(case.plays, was.verdicts, now.verdicts, strict=True)
        if _said(old) != _said(new)
    ]
    return sorted(found, key=lambda change: not change.opens)


def _said(verdict: Verdict) -> Verdict:
    """Return a verdict without what differs from set to set and from run to run."""
    return replace(verdict, ruleset="", policy_micros=0)
