"""A rule set: immutable, named by the hash of its files, and asked through `decide`."""

import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

import cedarpy

from proctor_policy import entities as entities_
from proctor_policy.call import (
    Call,
    CallRefused,
    Subject,
    as_record,
    context_of,
    given_to,
    subject_of,
)
from proctor_policy.entities import Entities
from proctor_policy.facts import FactSet
from proctor_policy.lexer import split
from proctor_policy.masks import Masks
from proctor_policy.origins import OriginIndex
from proctor_policy.policy import Comparison, Policy, read
from proctor_policy.problem import Problem
from proctor_policy.slices import Index
from proctor_policy.tooltypes import Tools, coerced
from proctor_policy.values import ValueRefused, type_of
from proctor_policy.verdict import (
    ENGINE_ERROR,
    INVALID_CALL,
    LOCAL,
    NO_RULES,
    Decision,
    Matches,
    Verdict,
    combine,
)

SLICES_MAX: Final = 4096
"""Subjects whose policies are kept ready; the least recently asked are let go."""

_NO_TOOLS: Final = Tools()
_NO_MASKS: Final = Masks()

_EXPLANATION_CHARACTERS_MAX: Final = 300

_LOCAL_PERMIT: Final = f'@id("{LOCAL}") permit (principal, action == Action::"local", resource);'

# Anchored: what follows may hold text that an agent chose.
_EVALUATION_ERROR: Final = re.compile(
    r"\Aerror while evaluating policy `policy(\d+)`: (.*)\Z", re.DOTALL
)


class RuleSet:
    """The rules of one state of a rules folder. Made by `load.load`; see `deny_all`."""

    def __init__(
        self,
        *,
        files: Mapping[str, str],
        policies: Sequence[Policy],
        entities: Entities,
        facts: FactSet,
        masks: Masks = _NO_MASKS,
        tools: Tools = _NO_TOOLS,
        warnings: tuple[Problem, ...] = (),
    ) -> None:
        self.files = files
        """Path below the rules folder -> text."""
        self.hash = digest(files)
        self.policies = tuple(policies)
        self._entities = entities
        self._facts = facts
        self.masks = masks
        """What must not leave with the audit trail; it decides nothing."""
        self.tools = tools
        """The tools whose arguments are known."""
        self.warnings = warnings
        """What is doubtful about the rules, though they are in force."""
        self._index = Index([*policies, *_built_in()], entities)
        self._slices: OrderedDict[Subject, _Slice] = OrderedDict()

    def decide(self, call: Call) -> Verdict:
        """Return the verdict on a call. Total: whatever the call holds, there is one."""
        began = time.perf_counter_ns()
        verdict = self._decide(call)
        micros = (time.perf_counter_ns() - began) // 1000
        return replace(verdict, policy_micros=micros)

    def explain(self, call: Call) -> "Explanation":
        """Return the verdict on a call, and what each policy in whose scope it lies says of it.

        Each is asked about alone, so a permit counts also where a forbid applies: slower than
        `decide`, and for people.
        """
        verdict = self.decide(call)
        try:
            asked = self._asked(call)
        except (CallRefused, ValueRefused):
            return Explanation(verdict, ())
        _with_origins(asked, call)
        entities = self._entities.with_subject(asked.subject)
        return Explanation(
            verdict,
            tuple(
                _opinion(policy, _parts((policy,))[-1], asked.request, entities)
                for policy in self._index.of(asked.subject)
            ),
        )

    def _decide(self, call: Call) -> Verdict:
        try:
            asked = self._asked(call)
        except (CallRefused, ValueRefused) as refused:
            return self._denied(str(refused), INVALID_CALL)
        errors: tuple[str, ...] = ()
        try:
            chosen = self._slice(asked.subject)
            if chosen.asks_origins:
                errors = _with_origins(asked, call)
            matches = chosen.constant or chosen.ask(asked.request)
        except _NotJudged as error:
            return self._denied(f"the call could not be judged: {error}", ENGINE_ERROR)
        verdict = combine(matches, target=call.target, ruleset=self.hash)
        if asked.labels or errors:
            return replace(verdict, labels=asked.labels, errors=(*verdict.errors, *errors))
        return verdict

    def _asked(self, call: Call) -> "_Asked":
        subject = subject_of(call)
        given = given_to(call)
        args = as_record(given)
        if call.kind == "tool_call" and call.target in self.tools.inputs:
            args = coerced(args, self.tools.inputs[call.target])
        facts = self._facts.of(call.target, given)
        context = context_of(call, args, [fact.name for fact in facts])
        labels = {fact.label for fact in facts if fact.label is not None}
        if subject.resource[0] == "Tool":
            labels |= self._entities.labels.get(call.target, frozenset())
        return _Asked(subject, args, _request(subject, context), tuple(sorted(labels)))

    def _slice(self, subject: Subject) -> "_Slice":
        found = self._slices.get(subject)
        if found is None:
            found = _sliced(subject, self._index.of(subject), self._entities.with_subject(subject))
            self._slices[subject] = found
            if len(self._slices) > SLICES_MAX:
                self._slices.popitem(last=False)
        else:
            self._slices.move_to_end(subject)
        return found

    def _denied(self, reason: str, rule_id: str) -> Verdict:
        return Verdict(Decision.DENY, reason, (rule_id,), self.hash)


