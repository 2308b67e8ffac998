"""Tests of rules: `tests/*.yaml` below a rules folder, and what running them shows.

A file is a list of cases. A case is one call, or `steps`: several calls of one run, so that
`context.session` is exercised.

    - name: small payments pass
      agent: clerk
      tool: pay                       # or model: gpt-x, or local: now
      args: {amount: 5, to: ada}
      expect: allow                   # deny, require_approval, rate_limited
      rules: [pay-small]              # the rules that decide; left out: any
      reason: ""                      # the exact reason; left out: any
      shadow: [pay-trial]             # rules on trial that match; left out: any

Also: `user`, `idempotency`, `at` (a time, as 2026-12-01T09:30:00Z) and, in a step, `after` (a
duration since the step before it), `granted: true` (a person grants it, so it counts as run) and
`result` (what the tool returned, for origins). `input` is what the user asked; `session` sets what
the run has done, as `{tokens: 5000}`. Agent, user, time and input of a case hold for its steps.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml

from proctor_policy.call import Call, Session
from proctor_policy.gates import RateGate, duration_seconds
from proctor_policy.origins import OriginIndex
from proctor_policy.problem import Problem
from proctor_policy.ruleset import RuleSet
from proctor_policy.verdict import Decision, Verdict

TESTS_FOLDER: Final = "tests"

_SESSION_FIELDS: Final = frozenset(each.name for each in fields_of(Session))

_NOON: Final = datetime(2026, 1, 5, 12, tzinfo=UTC)
"""When a call happens that says nothing about time: a Monday."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS: Final = {"tool": "tool_call", "model": "llm_call", "local": "local"}
_SHARED: Final = frozenset({"agent", "user", "at", "input"})
_CALL: Final = frozenset(
    {"args", "args_json", "idempotency", "expect", "rules", "reason", "shadow", "granted"}
    | {"after", "result", "session"}
    | _KINDS.keys()
)
_CASE: Final = frozenset({"name", "steps"}) | _SHARED | _CALL
_STEP: Final = _SHARED | _CALL


@dataclass(frozen=True, slots=True)
class Expected:
    """What a test says of one call. None: it says nothing about that."""

    decision: Decision
    rules: tuple[str, ...] | None
    reason: str | None
    shadow: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Play:
    """One call of a case."""

    line: int
    call: Call
    expected: Expected
    granted: bool
    after_seconds: int
    input_json: str
    result_json: str
    session: Mapping[str, Any]
    """Fields of `Session` that are as given, whatever the case has done so far."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a file."""

    file: str
    line: int
    name: str
    plays: tuple[Play, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A case that was run. `problems` is empty when it passed."""

    case: Case
    verdicts: tuple[Verdict, ...]
    problems: tuple[Problem, ...]


class CasesInvalid(Exception):
    """Test files that cannot be read, with every problem found."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def load_cases(folder: Path) -> list[Case]:
    """Read every `.yaml` file in `tests` below a rules folder, in the order of their names.

    Raises:
        CasesInvalid: with every problem found, by file and line.
    """
    cases: list[Case] = []
    problems: list[Problem] = []
    tests = folder / TESTS_FOLDER
    for path in sorted([*tests.glob("**/*.yaml"), *tests.glob("**/*.yml")]):
        try:
            cases += _file(str(path), path.read_text(encoding="utf-8"))
        except _Wrong as wrong:
            problems.append(Problem(str(path), wrong.line, str(wrong), wrong.hint))
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = None if mark is None else mark.line + 1
            problems.append(Problem(str(path), line, f"not YAML: {_sentence(error)}"))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(str(path), None, f"it cannot be read: {error}"))
    if problems:
        raise CasesInvalid(problems)
    return cases


def run(rules: RuleSet, cases: Sequence[Case]) -> list[Result]:
    """Run cases against a rule set."""
    return [_run(rules, case) for case in cases]


def failures(folder: Path, rules: RuleSet) -> list[Problem]:
    """Return what is wrong when the tests of a rules folder are run; empty: all of them pass."""
    try:
        cases = load_cases(folder)
    except CasesInvalid as invalid:
        return list(invalid.problems)
    return [problem for result in run(rules, cases) for problem in result.problems]


