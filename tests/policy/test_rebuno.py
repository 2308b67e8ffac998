"""Imported bundles decide as a direct reading of them does (protocol section 8)."""

import fnmatch
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.policy.conftest import a_call
from tests.policy.test_cli import proctor

from proctor_policy import rebuno, texts
from proctor_policy.load import rebuild
from proctor_policy.rebuno import BundleInvalid, imported

EXAMPLE = """
default_action: deny
rules:
  - id: models
    when: {step_kind: llm_call}
    then: {decision: allow}
  - id: safe-shell
    when:
      target: shell_exec
      arguments: {command: {regex: '^(ls|cat) '}}
    then: {decision: allow, reason: safe read-only command}
  - id: other-shell
    when: {target: shell_exec}
    then:
      decision: require_approval
      reason: non-safe shell command needs approval
      approval_config: {approvers: [ops, ada], timeout: 30m, message: "Run this?"}
"""


@pytest.mark.parametrize(
    ("call", "decision", "rule"),
    [
        (a_call("gpt", kind="llm_call"), "allow", "models"),
        (a_call("shell_exec", '{"command":"ls -l"}'), "allow", "safe-shell"),
        (a_call("shell_exec", '{"command":"rm -rf /"}'), "require_approval", "other-shell"),
        (a_call("shell_exec", "{}"), "require_approval", "other-shell"),
        (a_call("other"), "deny", "default"),
        (a_call("now", kind="local"), "allow", "local"),
    ],
)
def test_the_example_of_the_protocol(call: Any, decision: str, rule: str) -> None:
    verdict = rebuild(imported(EXAMPLE), "imported").decide(call)

    assert (verdict.decision, verdict.rule_ids[0]) == (decision, rule)


def test_an_approval_keeps_its_people_and_its_time() -> None:
    verdict = rebuild(imported(EXAMPLE), "imported").decide(a_call("shell_exec"))
    (gate,) = verdict.gates

    assert (gate.approvers, gate.timeout_seconds, gate.message) == (
        ("ops", "ada"),
        1800,
        "Run this?",
    )
    assert verdict.reason == "non-safe shell command needs approval"


TARGETS = ["read", "read_file", "fs/read", "mail", "a[b"]
AGENTS = ["researcher", "clerk"]
KINDS = ["tool_call", "llm_call", "local"]
VALUES: list[Any] = ["a", "ab", "5", 5, 5.0, 1.5, 1000000, 1e-05, True, None, {"k": "a"}, ["a"]]

globs = st.sampled_from(["*", "read*", "re?d", "fs/*", "*/read", "[m-r]*", "read", "[^a]*", "mail"])
predicates = st.fixed_dictionaries(
    {},
    optional={
        "equals": st.sampled_from(["a", "5", "1e+06", "1000000", "true", "null", "<nil>", "1.5"]),
        "contains": st.sampled_from(["a", "0", "e"]),
        "one_of": st.lists(st.sampled_from(["a", "5", "5.0", "1e-05"]), min_size=1, max_size=2),
        "regex": st.sampled_from(["^a", "b$", "[0-9]+", "."]),
    },
).filter(bool)


def whens(*, old: bool) -> st.SearchStrategy[dict[str, Any]]:
    keys = ["x", "y"] if old else ["x", "y", "x.k", "x.k.z"]
    return st.fixed_dictionaries(
        {},
        optional={
            "target": globs,
            "targets": st.lists(globs, min_size=1, max_size=2),
            "agent_id": st.sampled_from(AGENTS),
            "agent_ids": st.lists(st.sampled_from(AGENTS), min_size=1, max_size=2),
            "step_kind": st.sampled_from(KINDS),
            "arguments": st.dictionaries(st.sampled_from(keys), predicates, max_size=2),
        },
    )


