"""The derived schema: what MCP servers publish is taken, and misspellings are found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cedarpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp import Client
from mcp.server.mcpserver import MCPServer
from tests.policy.conftest import Write, a_call

from proctor_policy import schema, tooltypes, values
from proctor_policy.load import load, schema_of
from proctor_policy.problem import Problem, RulesInvalid
from proctor_policy.ruleset import RuleSet
from proctor_policy.tooltypes import Open, Record, Scalar, SetOf

PAY = {
    "name": "pay",
    "inputSchema": {
        "type": "object",
        "properties": {
            "to": {"type": "string"},
            "amount": {"type": "number"},
            "count": {"type": "integer"},
            "urgent": {"type": "boolean"},
            "lines": {"type": "array", "items": {"type": "string"}},
            "party": {"type": "object", "properties": {"name": {"type": "string"}}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "extra": {},
        },
        "required": ["to", "amount", "note", "lines", "party"],
    },
}
PERMIT = '@id("all") permit (principal, action, resource);\n'


def tools(*listed: Any) -> str:
    return json.dumps({"tools": list(listed)})


def problems(folder: Path) -> list[str]:
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    return [str(each).replace(str(folder), "rules") for each in caught.value.problems]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "string"}, Scalar("string")),
        ({"type": ["string", "null"]}, Scalar("string")),
        ({"type": ["string", "integer"]}, Open("it may be of several types")),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, Scalar("long")),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, Open("it may be of several types")),
        ({"enum": ["a", "b"]}, Scalar("string")),
        ({"enum": ["a", 1]}, Open("its values are of several types")),
        ({"const": 5}, Scalar("long")),
        ({"$ref": "#/$defs/N"}, Scalar("decimal")),
        ({"$ref": "#/$defs/Loop"}, Open("its references go in circles")),
        ({"$ref": "https://elsewhere"}, Open("there is no schema")),
        ({"type": "array", "items": {"type": "integer"}}, SetOf(Scalar("long"))),
        ({"type": "array"}, Open("its elements have no schema")),
        ({}, Open("it has no type")),
        (True, Open("there is no schema")),
        (
            {"type": "object", "properties": {"a-b": {"type": "string"}}, "required": ["a-b"]},
            Record({"a-b": Scalar("string")}, frozenset({"a-b"}), closed=True),
        ),
        ({"type": "object"}, Record({}, frozenset(), closed=False)),
        ({"allOf": [{"type": "string"}]}, Scalar("string")),
    ],
    ids=repr,
)
def test_json_schema_becomes_types_or_is_left_open(given: Any, expected: tooltypes.Type) -> None:
    root = {"$defs": {"N": {"type": "number"}, "Loop": {"$ref": "#/$defs/Loop"}}}

    assert tooltypes.type_of_schema(given, root) == expected


schemas = st.recursive(
    st.sampled_from([{"type": "string"}, {"type": "number"}, {}, {"$ref": "#"}, {"enum": [1]}]),
    lambda inner: st.one_of(
        inner.map(lambda each: {"type": "array", "items": each}),
        st.dictionaries(st.text(max_size=5), inner, max_size=3).map(
            lambda each: {"type": "object", "properties": each, "required": list(each)[:1]}
        ),
        st.lists(inner, max_size=2).map(lambda each: {"anyOf": each}),
        inner.map(lambda each: {"$defs": {"x": each}, "$ref": "#/$defs/x"}),
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=8), schemas, max_size=3))
def test_whatever_a_server_publishes_makes_a_schema_that_cedar_takes(given: Any) -> None:
    found: list[Problem] = []
    text = tools(*({"name": name, "inputSchema": each} for name, each in given.items()))

    types = tooltypes.read("t.json", text, found)
    cedarpy.Schema.from_str(schema.text_of(tooltypes.gather(types)))

    assert found == []


async def test_the_tools_of_a_real_server_are_typed() -> None:
    server = MCPServer("shop")

    @server.tool()
    def buy(what: str, count: int = 1, price: float | None = None) -> str:
        return what

    async with Client(server) as session:
        listed = [each.model_dump(by_alias=True) for each in (await session.list_tools()).tools]
    found: list[Problem] = []
    known = tooltypes.gather(tooltypes.read("t.json", tools(*listed), found))

    assert known.inputs["buy"].fields == {
        "what": Scalar("string"),
        "count": Scalar("long"),
        "price": Scalar("decimal"),
    }
    assert known.notes == ()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        pytest.param(
            'when { context.input.amuont.lessThan(decimal("1.0")) }',
            "rules/rules.cedar:3: 'pay' has no 'amuont'; did you mean 'amount'?",
            id="argument",
        ),
        pytest.param(
            "when { context.input has tto }",
            "rules/rules.cedar:3: 'pay' has no 'tto'; did you mean 'to'?",
            id="inside has",
        ),
        pytest.param(
            'when { context.input.party.nam == "x" }',
            "rules/rules.cedar:3: 'pay'.party has no 'nam'; did you mean 'name'?",
            id="nested",
        ),
        pytest.param(
            'unless { context.origins.too.contains("input") }',
            "rules/rules.cedar:3: 'pay' has no 'too'; did you mean 'to'?",
            id="origins",
        ),
        pytest.param(
            'when { context.session.lables.contains("x") }',
            "rules/rules.cedar:3: context.session has no 'lables'; did you mean 'labels'?",
            id="session",
        ),
        pytest.param(
            "when { context.time.hours > 5 }",
            "rules/rules.cedar:3: context.time has no 'hours'; did you mean 'hour'?",
            id="time",
        ),
        pytest.param(
            'when { context.inputs.to == "x" }',
            "rules/rules.cedar:3: the context has no 'inputs'; did you mean 'input'?",
            id="context",
        ),
        pytest.param(
            'when { context has "nope" }',
            "rules/rules.cedar:3: the context has no 'nope'",
            id="has on the context",
        ),
        pytest.param(
            "when { context.input.to > 5 }",
            "rules/rules.cedar:2: unexpected type: expected Long but saw String",
            id="type",
        ),
        pytest.param(
            "when { context.input.amount > 5 }",
            "rules/rules.cedar:2: unexpected type: expected Long but saw decimal",
            id="decimal compared as a number",
        ),
        pytest.param(
            "when { context.input.to == 5 }",
            "rules/rules.cedar:2: the types Long and String are not compatible",
            id="equal to another type",
        ),
    ],
)
def test_a_rule_that_cannot_be_right_is_refused_with_the_nearest_name(
    write: Write, rule: str, expected: str
) -> None:
    folder = write(
        f'@id("a")\nforbid (principal, action == Action::"pay", resource)\n{rule};',
        **{"tools/shop.json": tools(PAY)},
    )
    folder = write(
        PERMIT + f'@id("a") forbid (principal, action == Action::"pay", resource)\n{rule};',
        **{"tools/shop.json": tools(PAY)},
    )

    assert problems(folder)[0].startswith(expected)


@pytest.mark.parametrize(
    "rule",
    [
        'when { context.input.to == "x" && context.input.party has name }',
        'when { context.input.amount.greaterThan(decimal("5.0")) }',
        'when { context.input.lines.contains("x") }',
        'when { context.input has note && context.input.note like "*x*" }',
        'when { context.input has extra && context.input.extra == "left open" }',
        'when { principal in AgentGroup::"g" || resource.labels.contains("l") }',
        'when { context has user && context.user == User::"u" }',
        'unless { context.origins.to.contains("input") }',
        'when { context.idempotency == "at_most_once" && context.time.hour < 8 }',
    ],
)
def test_a_rule_that_is_right_is_taken(write: Write, rule: str) -> None:
    load(
        write(
            PERMIT + f'@id("a") forbid (principal, action == Action::"pay", resource) {rule};',
            **{"tools/shop.json": tools(PAY)},
        )
    )


def test_an_optional_argument_that_is_not_asked_for_first_is_a_warning(write: Write) -> None:
    rules = load(
        write(
            PERMIT + '@id("a") forbid (principal, action == Action::"pay", resource)'
            " when { context.input.count > 5 };",
            **{"tools/shop.json": tools(PAY)},
        )
    )

    assert "ask with `has` first" in str(rules.warnings[0])


@pytest.mark.parametrize("name", ["fs/read-file", "a.b", "日本", 'quo"te', "in", "a\\b", "a b"])
def test_tools_may_be_called_anything(write: Write, name: str) -> None:
    quoted = json.dumps(name, ensure_ascii=False)
    rules = load(
        write(
            PERMIT + f'@id("a") forbid (principal, action == Action::{quoted}, resource)'
            ' when { context.input.to == "x" };',
            **{"tools/t.json": tools({**PAY, "name": name})},
        )
    )

    assert rules.decide(a_call(name, '{"to":"x"}')).rule_ids == ("a",)


def test_a_tool_without_a_schema_stays_open(write: Write) -> None:
    rules = load(
        write(
            PERMIT + '@id("a") forbid (principal, action == Action::"x", resource)'
            " when { context.input.anything > 5 };",
            **{"tools/t.json": tools({"name": "x"}, PAY)},
        )
    )

    assert [str(note) for note in rules.tools.notes] == [
        "pay: extra: left open, it has no type",
        "x: the arguments: left open, there is no schema",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not JSON"),
        ("{}", "no list of tools"),
        ('{"tools":[{}]}', "tool 1 has no name"),
        ('{"tools":[{"name":"a"},{"name":"a"}]}', "tool 'a' is there twice"),
    ],
)
def test_a_tools_file_that_is_wrong_is_reported(write: Write, text: str, expected: str) -> None:
    (problem,) = problems(write(PERMIT, **{"tools/t.json": text}))

    assert problem.startswith("rules/tools/t.json")
    assert expected in problem


def test_a_schema_of_ones_own_adds_to_the_derived_one(write: Write) -> None:
    more = 'entity Region;\naction "deploy" appliesTo { principal: [Agent], resource: [Tool] };\n'
    rules = load(write(PERMIT, **{"schema.cedarschema": more, "tools/t.json": tools(PAY)}))
    (problem,) = problems(write(PERMIT, **{"schema.cedarschema": "entity ;"}))

    assert more in schema_of(rules)
    assert 'action "pay" in ["tool_call"]' in schema_of(rules)
    assert problem.startswith("rules/schema.cedarschema: ")


@pytest.mark.parametrize(
    ("args", "decision"),
    [
        ('{"amount":600}', "deny"),
        ('{"amount":600.0}', "deny"),
        ('{"amount":400}', "allow"),
        ('{"amount":400.25}', "allow"),
        ('{"amount":"400"}', "deny"),
        ('{"amount":400.000001}', "deny"),
        ('{"amount":400,"count":5.0}', "allow"),
        ('{"amount":400,"count":14380.0}', "deny"),
        ('{"amount":400,"count":5.5}', "deny"),
    ],
)
def test_numbers_become_what_their_schema_says(
    rules: Callable[..., RuleSet], args: str, decision: str
) -> None:
    loaded = rules(
        PERMIT,
        '@id("much") forbid (principal, action == Action::"pay", resource)'
        ' when { context.input.amount.greaterThan(decimal("500.0")) };',
        '@id("many") forbid (principal, action == Action::"pay", resource)'
        " when { context.input has count && context.input.count > 10 };",
        **{"tools/t.json": tools(PAY)},
    )

    assert loaded.decide(a_call("pay", args)).decision == decision


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_coercion_never_changes_a_number(number: float) -> None:
    parsed = values.parse(json.dumps(number), "it")
    for kind in ("long", "decimal"):
        cedar = values.to_cedar(tooltypes.coerced(parsed, Scalar(kind)), "it")
        plain = cedar["__extn"]["arg"] if isinstance(cedar, dict) else cedar
        assert float(plain) == float(number)


def test_what_agents_publish_changes_no_verdict(write: Write) -> None:
    """A verdict follows from the files, which its hash names."""
    folder = write(
        PERMIT + '@id("much") forbid (principal, action == Action::"pay", resource)'
        ' when { context.input.amount.greaterThan(decimal("500.0")) };'
    )
    published = {"pay": PAY["inputSchema"]}
    call = a_call("pay", '{"amount":400}')

    with_them, without = load(folder, published), load(folder)

    assert with_them.hash == without.hash
    assert with_them.decide(call).rule_ids == without.decide(call).rule_ids == ("much",)
