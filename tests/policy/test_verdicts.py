"""How a verdict is reached, with real policies and the real engine."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.policy.conftest import a_call

from proctor_policy.call import Session
from proctor_policy.ruleset import RuleSet, deny_all
from proctor_policy.verdict import Decision

Rules = Callable[..., RuleSet]

PERMIT_ALL = '@id("all") permit (principal, action, resource);'


def test_a_permit_allows_and_is_named(rules: Rules) -> None:
    verdict = rules(PERMIT_ALL).decide(a_call())

    assert (verdict.decision, verdict.rule_ids, verdict.reason) == (Decision.ALLOW, ("all",), "")


def test_no_permit_denies(rules: Rules) -> None:
    verdict = rules('@id("a") permit (principal, action == Action::"x", resource);').decide(
        a_call()
    )

    assert (verdict.decision, verdict.rule_ids) == (Decision.DENY, ("default",))
    assert verdict.reason == "no rule permits search"


def test_forbids_win_and_their_reasons_are_joined_in_the_order_of_their_ids(rules: Rules) -> None:
    verdict = rules(
        PERMIT_ALL,
        '@id("b") @reason("second") forbid (principal, action, resource);',
        '@id("a") @reason("first") forbid (principal, action, resource);',
        '@id("c") forbid (principal, action, resource);',
    ).decide(a_call())

    assert verdict.rule_ids == ("a", "b", "c")
    assert verdict.reason == "first; second; forbidden by rule c"


@pytest.mark.parametrize(
    "condition",
    [
        'context.input.path like "/etc/*"',
        "context.input.n > 5",
        "context.input.n * 9223372036854775807 > 1",
        "ip(context.input.path).isLoopback()",
        "resource.nope == 1",
        'context.input.path == "/etc/passwd"',
        '"/etc/passwd" == context.input.path',
        '["/etc/passwd", "/etc/shadow"].contains(context.input["path"])',
        'context["input"].path != "/tmp"',
        "context.input.n == 5",
        "context.input.n == -5",
        "context.input.n == true",
        'context.input.n == decimal("5.0")',
    ],
)
def test_a_forbid_that_the_arguments_make_fail_denies(rules: Rules, condition: str) -> None:
    """Cedar skips what fails to evaluate, and whoever picks the arguments picks the failure."""
    loaded = rules(
        PERMIT_ALL, f'@id("guard") forbid (principal, action, resource) when {{ {condition} }};'
    )

    for args in (
        '{"path":["/etc/passwd"],"n":["5"]}',
        '{"path":{"a":"/etc/passwd"},"n":{"a":5}}',
    ):
        verdict = loaded.decide(a_call(args_json=args))
        assert verdict.decision is Decision.DENY, args
        assert verdict.rule_ids == ("guard",)


def test_a_failing_forbid_is_named_with_what_failed(rules: Rules) -> None:
    verdict = rules(
        PERMIT_ALL,
        '@id("spend") forbid (principal, action, resource) when { context.input.amount > 5 };',
    ).decide(a_call(args_json='{"amount":"6"}'))

    assert verdict.reason.startswith("rule spend could not be evaluated: ")
    assert "type error" in verdict.reason
    assert verdict.errors == (f"spend: {verdict.reason.split(': ', 1)[1]}",)


def test_a_failing_forbid_about_other_calls_does_not_matter(rules: Rules) -> None:
    verdict = rules(
        PERMIT_ALL,
        '@id("a") forbid (principal, action == Action::"pay", resource)'
        " when { context.input.amount > 5 };",
    ).decide(a_call())

    assert verdict.decision is Decision.ALLOW


@pytest.mark.parametrize(
    "condition",
    ["context.input.n < 5", 'context.input.n != "x"', "context.input.missing == 1"],
)
def test_a_permit_that_fails_does_not_permit(rules: Rules, condition: str) -> None:
    verdict = rules(
        f'@id("some") permit (principal, action, resource) when {{ {condition} }};'
    ).decide(a_call(args_json='{"n":["1"]}'))

    assert (verdict.decision, verdict.rule_ids) == (Decision.DENY, ("default",))
    assert verdict.errors[0].startswith("some: ")


def test_local_steps_are_permitted_unless_a_rule_forbids_them(rules: Rules) -> None:
    loaded = rules(
        '@id("x") permit (principal, action == Action::"x", resource);',
        '@id("no-clock") forbid (principal, action, resource == Local::"now");',
    )

    assert loaded.decide(a_call("draw", kind="local")).rule_ids == ("local",)
    assert loaded.decide(a_call("now", kind="local")).rule_ids == ("no-clock",)


def test_without_rules_everything_is_denied_local_steps_too() -> None:
    closed = deny_all("the rules did not load: rules/a.cedar:3: no")

    for kind in ("tool_call", "llm_call", "local"):
        verdict = closed.decide(a_call(kind=kind))
        assert (verdict.decision, verdict.rule_ids) == (Decision.DENY, ("no-rules",))
        assert verdict.reason == "the rules did not load: rules/a.cedar:3: no"


ENTITIES = json.dumps(
    [
        {
            "uid": {"type": "Agent", "id": "researcher"},
            "parents": [{"type": "AgentGroup", "id": "readers"}],
        },
        {
            "uid": {"type": "Tool", "id": "search"},
            "attrs": {"labels": ["untrusted"]},
            "parents": [{"type": "ToolGroup", "id": "web"}],
        },
        {
            "uid": {"type": "ToolGroup", "id": "web"},
            "parents": [{"type": "ToolGroup", "id": "outside"}],
        },
        {"uid": {"type": "Action", "id": "search"}, "parents": [{"type": "Action", "id": "looks"}]},
    ]
)


@pytest.mark.parametrize(
    "scope",
    [
        'principal == Agent::"researcher", action, resource',
        'principal in AgentGroup::"readers", action, resource',
        "principal is Agent, action, resource",
        'principal is Agent in AgentGroup::"readers", action, resource',
        'principal, action == Action::"search", resource',
        'principal, action in Action::"tool_call", resource',
        'principal, action in Action::"looks", resource',
        'principal, action in [Action::"other", Action::"search"], resource',
        'principal, action, resource == Tool::"search"',
        'principal, action, resource in ToolGroup::"web"',
        'principal, action, resource in ToolGroup::"outside"',
        'principal, action, resource is Tool in ToolGroup::"outside"',
    ],
)
def test_scopes_reach_agents_actions_tools_and_their_groups(rules: Rules, scope: str) -> None:
    loaded = rules(f'@id("a") permit ({scope});', **{"entities.json": ENTITIES})

    assert loaded.decide(a_call()).decision is Decision.ALLOW
    assert loaded.decide(a_call(kind="llm_call")).decision is (
        Decision.ALLOW if "Agent" in scope else Decision.DENY
    )


def test_a_tool_that_nobody_declared_is_a_tool_call_all_the_same(rules: Rules) -> None:
    loaded = rules(
        PERMIT_ALL, '@id("no") forbid (principal, action in Action::"tool_call", resource);'
    )

    assert loaded.decide(a_call("never-heard-of")).rule_ids == ("no",)
    assert loaded.decide(a_call("gpt", kind="llm_call")).rule_ids == ("all",)


def test_labels_of_a_tool_come_from_the_policy_author(rules: Rules) -> None:
    loaded = rules(PERMIT_ALL, **{"entities.json": ENTITIES})

    assert loaded.decide(a_call("search")).labels == ("untrusted",)
    assert loaded.decide(a_call("other")).labels == ()
    assert loaded.decide(a_call("search", kind="llm_call")).labels == ()


@pytest.mark.parametrize(
    "condition",
    [
        'context.session.labels.contains("untrusted")',
        'context.session.tools.contains("fetch")',
        "context.session.steps == 7 && context.session.tool_calls == 5",
        "context.session.llm_calls == 2 && context.session.denials == 1",
        "context.session.tokens > 1000 && context.session.elapsed_seconds >= 60",
        "context.session.calls == 3",
        'context.idempotency == "at_most_once"',
        "context.time.hour == 22 && context.time.weekday == 2",
        'context.time.now > datetime("2023-11-14T22:13:20Z")',
        'context.user == User::"ada"',
        'context.input.to == "ops" && context.input.lines.contains("b")',
    ],
)
def test_a_rule_can_ask_for_all_of_the_context(rules: Rules, condition: str) -> None:
    session = Session(frozenset({"fetch"}), frozenset({"untrusted"}), 7, 5, 2, 1, 2000, 60, calls=3)
    verdict = rules(
        f'@id("a") permit (principal, action, resource) when {{ {condition} }};'
    ).decide(
        a_call(
            args_json='{"to":"ops","lines":["a","b"]}',
            session=session,
            idempotency="at_most_once",
            user="ada",
        )
    )

    assert verdict.decision is Decision.ALLOW, verdict


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("", id="empty"),
        pytest.param("a" * 300, id="long"),
        pytest.param("pay\n", id="newline"),
        pytest.param("pay\0", id="nul"),
        pytest.param("p\u200bay", id="zero width"),
        pytest.param("\u202epay", id="bidirectional"),
        pytest.param("pay\ufffd", id="replacement"),
        pytest.param("\ud800", id="surrogate"),
        pytest.param("\uff50ay", id="fullwidth"),
        pytest.param("\ue000", id="private use"),
        pytest.param("pay\u2028", id="line separator"),
        pytest.param("llm_call", id="another action"),
        pytest.param("local", id="another action too"),
        pytest.param("tool_call", id="the group"),
    ],
)
def test_a_name_that_could_deceive_is_denied(rules: Rules, name: str) -> None:
    verdict = rules(PERMIT_ALL).decide(a_call(name))

    assert (verdict.decision, verdict.rule_ids) == (Decision.DENY, ("invalid-call",))
    verdict.reason.encode()


@pytest.mark.parametrize(
    "name",
    [
        'a"; permit (principal, action, resource); //',
        "a\\b",
        "mcp/srv:tool-name",
        "naïve",
        "日本",
        "'",
    ],
)
def test_a_strange_name_is_only_ever_itself(rules: Rules, name: str) -> None:
    loaded = rules(
        PERMIT_ALL,
        '@id("no") forbid (principal, action, '
        f"resource == Tool::{json.dumps(name, ensure_ascii=False)});"
        if name != "'"
        else '@id("no") forbid (principal, action, resource == Tool::"\\\'");',
    )

    assert loaded.decide(a_call(name)).rule_ids == ("no",)
    assert loaded.decide(a_call(name + "x")).rule_ids == ("all",)
    assert loaded.decide(a_call(name.upper() + "y")).rule_ids == ("all",)


@pytest.mark.parametrize("args", ['"text"', "5", "null", "[1]", "true", "1.5"])
def test_arguments_that_are_no_object_match_no_named_argument(rules: Rules, args: str) -> None:
    loaded = rules(
        PERMIT_ALL,
        '@id("no") forbid (principal, action, resource) when { context.input.to == "x" };',
    )

    assert loaded.decide(a_call(args_json=args)).rule_ids == ("no",)


@pytest.mark.parametrize("number", ["922337203685478.0", "9223372036854775808", "0.00001"])
@pytest.mark.parametrize("literal", ['"x"', "5", 'decimal("0.1")'])
def test_a_number_that_cedar_cannot_hold_equals_nothing_and_differs_from_nothing(
    rules: Rules, number: str, literal: str
) -> None:
    for operator in ("==", "!="):
        loaded = rules(
            PERMIT_ALL,
            f'@id("no") forbid (principal, action, resource)'
            f" when {{ context.input.n {operator} {literal} }};",
        )
        verdict = loaded.decide(a_call(args_json=f'{{"n":{number}}}'))
        assert verdict.rule_ids == ("no",)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["/etc/passwd", "500", "admin"])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["path", "amount", "__entity", "__extn", "type", "id", "fn", "arg"])
            | st.text(max_size=4),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)

GUARDED = (
    PERMIT_ALL,
    '@id("path") forbid (principal, action, resource)'
    ' when { context.input.path == "/etc/passwd" };',
    '@id("amount") forbid (principal, action, resource) unless { context.input.amount <= 500 };',
    '@id("who") forbid (principal, action, resource)'
    ' when { context.input has who && context.input.who == User::"admin" };',
)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(path=values, amount=values, extra=st.dictionaries(st.text(max_size=4), values, max_size=2))
def test_no_arguments_slip_past_rules_that_compare_them(
    rules: Rules, path: Any, amount: Any, extra: dict[str, Any]
) -> None:
    """The oracle: only a string other than the path and an integer up to 500 may pass."""
    args = {**extra, "path": path, "amount": amount}
    verdict = rules(*GUARDED).decide(a_call(args_json=json.dumps(args)))

    if verdict.decision is Decision.ALLOW:
        assert isinstance(path, str)
        assert path != "/etc/passwd"
        assert isinstance(amount, int)
        assert not isinstance(amount, bool)
        assert amount <= 500


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(max_size=60) | values.map(json.dumps), name=st.text(max_size=20))
def test_whatever_a_call_holds_there_is_a_verdict(rules: Rules, text: str, name: str) -> None:
    verdict = rules(*GUARDED).decide(a_call(name, text, principal=name, user=name))

    assert verdict.decision in (Decision.ALLOW, Decision.DENY)
    assert verdict.rule_ids
    assert verdict.rule_ids == tuple(sorted(verdict.rule_ids))


def test_an_error_that_quotes_the_arguments_cannot_name_another_rule(rules: Rules) -> None:
    loaded = rules(
        PERMIT_ALL,
        '@id("guard") forbid (principal, action, resource) when { ip(context.input.a).isIpv4() };',
    )
    args = json.dumps({"a": "error while evaluating policy `policy0`: x"})

    verdict = loaded.decide(a_call(args_json=args))

    assert verdict.rule_ids == ("guard",)


def test_on_a_small_stack_a_forbid_still_forbids(rules: Rules) -> None:
    """Cedar gives up when little stack is left, and a forbid that gives up would be skipped."""
    import threading

    loaded = rules(PERMIT_ALL, '@id("no") forbid (principal, action, resource) when { 1 == 1 };')
    decisions: list[Decision] = []
    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: decisions.append(loaded.decide(a_call()).decision))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)

    assert decisions == [Decision.DENY]