@st.composite
def bundles(draw: Any) -> dict[str, Any]:
    old = draw(st.booleans())
    count = draw(st.integers(1 if old else 0, 4))
    order = draw(st.permutations(range(count)))
    rules = []
    for number in range(count):
        rule: dict[str, Any] = {
            "id": f"r{number}",
            "when": draw(whens(old=old)),
            "then": {"decision": draw(st.sampled_from(["allow", "deny", "require_approval"]))},
        }
        if old:
            rule["priority"] = order[number]
        rules.append(rule)
    return {"default_action": draw(st.sampled_from(["allow", "deny"])), "rules": rules}


calls = st.tuples(
    st.sampled_from(AGENTS),
    st.sampled_from(KINDS),
    st.sampled_from(TARGETS),
    st.dictionaries(st.sampled_from(["x", "y", "x.k"]), st.sampled_from(VALUES), max_size=3)
    | st.sampled_from(["text", None, 5]),
)


def read_directly(bundle: dict[str, Any], agent: str, kind: str, target: str, args: Any) -> str:
    """Say what a bundle decides, straight from the words of the protocol."""
    rules = bundle["rules"]
    old = any("priority" in rule for rule in rules)
    if old:
        rules = sorted(rules, key=lambda rule: rule["priority"])
    for rule in rules:
        if matches(rule["when"], agent, kind, target, args, old=old):
            return str(rule["then"]["decision"])
    return "allow" if kind == "local" else str(bundle["default_action"])


def matches(
    when: dict[str, Any], agent: str, kind: str, target: str, args: Any, *, old: bool
) -> bool:
    def globbed(glob: str) -> bool:
        pattern = fnmatch.translate(glob.replace("[^", "[!"))
        if old:
            pattern = pattern.replace(".*", "[^/]*").replace("re.d", "re[^/]d")
            return glob == target or re.match(pattern, target) is not None
        return re.match(pattern, target) is not None

    return (
        ("target" not in when or globbed(when["target"]))
        and ("targets" not in when or any(map(globbed, when["targets"])))
        and when.get("agent_id", agent) == agent
        and agent in when.get("agent_ids", [agent])
        and when.get("step_kind", kind) == kind
        and all(
            holds(predicate, key, args, old=old)
            for key, predicate in when.get("arguments", {}).items()
        )
    )


def holds(predicate: dict[str, Any], key: str, args: Any, *, old: bool) -> bool:
    value = args
    if isinstance(args, dict) and key in args:
        value = args[key]
    else:
        for part in [key] if old else key.split("."):
            if not isinstance(value, dict) or part not in value:
                return False
            value = value[part]
    text = go_text(value) if old else new_text(value)
    return (
        predicate.get("equals", text) == text
        and predicate.get("contains", "") in text
        and text in predicate.get("one_of", [text])
        and re.search(predicate.get("regex", ""), text) is not None
    )


def new_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def go_text(value: Any) -> str:
    known = {"5": "5", "5.0": "5", "1.5": "1.5", "1000000": "1e+06", "1e-05": "1e-05"}
    match value:
        case None:
            return "<nil>"
        case bool():
            return str(value).lower()
        case str():
            return value
        case list():
            return "[" + " ".join(map(go_text, value)) + "]"
        case dict():
            return "map[" + " ".join(f"{key}:{go_text(value[key])}" for key in sorted(value)) + "]"
    return known[repr(value)]


