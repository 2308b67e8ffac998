"""A slice gives the verdict of the whole set, errors included."""

import json
from collections.abc import Callable
from typing import Any

import cedarpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.policy.conftest import a_call

from proctor_policy.call import as_record, context_of, given_to, subject_of
from proctor_policy.ruleset import RuleSet

NAMES = ["a", "b", "c"]
ENTITIES = [
    {"uid": {"type": "Tool", "id": "a"}, "attrs": {}, "parents": [{"type": "TG", "id": "g"}]},
    {"uid": {"type": "TG", "id": "g"}, "attrs": {}, "parents": [{"type": "TG", "id": "h"}]},
    {"uid": {"type": "Agent", "id": "a"}, "attrs": {}, "parents": [{"type": "AG", "id": "g"}]},
    {"uid": {"type": "Action", "id": "b"}, "attrs": {}, "parents": [{"type": "Action", "id": "x"}]},
]


def constraints(variable: str, entity: str, group: str) -> st.SearchStrategy[str]:
    name = st.sampled_from(NAMES)
    options = [
        st.just(variable),
        name.map(lambda each: f'{variable} == {entity}::"{each}"'),
        st.sampled_from(["g", "h"]).map(lambda each: f'{variable} in {group}::"{each}"'),
        name.map(lambda each: f'{variable} in {entity}::"{each}"'),
    ]
    if variable == "action":
        options = [
            st.just(variable),
            name.map(lambda each: f'action == Action::"{each}"'),
            st.sampled_from(["x", "tool_call", "local", "llm_call"]).map(
                lambda each: f'action in Action::"{each}"'
            ),
            st.lists(name, min_size=1, max_size=2).map(
                lambda each: "action in [" + ", ".join(f'Action::"{n}"' for n in each) + "]"
            ),
        ]
    else:
        options.append(st.just(f"{variable} is {entity}"))
        options.append(st.just(f'{variable} is {entity} in {group}::"g"'))
    return st.one_of(options)


policies = st.tuples(
    st.sampled_from(["permit", "forbid"]),
    constraints("principal", "Agent", "AG"),
    constraints("action", "Action", "Action"),
    constraints("resource", "Tool", "TG"),
    st.sampled_from(["", " when { context.input.n > 1 }", ' unless { context.input.s like "x*" }']),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    chosen=st.lists(policies, min_size=1, max_size=8),
    agent=st.sampled_from(NAMES),
    tool=st.sampled_from(NAMES),
    kind=st.sampled_from(["tool_call", "llm_call", "local"]),
    args=st.sampled_from(['{"n":5,"s":"xy"}', '{"n":0,"s":"y"}', '{"n":"5"}', "{}"]),
)
def test_a_slice_and_the_whole_set_agree(
    rules: Callable[..., RuleSet],
    chosen: list[Any],
    agent: str,
    tool: str,
    kind: str,
    args: str,
) -> None:
    texts = [
        f'@id("p{number}") {effect} ({principal}, {action}, {resource}){condition};'
        for number, (effect, principal, action, resource, condition) in enumerate(chosen)
    ]
    loaded = rules(*texts, **{"entities.json": json.dumps(ENTITIES)})
    call = a_call(tool, args, principal=agent, kind=kind)
    verdict = loaded.decide(call)
    subject = subject_of(call)
    store = loaded._entities.with_subject(subject)
    ids = [*(f"p{number}" for number in range(len(texts))), "local"]
    whole = cedarpy.is_authorized(
        {
            "principal": {"type": subject.principal[0], "id": subject.principal[1]},
            "action": {"type": subject.action[0], "id": subject.action[1]},
            "resource": {"type": subject.resource[0], "id": subject.resource[1]},
            "context": context_of(call, as_record(given_to(call)), ()),
        },
        "\n".join(
            [*texts, '@id("local") permit (principal, action == Action::"local", resource);']
        ),
        store,
    )

    failed = sorted(
        {ids[int(error.split("`")[1].removeprefix("policy"))] for error in whole.diagnostics.errors}
    )
    assert sorted({error.split(":")[0] for error in verdict.errors}) == failed
    broken = [each for each in failed if texts[int(each[1:])].split()[1] == "forbid"]
    if broken:
        assert list(verdict.rule_ids) == broken
    else:
        reasons = [int(each.removeprefix("policy")) for each in whole.diagnostics.reasons]
        decided = sorted(ids[each] for each in reasons)
        assert list(verdict.rule_ids) == (decided or ["default"])
        assert (verdict.decision == "allow") == whole.allowed