def uncovered(rules: RuleSet, results: Sequence[Result]) -> list[str]:
    """Return the ids of the policies that no test made decide, in the order of the rule set."""
    decided = {
        rule_id
        for result in results
        for verdict in result.verdicts
        for rule_id in (*verdict.rule_ids, *verdict.shadow, *(g.rule_id for g in verdict.gates))
    }
    return [policy.id for policy in rules.policies if policy.id not in decided]


def _run(rules: RuleSet, case: Case) -> Result:
    so_far = _SoFar()
    so_far.origins.add_input(case.plays[0].input_json)
    verdicts = []
    problems: list[Problem] = []
    for play in case.plays:
        so_far.elapsed_seconds += play.after_seconds
        call = replace(
            play.call,
            session=replace(so_far.session(play.call.target), **play.session),
            now_micros=play.call.now_micros + so_far.elapsed_seconds * 1_000_000,
            origins=lambda: so_far.origins,
        )
        verdict = so_far.under_limits(rules.decide(call))
        verdicts.append(verdict)
        problems += [
            Problem(case.file, play.line, f"{case.name}: {call.target}: {message}")
            for message in _differences(play.expected, verdict)
        ]
        if verdict.decision is Decision.ALLOW or (
            verdict.decision is Decision.REQUIRE_APPROVAL and play.granted
        ):
            so_far.started(call, verdict.labels, play.result_json)
        elif verdict.decision is not Decision.RATE_LIMITED:
            so_far.denials += 1
    return Result(case, tuple(verdicts), tuple(problems))


def _differences(expected: Expected, verdict: Verdict) -> Iterator[str]:
    said = f"({', '.join(verdict.rule_ids)}: {verdict.reason or 'no reason given'})"
    if verdict.decision is not expected.decision:
        yield f"expected {expected.decision}, got {verdict.decision} {said}"
    elif expected.rules is not None and verdict.rule_ids != expected.rules:
        yield f"expected rules {list(expected.rules)}, got {list(verdict.rule_ids)}"
    elif expected.reason is not None and verdict.reason != expected.reason:
        yield f"expected the reason {expected.reason!r}, got {verdict.reason!r}"
    if expected.shadow is not None and verdict.shadow != expected.shadow:
        yield f"expected shadow {list(expected.shadow)}, got {list(verdict.shadow)}"


@dataclass(slots=True)
class _SoFar:
    """What the run of a case has done, as a kernel would count it."""

    kinds: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    tools: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    taken: dict[str, list[int]] = field(default_factory=dict)
    origins: OriginIndex = field(default_factory=OriginIndex)
    denials: int = 0
    elapsed_seconds: int = 0

    def session(self, target: str) -> Session:
        return Session(
            tools=frozenset(self.tools),
            labels=frozenset(self.labels),
            steps=self.kinds.total(),
            tool_calls=self.kinds["tool_call"],
            llm_calls=self.kinds["llm_call"],
            denials=self.denials,
            elapsed_seconds=self.elapsed_seconds,
            calls=self.calls[target],
        )

    def started(self, call: Call, labels: Sequence[str], result_json: str) -> None:
        self.kinds[call.kind] += 1
        self.calls[call.target] += 1
        self.labels.update(labels)
        if call.kind == "tool_call":
            self.tools.add(call.target)
            self.origins.add_result(
                result_json, tool=call.target, labels=frozenset(labels), args=call.args_json
            )

    def under_limits(self, verdict: Verdict) -> Verdict:
        gates = [gate for gate in verdict.gates if isinstance(gate, RateGate)]
        if verdict.decision is not Decision.ALLOW or not gates:
            return verdict
        full = [gate for gate in gates if self._held(gate) >= gate.limit]
        if full:
            return replace(
                verdict,
                decision=Decision.RATE_LIMITED,
                reason="; ".join(dict.fromkeys(gate.reason for gate in full)),
                rule_ids=tuple(sorted(gate.rule_id for gate in full)),
            )
        for gate in gates:
            self.taken.setdefault(gate.rule_id, []).append(self.elapsed_seconds)
        return verdict

    def _held(self, gate: RateGate) -> int:
        since = self.elapsed_seconds - gate.window_seconds
        return sum(at > since for at in self.taken.get(gate.rule_id, ()))