class _Closed(RuleSet):
    """The rule set that is in force while there is none."""

    def __init__(self, reason: str) -> None:
        super().__init__(files={}, policies=(), entities=entities_.read("[]"), facts=FactSet())
        self._reason = reason

    def _decide(self, call: Call) -> Verdict:
        return self._denied(self._reason, NO_RULES)


def deny_all(reason: str) -> RuleSet:
    """Return a rule set that denies every call, local steps too, with this reason."""
    return _Closed(reason)


def digest(files: Mapping[str, str]) -> str:
    """Return the hex SHA-256 of rule files: their paths and texts, in the order of the paths."""
    hashed = sha256()
    for path in sorted(files):
        for part in (path.encode(), files[path].encode()):
            hashed.update(b"%d:%s" % (len(part), part))
    return hashed.hexdigest()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call as Cedar is asked about it, and the labels that it would leave."""

    subject: Subject
    args: dict[str, Any]
    request: dict[str, Any]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one policy says of a call in its scope."""

    policy: Policy
    applies: bool
    failure: str | None
    """Why it could not be evaluated; None: it could."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict, and every policy that had a say in it."""

    verdict: Verdict
    opinions: tuple[Opinion, ...]


class _NotJudged(Exception):
    """The engine gave anything but a clean answer."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Policies that Cedar is asked about together, numbered as it numbers them."""

    policies: tuple[Policy, ...]
    parsed: cedarpy.PolicySet
    asks_origins: bool

    def ask(self, request: dict[str, Any], entities: cedarpy.Entities) -> Matches:
        """Return which of the policies apply and which fail to evaluate."""
        result = cedarpy.is_authorized(request, self.parsed, entities)
        if result.decision not in (cedarpy.Decision.Allow, cedarpy.Decision.Deny):
            raise _NotJudged(_shortened("; ".join(result.diagnostics.errors)))
        failed: dict[Policy, str] = {}
        for error in result.diagnostics.errors:
            match = _EVALUATION_ERROR.match(error)
            if match is None:
                raise _NotJudged(_shortened(error))
            failed[self._numbered(match[1])] = _shortened(match[2])
        for policy in self.policies:
            mismatch = _mismatch(policy.comparisons, request["context"]["input"])
            if mismatch is not None:
                failed.setdefault(policy, mismatch)
        applying = [
            self._numbered(name.removeprefix("policy")) for name in result.diagnostics.reasons
        ]
        return Matches([policy for policy in applying if policy not in failed], failed)

    def _numbered(self, number: str) -> Policy:
        if not number.isdecimal() or int(number) >= len(self.policies):
            raise _NotJudged(f"it names a policy {number!r} that it was not asked about")
        return self.policies[int(number)]


