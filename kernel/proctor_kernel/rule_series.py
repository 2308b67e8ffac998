"""Which rules have a series of their own: those in force, and no more than there is room for."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import Counter

from proctor.wire.words import Decision
from proctor_kernel.metrics import RULE_DECISIONS, SHADOW_HITS
from proctor_policy.verdict import BUILT_IN_IDS

RULES_MAX: Final = 1000
"""Rules of one set that are counted apart; the rest are counted together."""

OTHER: Final = "(other)"
"""The label of rules without a series: past the bound, or that came with an agent over HTTP."""

_CREATED_MAX: Final = 4 * RULES_MAX
_LABELLED: Final = frozenset({RULE_DECISIONS._name, SHADOW_HITS._name})


class RuleSeries:
    """The series of rules. Rule ids come from files that an operator wrote, never from a call."""

    def __init__(self) -> None:
        self._shown = frozenset(BUILT_IN_IDS | {OTHER})
        self._created = set(self._shown)
        self._decided: dict[tuple[str, Decision], Counter] = {}
        self._shadow: dict[str, Counter] = {}

    def in_force(self, rule_ids: Iterable[str]) -> None:
        """Take the ids of the rules in force; series of rules that are gone are not shown."""
        shown = frozenset(sorted(rule_ids)[:RULES_MAX]) | BUILT_IN_IDS | {OTHER}
        self._shown = shown
        self._decided = {key: at for key, at in self._decided.items() if key[0] in shown}
        self._shadow = {key: at for key, at in self._shadow.items() if key in shown}

    def decided(self, rule_id: str, decision: Decision) -> None:
        """Count a decision in which a rule had a part."""
        found = self._decided.get((rule_id, decision))
        if found is None:
            label = self._label(rule_id)
            found = RULE_DECISIONS.labels(label, str(decision))
            if label == rule_id:
                self._decided[rule_id, decision] = found
        found.inc()

    def would_have_forbidden(self, rule_id: str) -> None:
        """Count a call on which only being on trial kept a rule from acting."""
        found = self._shadow.get(rule_id)
        if found is None:
            label = self._label(rule_id)
            found = SHADOW_HITS.labels(label)
            if label == rule_id:
                self._shadow[rule_id] = found
        found.inc()

    def shows(self, family: str, rule_id: str | None) -> bool:
        """Return whether a sample is to be shown: one of a rule that is gone is not."""
        return family not in _LABELLED or rule_id in self._shown

    def _label(self, rule_id: str) -> str:
        if rule_id not in self._shown:
            return OTHER
        # What was made stays in the files that workers share, so there is an end to making.
        if rule_id not in self._created and len(self._created) >= _CREATED_MAX:
            return OTHER
        self._created.add(rule_id)
        return rule_id


RULES: Final = RuleSeries()
"""Those of this process."""