class _Wrong(Exception):
    def __init__(self, line: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.hint = hint


def _file(file: str, text: str) -> Iterator[Case]:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return
    if not isinstance(node, yaml.SequenceNode):
        raise _Wrong(node.start_mark.line + 1, "a test file is a list of cases")
    for item in node.value:
        yield _case(file, item)


def _case(file: str, node: yaml.Node) -> Case:
    line = node.start_mark.line + 1
    fields = _fields(node, _CASE)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise _Wrong(line, "a case without a name", "say in a sentence what it shows")
    if "steps" not in fields:
        return Case(file, line, name, (_play(line, fields),))
    steps = next(value for key, value in node.value if key.value == "steps")
    if not isinstance(steps, yaml.SequenceNode) or not steps.value:
        raise _Wrong(line, "steps must be a list of calls")
    shared = {key: fields[key] for key in _SHARED & fields.keys()}
    extra = fields.keys() - _SHARED - {"name", "steps"}
    if extra:
        raise _Wrong(line, f"{min(extra)!r} belongs to a step, not to a case with steps")
    plays = [
        _play(each.start_mark.line + 1, {**shared, **_fields(each, _STEP)}) for each in steps.value
    ]
    return Case(file, line, name, tuple(plays))


def _fields(node: yaml.Node, known: frozenset[str]) -> dict[str, Any]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        raise _Wrong(line, "expected a mapping, as in `tool: search`")
    for key, _ in node.value:
        if key.value not in known:
            near = get_close_matches(str(key.value), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are: {sorted(known)}"
            raise _Wrong(key.start_mark.line + 1, f"unknown key {key.value!r}", hint)
    value = yaml.SafeLoader("").construct_document(node)
    assert isinstance(value, dict)
    return value


def _play(line: int, fields: Mapping[str, Any]) -> Play:
    named = [key for key in _KINDS if key in fields]
    if len(named) != 1:
        raise _Wrong(line, "a call needs one of tool, model and local")
    try:
        decision = Decision(fields.get("expect", ""))
    except ValueError:
        known = ", ".join(Decision)
        raise _Wrong(line, f"expect must be one of {known}, not {fields.get('expect')!r}") from None
    call = Call(
        principal=str(fields.get("agent", "agent")),
        kind=_KINDS[named[0]],
        target=str(fields[named[0]]),
        args_json=_args(line, fields),
        idempotency=str(fields.get("idempotency", "safe_to_retry")),
        session=Session(),
        now_micros=_micros(line, fields.get("at", _NOON)),
        user=None if fields.get("user") is None else str(fields["user"]),
    )
    expected = Expected(
        decision,
        rules=_names(line, fields, "rules"),
        reason=None if fields.get("reason") is None else str(fields["reason"]),
        shadow=_names(line, fields, "shadow"),
    )
    try:
        after = duration_seconds(str(fields["after"])) if "after" in fields else 0
    except ValueError as error:
        raise _Wrong(line, str(error)) from None
    return Play(
        line,
        call,
        expected,
        granted=bool(fields.get("granted")),
        after_seconds=after,
        input_json=_json(line, "input", fields.get("input")),
        result_json=_json(line, "result", fields.get("result")),
        session=_session(line, fields.get("session", {})),
    )


def _args(line: int, fields: Mapping[str, Any]) -> str:
    if "args_json" in fields:
        return str(fields["args_json"])
    return _json(line, "args", fields.get("args", {}))


def _json(line: int, key: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _Wrong(line, f"{key}: not JSON: {error}", "quote dates and times") from None


def _names(line: int, fields: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _Wrong(line, f"{key} must be a list of texts")
    return tuple(sorted(value))


def _session(line: int, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value.keys() <= _SESSION_FIELDS:
        raise _Wrong(line, f"session must be a mapping of: {', '.join(sorted(_SESSION_FIELDS))}")
    found: dict[str, Any] = {}
    for key, item in value.items():
        if key in ("tools", "labels"):
            found[key] = frozenset(_names(line, value, key) or ())
        elif isinstance(item, int) and not isinstance(item, bool):
            found[key] = item
        else:
            raise _Wrong(line, f"session: {key} must be a whole number, not {item!r}")
    return found


def _micros(line: int, value: object) -> int:
    if isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise _Wrong(line, f"at: {value!r} is not a time, as 2026-12-01T09:30:00Z is")
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _sentence(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or " ".join(str(error).split()))