@dataclass(frozen=True, slots=True)
class _Slice:
    """What is asked for one subject."""

    parts: tuple[_Part, ...]
    entities: cedarpy.Entities
    constant: Matches | None = None
    """What matches whatever the context, when no policy here has a condition."""

    def ask(self, request: dict[str, Any]) -> Matches:
        """Return what matches a call of this subject."""
        return _together([part.ask(request, self.entities) for part in self.parts])

    @property
    def asks_origins(self) -> bool:
        """True when a policy here wants to know where arguments come from."""
        return any(part.asks_origins for part in self.parts)


def _sliced(subject: Subject, policies: tuple[Policy, ...], entities: cedarpy.Entities) -> _Slice:
    found = _Slice(_parts(policies), entities)
    if any(policy.has_conditions for policy in policies):
        return found
    # The scopes alone decide, and all of them match: Cedar is asked once, its answer kept.
    return replace(found, constant=found.ask(_request(subject, {"input": {}})))


def _parts(policies: tuple[Policy, ...]) -> tuple[_Part, ...]:
    """Cut the policies of a slice into what Cedar must be asked about apart.

    When a forbid matches, Cedar does not say which permits do. A gate is a forbid that may be
    lifted, and then the permits count: so gates are asked about by themselves.
    """
    plain = tuple(policy for policy in policies if policy.gate is None)
    gated = tuple(policy for policy in policies if policy.gate is not None)
    return tuple(
        _Part(
            part,
            cedarpy.PolicySet.from_str("\n".join(policy.text for policy in part)),
            any(policy.asks_origins for policy in part),
        )
        for part in (plain, gated)
        if part or part is plain
    )


def _opinion(
    policy: Policy, part: _Part, request: dict[str, Any], entities: cedarpy.Entities
) -> Opinion:
    try:
        matches = part.ask(request, entities)
    except _NotJudged as error:
        return Opinion(policy, applies=False, failure=str(error))
    return Opinion(policy, policy in matches.satisfied, matches.failed.get(policy))


def _request(subject: Subject, context: dict[str, Any]) -> dict[str, Any]:
    return {
        "principal": _reference(subject.principal),
        "action": _reference(subject.action),
        "resource": _reference(subject.resource),
        "context": context,
    }


def _with_origins(asked: _Asked, call: Call) -> tuple[str, ...]:
    """Put the origins of the arguments into the context; returns what speaks against them."""
    index = OriginIndex() if call.origins is None else call.origins()
    asked.request["context"]["origins"] = index.of(asked.args)
    if index.forgot:
        return ("origins: the run has read more than is kept, so nothing is vouched for",)
    return ()


def _together(parts: Sequence[Matches]) -> Matches:
    return Matches(
        [policy for part in parts for policy in part.satisfied],
        {policy: why for part in parts for policy, why in part.failed.items()},
    )


def _built_in() -> Iterator[Policy]:
    for fragment in split(_LOCAL_PERMIT):
        yield read("", "(built in)", fragment)


def _mismatch(comparisons: tuple[Comparison, ...], args: Mapping[str, Any]) -> str | None:
    """Say which argument has another type than the literal it is compared with, if one has."""
    for comparison in comparisons:
        value: Any = args
        for key in comparison.path:
            value = value.get(key) if isinstance(value, dict) else None
        # What is not there is Cedar's to report: the policy may ask for it with `has` first.
        if value is None or type_of(value) == comparison.type_name:
            continue
        name = ".".join(comparison.path) or "input"
        return f"{name} is a {type_of(value)}, compared with a {comparison.type_name}"
    return None


def _reference(uid: tuple[str, str]) -> dict[str, str]:
    return {"type": uid[0], "id": uid[1]}


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    if len(line) <= _EXPLANATION_CHARACTERS_MAX:
        return line
    return line[:_EXPLANATION_CHARACTERS_MAX] + "..."
