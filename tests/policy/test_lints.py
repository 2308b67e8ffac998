"""What Cedar lets pass and we do not."""

import json
from pathlib import Path

import pytest
from tests.policy.conftest import Write

from proctor_policy.load import load
from proctor_policy.problem import RulesInvalid

PERMIT = '@id("all") permit (principal, action, resource);\n'


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(
            'when { context.input.x in ["a", "b"] }',
            "rules.cedar:3: `in [...]` is about entities, and fails on texts and numbers; "
            'write ["a", "b"].contains(context.input.x)',
            id="in a list",
        ),
        pytest.param(
            'when { context.facts.contains("extrenal") }',
            "rules.cedar:3: unknown fact 'extrenal'; did you mean 'external'?",
            id="fact",
        ),
        pytest.param(
            'when { context.input.x == "a\u200bb" }', "invisible or look-alike", id="zero width"
        ),
        pytest.param(
            'when { context.input.x == "\\u{202e}a" }', "invisible or look-alike", id="escaped bidi"
        ),
        pytest.param('when { context.input.x == "ｐay" }', "look-alike", id="fullwidth"),  # noqa: RUF001
    ],
)
def test_what_cannot_be_meant_is_refused(write: Write, rule: str, expected: str) -> None:
    folder = write(
        PERMIT + f'@id("a") forbid (principal, action, resource)\n{rule};',
        **{"facts.toml": '[external]\nargument = "x"\nmatches = "a"\n'},
    )

    with pytest.raises(RulesInvalid) as caught:
        load(folder)

    assert expected in str(caught.value.problems[0])


def warnings(folder: Path) -> list[str]:
    return [str(each).split("rules.cedar:", 1)[1] for each in load(folder).warnings]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param(
            '@id("a") forbid (principal, action, resource) when { false };',
            "2: rule a never matches: when { false }",
            id="never",
        ),
        pytest.param(
            '@id("a") forbid (principal, action, resource) unless { true };',
            "2: rule a never matches: unless { true }",
            id="never unless",
        ),
        pytest.param(
            '@id("a") permit (principal, action == Action::"x", resource) when { true };',
            "2: rule a always matches: when { true }",
            id="always",
        ),
        pytest.param(
            '@id("a") forbid (principal, action == Action::"x", resource == Tool::"y");',
            "2: rule a never matches: 'x' is not done to Tool::'y'",
            id="another tool",
        ),
        pytest.param(
            '@id("a") forbid (principal, action == Action::"llm_call", resource == Tool::"y");',
            "2: rule a never matches: 'llm_call' is not done to Tool::'y'",
            id="another kind",
        ),
        pytest.param(
            '@id("a") permit (principal,action,\nresource);',
            "2: rule a says the same as all; that is",
            id="duplicate",
        ),
        pytest.param(
            '@id("a") permit (principal, action == Action::"x", resource);\n'
            '@id("b") forbid (principal, action == Action::"x", resource);',
            "2: rule a never permits anything: b forbids all of it",
            id="shadowed",
        ),
        pytest.param(
            '@id("a") forbid (principal, action, resource)'
            ' when { context.session.labels.contains("untrustd") };',
            "2: unknown label 'untrustd'; did you mean 'untrusted'?",
            id="label",
        ),
    ],
)
def test_what_is_doubtful_is_a_warning(write: Write, rules: str, expected: str) -> None:
    folder = write(
        PERMIT + rules,
        **{"facts.toml": '[f]\nargument = "x"\nmatches = "a"\nlabel = "untrusted"\n'},
    )

    assert any(each.startswith(expected) for each in warnings(folder)), warnings(folder)


def test_the_rules_that_we_ship_have_no_warnings() -> None:
    for folder in ("rules", "policy/proctor_policy/starter"):
        assert load(Path(__file__).parents[2] / folder).warnings == ()


TOOL = '{"tools": [{"name": "search", "inputSchema": {"type": "object", "properties": {}}}]}'
ENTITY = '[{"uid": {"type": "Tool", "id": "announce"}}]'


@pytest.mark.parametrize(
    ("name", "files", "expected"),
    [
        ("serach", {"tools/t.json": TOOL}, "unknown tool 'serach'; did you mean 'search'?"),
        ("other", {"tools/t.json": TOOL}, "unknown tool 'other'; declare it in entities.json"),
        ("annonce", {"entities.json": ENTITY}, "unknown tool 'annonce'; did you mean 'announce'?"),
        ("announce", {"tools/t.json": TOOL, "entities.json": ENTITY}, None),
        ("other", {"entities.json": ENTITY}, None),
        ("other", {}, None),
    ],
)
def test_a_tool_that_nobody_knows_is_refused(
    write: Write, name: str, files: dict[str, str], expected: str | None
) -> None:
    folder = write(
        PERMIT + f'@id("a") forbid (principal, action == Action::"{name}", resource);', **files
    )
    if expected is None:
        load(folder)
        return

    with pytest.raises(RulesInvalid) as caught:
        load(folder)

    assert expected in str(caught.value.problems[0])


def test_an_entity_type_that_is_nearly_ours_is_refused(write: Write) -> None:
    entities = [{"uid": {"type": kind, "id": "a"}} for kind in ("Tol", "X")]
    folder = write(PERMIT, **{"entities.json": json.dumps(entities)})

    with pytest.raises(RulesInvalid) as caught:
        load(folder)

    assert [each.message for each in caught.value.problems] == [
        "unknown entity type 'Tol'; did you mean 'Tool'?"
    ]


def test_a_misspelt_tool_in_a_fact_is_refused(write: Write) -> None:
    fact = '[f]\ntools = ["annonce"]\nargument = "x"\nmatches = "a"\n'
    folder = write(PERMIT, **{"entities.json": ENTITY, "facts.toml": fact})

    with pytest.raises(RulesInvalid, match="fact 'f': unknown tool 'annonce'; did you mean"):
        load(folder)
