"""Rebuno policy bundles into Cedar rules with the same verdicts (protocol section 8).

A bundle is a list of rules of which the first that matches wins; here every rule says for itself
when it is the first. What its predicates compare as text become exact facts. What would not keep
its meaning (limits, budgets, judges) is an error, never a silent change.

Two dialects: the old one orders rules by `priority` and reads numbers as floats, the new one orders
them as they stand. A `priority` anywhere makes it the old one.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from proctor_policy import texts
from proctor_policy.gates import duration_seconds
from proctor_policy.verdict import BUILT_IN_IDS

DEFAULT_ALLOW: Final = "default-allow"
"""Id of the permit for what no rule of the bundle matches."""

_RULE_KEYS: Final = frozenset({"id", "priority", "when", "then"})
_WHEN_KEYS: Final = frozenset(
    {"target", "targets", "agent_id", "agent_ids", "step_kind", "arguments"}
)
_UNKEPT: Final[Mapping[str, str]] = {
    "rate_limit": 'its bucket refills in another way; write a @gate("rate_limit") by hand',
    "budget": "write a rule on context.session.tokens by hand",
    "judge": 'there is no judge here; write a @gate("approval") by hand',
}
_THEN_KEYS: Final = frozenset({"decision", "reason", "approval_config"}) | _UNKEPT.keys()
_PREDICATES: Final[Mapping[str, str]] = {
    "equals": "text_equals",
    "contains": "text_contains",
    "one_of": "text_one_of",
    "regex": "text_matches",
}
_KINDS: Final[Mapping[str, str]] = {
    "tool_call": 'action in Action::"tool_call"',
    "llm_call": 'action == Action::"llm_call"',
    "local": 'action == Action::"local"',
}


class BundleInvalid(Exception):
    """A bundle that is not imported, with everything that stands against it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class _Rule:
    id: str
    condition: str
    """Cedar; `true` when it matches everything."""
    decision: str
    reason: str
    approval: Mapping[str, Any] = field(default_factory=dict)


def imported(bundle: str, *, agent: str | None = None) -> dict[str, str]:
    """Return rule files for a bundle: path -> text.

    `agent`: the rules hold for this agent alone, as those of a bundle that is stored for one.

    Raises:
        BundleInvalid: not a bundle, or one that would not keep its meaning.
    """
    try:
        document = yaml.safe_load(bundle)
    except yaml.YAMLError as error:
        raise BundleInvalid([f"not YAML: {error}"]) from None
    reader = _Reader(document)
    rules = reader.rules()
    if reader.problems:
        raise BundleInvalid(reader.problems)
    principal = "principal" if agent is None else f"principal == Agent::{_quoted(agent)}"
    policies = list(_policies(rules, principal, allows_the_rest=reader.allows_the_rest))
    files = {"imported.cedar": "\n".join(policies)}
    if reader.facts:
        files["facts.toml"] = "\n".join(reader.facts)
    return files


def _policies(rules: list[_Rule], principal: str, *, allows_the_rest: bool) -> Iterator[str]:
    before: list[str] = []
    for rule in rules:
        yield from _policy(rule, principal, _all_of([*before, rule.condition]))
        before.append(f"!({rule.condition})")
    if allows_the_rest:
        rest = _all_of(before)
        yield f'@id("{DEFAULT_ALLOW}")\npermit ({principal}, action, resource)\n{rest};\n'


def _policy(rule: _Rule, principal: str, clause: str) -> Iterator[str]:
    named = f"@id({_quoted(rule.id)})\n"
    reason = f"@reason({_quoted(rule.reason)})\n" if rule.reason else ""
    body = f"({principal}, action, resource)\n{clause};\n"
    match rule.decision:
        case "allow":
            yield f"{named}{reason}permit {body}"
        case "deny":
            reason = reason or '@reason("policy_denied")\n'
            yield f"{named}{reason}forbid {body}"
        case _:
            yield f"@id({_quoted(rule.id + ':permit')})\npermit {body}"
            yield f"{named}{_gate(rule.approval)}{reason}forbid {body}"