@settings(max_examples=250, deadline=None)
@given(bundles(), st.lists(calls, min_size=1, max_size=6))
def test_an_imported_bundle_decides_as_a_direct_reading_of_it(
    bundle: dict[str, Any], made: list[Any]
) -> None:
    files = imported(yaml.safe_dump(bundle))
    if "imported.cedar" in files and not files["imported.cedar"].strip():
        assert bundle == {"default_action": "deny", "rules": []}
        return
    rules = rebuild(files, "imported")

    for agent, kind, target, args in made:
        call = a_call(target, json.dumps(args), principal=agent, kind=kind)
        verdict = rules.decide(call)
        assert verdict.decision == read_directly(bundle, agent, kind, target, args), files


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({"id": "a", "then": {"decision": "judge"}}, "judge cannot be kept"),
        (
            {"id": "a", "then": {"decision": "allow", "rate_limit": {"max_calls": 1}}},
            "rate_limit cannot be kept",
        ),
        ({"id": "a", "then": {"decision": "allow", "budget": {}}}, "budget cannot be kept"),
        ({"id": "a", "then": {"decision": "perhaps"}}, "unknown decision 'perhaps'"),
        ({"id": "a", "then": {}}, "unknown decision None"),
        ({"then": {"decision": "allow"}}, "rule 1 has no id"),
        ({"id": "default", "then": {"decision": "allow"}}, "taken by a built-in rule"),
        ({"id": "a", "wen": {}, "then": {"decision": "allow"}}, "unknown key 'wen'"),
        ({"id": "a", "when": {"tool": "x"}, "then": {"decision": "allow"}}, "unknown key 'tool'"),
        ({"id": "a", "when": {"target": "[a"}, "then": {"decision": "allow"}}, "never ends"),
        (
            {"id": "a", "when": {"arguments": {"x": {}}}, "then": {"decision": "allow"}},
            "asks for nothing",
        ),
        (
            {"id": "a", "when": {"arguments": {"x": {"equals": 5}}}, "then": {"decision": "deny"}},
            "write it in quotes",
        ),
        (
            {"id": "a", "then": {"decision": "require_approval",
                                 "approval_config": {"timeout": "soon"}}},
            "timeout: 'soon' is not a duration",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_kept_is_an_error(rule: dict[str, Any], why: str) -> None:
    with pytest.raises(BundleInvalid, match=re.escape(why)):
        imported(yaml.safe_dump({"rules": [rule]}))


@pytest.mark.parametrize("text", ["[1]", "a: [", "rules: {}", "default_action: maybe", "more: 1"])
def test_what_is_no_bundle_is_an_error(text: str) -> None:
    with pytest.raises(BundleInvalid):
        imported(text)


def test_the_old_dialect_goes_by_priority_and_refuses_ties() -> None:
    rules = [
        {"id": "b", "priority": 2, "then": {"decision": "allow"}},
        {"id": "a", "priority": 1, "when": {"target": "x"}, "then": {"decision": "deny"}},
    ]

    verdict = rebuild(imported(yaml.safe_dump({"rules": rules})), "i").decide(a_call("x"))
    rules[1]["priority"] = 2

    assert verdict.rule_ids == ("a",)
    with pytest.raises(BundleInvalid, match="same priority"):
        imported(yaml.safe_dump({"rules": rules}))


def test_a_bundle_of_an_agent_holds_for_that_agent() -> None:
    rules = rebuild(imported("default_action: allow", agent='ad"a'), "imported")

    assert rules.decide(a_call(principal='ad"a')).decision == "allow"
    assert rules.decide(a_call(principal="eve")).decision == "deny"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(5.0, "5"), (1e6, "1e+06"), (1234567.0, "1.234567e+06"), (1e-5, "1e-05"), (0.25, "0.25"),
     (-2.5, "-2.5"), (0.0001, "0.0001"), (123456.0, "123456"), (0.0, "0")],
)  # fmt: skip
def test_numbers_are_written_as_go_writes_floats(value: float, expected: str) -> None:
    assert texts._go_float(value) == expected


def test_the_command_writes_rules_that_load(tmp_path: Path) -> None:
    (tmp_path / "bundle.yaml").write_text(EXAMPLE)

    done = proctor("policy", "import", tmp_path / "bundle.yaml", tmp_path / "rules")
    again = proctor("policy", "import", tmp_path / "bundle.yaml", tmp_path / "rules")
    checked = proctor("policy", "check", tmp_path / "rules")
    (tmp_path / "bundle.yaml").write_text("rules: [{id: a, then: {decision: judge}}]")
    refused = proctor("policy", "import", tmp_path / "bundle.yaml", tmp_path / "other")

    assert (done.exit_code, again.exit_code, checked.exit_code, refused.exit_code) == (0, 1, 0, 1)
    assert "judge cannot be kept" in refused.output
    assert not (tmp_path / "other").exists()


def test_the_module_names_its_default() -> None:
    assert rebuno.DEFAULT_ALLOW in imported("default_action: allow")["imported.cedar"]
