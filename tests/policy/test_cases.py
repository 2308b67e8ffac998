"""Tests of rules: what they show, what they miss, and what is wrong with them."""

from pathlib import Path

import pytest
from tests.policy.conftest import Write

from proctor_policy import cases, junit
from proctor_policy.cases import CasesInvalid
from proctor_policy.load import load

RULES = """
@id("all") permit (principal, action, resource);
@id("twice") @reason("two are enough") forbid (principal, action == Action::"draw", resource)
when { context.session.calls >= 2 };
@id("often") @gate("rate_limit") @limit("1/1m")
forbid (principal, action == Action::"call", resource);
@id("ask") @gate("approval") forbid (principal, action == Action::"pay", resource);
@id("paid") forbid (principal, action == Action::"leave", resource)
when { context.session.tools.contains("pay") };
"""


def problems(folder: Path) -> list[str]:
    return [str(each).split("tests/", 1)[1] for each in cases.failures(folder, load(folder))]


def test_a_case_shows_a_call_or_a_whole_run(write: Write) -> None:
    folder = write(
        RULES,
        **{
            "tests/a.yaml": """
- {name: one, tool: draw, expect: allow, rules: [all], reason: ""}
- name: three
  steps:
    - {tool: draw, expect: allow}
    - {tool: draw, expect: allow}
    - {tool: draw, expect: deny, rules: [twice], reason: two are enough}
- name: limits
  steps:
    - {tool: call, expect: allow}
    - {tool: call, expect: rate_limited, rules: [often]}
    - {tool: call, expect: allow, after: 1m}
- name: a person says yes
  steps:
    - {tool: pay, expect: require_approval, rules: [ask]}
    - {tool: leave, expect: allow}
    - {tool: pay, expect: require_approval, granted: true}
    - {tool: leave, expect: deny}
"""
        },
    )

    assert problems(folder) == []


def test_a_case_that_fails_says_what_it_got_instead(write: Write) -> None:
    folder = write(
        RULES,
        **{
            "tests/a.yaml": """
- {name: one, tool: draw, expect: deny}
- {name: two, tool: draw, expect: allow, rules: [other]}
- name: three
  steps:
    - {tool: draw, expect: allow, reason: because}
    - {tool: draw, expect: allow, shadow: [x]}
"""
        },
    )

    assert problems(folder) == [
        "a.yaml:2: one: draw: expected deny, got allow (all: no reason given)",
        "a.yaml:3: two: draw: expected rules ['other'], got ['all']",
        "a.yaml:6: three: draw: expected the reason 'because', got ''",
        "a.yaml:7: three: draw: expected shadow ['x'], got []",
    ]


def test_rules_that_no_case_made_decide_are_listed(write: Write) -> None:
    folder = write(
        RULES, **{"tests/a.yaml": "- {name: pays, tool: pay, expect: require_approval}\n"}
    )
    rules = load(folder)

    assert cases.uncovered(rules, cases.run(rules, cases.load_cases(folder))) == [
        "all",
        "twice",
        "often",
        "paid",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("- {nam: x}", "a.yaml:1: unknown key 'nam'; did you mean 'name'?", id="key"),
        pytest.param("- {tool: x, expect: allow}", "a.yaml:1: a case without a name", id="name"),
        pytest.param("\n- {name: x, expect: allow}", "a.yaml:2: a call needs one of", id="target"),
        pytest.param(
            "- {name: x, tool: a, local: b, expect: allow}", "a call needs one of", id="two targets"
        ),
        pytest.param("- {name: x, tool: a}", "expect must be one of", id="expect"),
        pytest.param("- {name: x, tool: a, expect: alow}", "not 'alow'", id="misspelt word"),
        pytest.param("- {name: x, steps: []}", "steps must be a list", id="no steps"),
        pytest.param(
            "- {name: x, tool: a, steps: [{tool: a, expect: allow}]}",
            "'tool' belongs to a step",
            id="both",
        ),
        pytest.param("a: b", "a test file is a list of cases", id="mapping"),
        pytest.param("- x: [", "not YAML", id="yaml"),
        pytest.param("- {name: x, tool: a, expect: allow, at: soon}", "is not a time", id="time"),
        pytest.param(
            "- {name: x, tool: a, expect: allow, args: {d: 2026-01-01}}", "not JSON", id="date"
        ),
        pytest.param("- {name: x, tool: a, expect: allow, rules: a}", "must be a list", id="rules"),
        pytest.param(
            "- {name: x, tool: a, expect: allow, session: {token: 5}}", "session must be", id="word"
        ),
    ],
)
def test_a_test_file_that_is_wrong_is_reported_with_its_line(
    write: Write, text: str, expected: str
) -> None:
    folder = write(RULES, **{"tests/a.yaml": text})

    with pytest.raises(CasesInvalid) as caught:
        cases.load_cases(folder)

    assert expected in str(caught.value.problems[0])


def test_results_are_told_to_ci(write: Write) -> None:
    folder = write(
        RULES,
        **{
            "tests/a.yaml": "- {name: a, tool: x, expect: allow}\n"
            "- {name: b, tool: x, expect: deny}"
        },
    )
    rules = load(folder)

    document = junit.document(cases.run(rules, cases.load_cases(folder)))

    assert 'tests="2" failures="1"' in document
    assert 'name="b"' in document
    assert "expected deny, got allow" in document


@pytest.mark.parametrize("folder", ["rules", "policy/proctor_policy/starter"])
def test_the_rules_that_we_ship_pass_their_tests_and_every_rule_has_one(folder: str) -> None:
    root = Path(__file__).parents[2] / folder
    rules = load(root)
    results = cases.run(rules, cases.load_cases(root))

    assert [problem for result in results for problem in result.problems] == []
    assert cases.uncovered(rules, results) == []