def _gate(approval: Mapping[str, Any]) -> str:
    annotations = {
        "approvers": ", ".join(map(str, approval.get("approvers") or ())),
        "timeout": str(approval.get("timeout") or ""),
        "message": str(approval.get("message") or ""),
    }
    lines = [f"@{key}({_quoted(value)})\n" for key, value in annotations.items() if value]
    return '@gate("approval")\n' + "".join(lines)


class _Reader:
    """Reads a bundle strictly; collects what stands against it, and the facts that it needs."""

    def __init__(self, document: Any) -> None:
        self.problems: list[str] = []
        self.facts: list[str] = []
        self._document = self._mapping(document, "a bundle")
        self._listed = self._list(self._document.get("rules", []), "rules")
        self._old = any(isinstance(rule, dict) and "priority" in rule for rule in self._listed)

    @property
    def allows_the_rest(self) -> bool:
        """True when what no rule matches is allowed."""
        return self._document.get("default_action") == "allow"

    def rules(self) -> list[_Rule]:
        """Return the rules in the order in which they are tried."""
        self._only(self._document, frozenset({"default_action", "rules"}), "the bundle")
        if self._document.get("default_action", "deny") not in ("allow", "deny"):
            self.problems.append("default_action must be allow or deny")
        found = [self._rule(rule, n) for n, rule in enumerate(self._in_order(), 1)]
        ids = [rule.id for rule in found]
        for rule_id in sorted({each for each in ids if ids.count(each) > 1}):
            self.problems.append(f"the id {rule_id!r} is there twice")
        return found

    def _in_order(self) -> list[Any]:
        if not self._old:
            return self._listed
        priorities = [
            rule.get("priority", 0) if isinstance(rule, dict) else 0 for rule in self._listed
        ]
        if not all(type(each) is int for each in priorities):
            self.problems.append("a priority must be a whole number")
            return self._listed
        if len(set(priorities)) < len(priorities):
            self.problems.append("two rules have the same priority")
        pairs = sorted(zip(priorities, self._listed, strict=True), key=lambda pair: pair[0])
        return [rule for _, rule in pairs]

    def _rule(self, rule: Any, number: int) -> _Rule:
        if not isinstance(rule, dict) or not isinstance(rule.get("id"), str) or not rule["id"]:
            self.problems.append(f"rule {number} has no id")
            return _Rule(f"rule {number}", "true", "deny", "")
        what = f"rule {rule['id']!r}"
        if rule["id"] in BUILT_IN_IDS | {DEFAULT_ALLOW} or rule["id"].startswith("__"):
            self.problems.append(f"{what}: the id is taken by a built-in rule")
        self._only(rule, _RULE_KEYS, what)
        then = self._mapping(rule.get("then"), f"{what}: then")
        self._only(then, _THEN_KEYS, f"{what}: then")
        decision = then.get("decision")
        for key in _UNKEPT:
            if key in then or decision == key:
                self.problems.append(f"{what}: {key} cannot be kept; {_UNKEPT[key]}")
        if decision not in ("allow", "deny", "require_approval", "judge"):
            self.problems.append(f"{what}: unknown decision {decision!r}")
        return _Rule(
            rule["id"],
            self._condition(rule["id"], self._mapping(rule.get("when"), f"{what}: when")),
            str(decision),
            str(then.get("reason") or ""),
            self._approval(what, then.get("approval_config")),
        )

    def _condition(self, rule: str, when: Mapping[str, Any]) -> str:
        what = f"rule {rule!r}: when"
        self._only(when, _WHEN_KEYS, what)
        parts = []
        if when.get("target"):
            parts.append(self._glob(rule, when["target"]))
        if when.get("targets"):
            parts.append(_any_of(self._glob(rule, g) for g in self._list(when["targets"], what)))
        if when.get("agent_id"):
            parts.append(_agent(when["agent_id"]))
        if when.get("agent_ids"):
            parts.append(_any_of(map(_agent, self._list(when["agent_ids"], what))))
        if when.get("step_kind"):
            if when["step_kind"] not in _KINDS:
                self.problems.append(f"{what}: unknown step_kind {when['step_kind']!r}")
            parts.append(_KINDS.get(when["step_kind"], "false"))
        for key, predicate in self._mapping(when.get("arguments"), what).items():
            parts += self._predicates(rule, str(key), predicate)
        return " && ".join(parts) or "true"

    def _glob(self, rule: str, glob: Any) -> str:
        """Return a condition on the target; in the old dialect a broken glob equals only itself."""
        try:
            pattern = texts.glob_pattern(str(glob), crosses_slashes=not self._old)
        except ValueError as error:
            pattern = ""
            if not self._old:
                self.problems.append(f"rule {rule!r}: {error}")
        if self._old:
            same = "".join(map(texts.literal, str(glob)))
            pattern = f"{same}|{pattern}" if pattern else same
        return self._fact(rule, {"target_matches": pattern})

    def _predicates(self, rule: str, key: str, predicate: Any) -> Iterator[str]:
        what = f"rule {rule!r}: arguments.{key}"
        given = self._mapping(predicate, what)
        self._only(given, frozenset(_PREDICATES), what)
        used = {each: value for each, value in given.items() if value not in ("", [], None)}
        if not used:
            self.problems.append(f"{what} asks for nothing")
        if not all(key.split(".")) or (self._old and "." in key):
            self.problems.append(f"{what}: such a key cannot be kept")
        for each, value in used.items():
            self._check_value(what, each, value)
            table: dict[str, Any] = {"argument": key, _PREDICATES.get(each, each): value}
            if self._old:
                table["numbers"] = "float"
            yield self._fact(rule, table)

    def _check_value(self, what: str, predicate: str, value: Any) -> None:
        values = value if predicate == "one_of" and isinstance(value, list) else [value]
        if predicate == "one_of" and not isinstance(value, list):
            self.problems.append(f"{what}: one_of must be a list")
        for each in values:
            if not isinstance(each, str):
                self.problems.append(f"{what}: {each!r} is no text; write it in quotes")

    def _fact(self, rule: str, table: Mapping[str, Any]) -> str:
        name = f"{rule}/{len(self.facts) + 1}"
        lines = "\n".join(f"{key} = {_toml(value)}" for key, value in table.items())
        self.facts.append(f"[{_toml(name)}]\n{lines}\n")
        return f"context.facts.contains({_quoted(name)})"

    def _approval(self, what: str, config: Any) -> Mapping[str, Any]:
        given = self._mapping(config, f"{what}: approval_config")
        self._only(given, frozenset({"approvers", "timeout", "message"}), what)
        if given.get("timeout"):
            try:
                duration_seconds(str(given["timeout"]))
            except ValueError as error:
                self.problems.append(f"{what}: timeout: {error}")
        for approver in self._list(given.get("approvers") or [], f"{what}: approvers"):
            if "," in str(approver):
                self.problems.append(f"{what}: an approver with a comma: {approver!r}")
        return given

    def _mapping(self, value: Any, what: str) -> dict[str, Any]:
        if value is None or isinstance(value, dict):
            return value or {}
        self.problems.append(f"{what} must be a mapping, not {value!r}")
        return {}

    def _list(self, value: Any, what: str) -> list[Any]:
        if isinstance(value, list):
            return value
        self.problems.append(f"{what} must be a list, not {value!r}")
        return []

    def _only(self, given: Mapping[str, Any], known: Iterable[str], what: str) -> None:
        for key in given:
            if key not in known:
                self.problems.append(f"{what}: unknown key {key!r}")


def _agent(name: Any) -> str:
    return f"principal == Agent::{_quoted(str(name))}"


def _all_of(parts: list[str]) -> str:
    needed = [part for part in parts if part != "true"]
    return f"when {{ {' && '.join(needed)} }}" if needed else ""


def _any_of(parts: Iterable[str]) -> str:
    return "(" + " || ".join(parts) + ")"


def _toml(value: Any) -> str:
    # JSON is TOML for texts and lists of them, but for what JSON leaves unescaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


_UNPRINTABLE: Final = re.compile(r'["\\]|[^\x20-\x7e\xa1-\U0010ffff]')


def _quoted(text: str) -> str:
    """Return a text as a Cedar string."""
    return '"' + _UNPRINTABLE.sub(_escaped, text) + '"'


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return f"\\{character}" if character in '"\\' else f"\\u{{{ord(character):x}}}"
