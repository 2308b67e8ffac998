"""`redact.toml`: which values of calls and runs are masked, and what is wrong with a mask."""

from pathlib import Path
from typing import Any

import pytest

from proctor_policy import masks
from proctor_policy.load import load
from proctor_policy.problem import Problem, RulesInvalid


def masked(value: Any, path: str, replacement: Any = "MASKED") -> Any:
    return masks.apply(value, tuple(path.split(".")), lambda _: replacement)


@pytest.mark.parametrize(
    ("value", "path", "expected"),
    [
        pytest.param({"a": {"b": 1, "c": 2}}, "a.b", {"a": {"b": "MASKED", "c": 2}}, id="nested"),
        pytest.param(
            {"a": [{"b": 1}, {"b": 2}, 3]}, "a.b", {"a": [{"b": "MASKED"}] * 2 + [3]}, id="elements"
        ),
        pytest.param({"a": [1, [2]]}, "a.*", {"a": ["MASKED", ["MASKED"]]}, id="all-of-a-list"),
        pytest.param({"a": 1, "b": {"c": 2}}, "*", {"a": "MASKED", "b": "MASKED"}, id="all"),
        pytest.param("text", "*", "MASKED", id="a-scalar"),
        pytest.param({"a": 1}, "a.b", {"a": 1}, id="not-there"),
        pytest.param({"a": [1, 2]}, "a", {"a": "MASKED"}, id="a-whole-list"),
    ],
)
def test_a_path_names_members_and_a_list_stands_for_its_elements(
    value: Any, path: str, expected: Any
) -> None:
    assert masked(value, path) == expected


def test_what_is_dropped_leaves_no_member_and_keeps_places_in_lists() -> None:
    assert masked({"a": 1, "b": 2}, "a", masks.DROPPED) == {"b": 2}
    assert masked({"a": [{"b": 1}, 5]}, "a.*", masks.DROPPED) == {"a": [{}, None]}


def test_masks_are_for_the_tools_and_agents_they_name() -> None:
    problems: list[Problem] = []
    found = masks.read(
        "redact.toml",
        """
        [[mask]]
        tools = ["send_*"]
        args = ["to.iban"]
        how = "drop"
        [[mask]]
        result = ["*"]
        [[mask]]
        agents = ["support"]
        input = ["email"]
        """,
        problems,
    )

    assert problems == []
    assert found.of("args", "send_money") == ((("to", "iban"), "drop"),)
    assert found.of("args", "read") == ()
    assert found.of("result", "read") == ((("*",), "hash"),)
    assert found.of("input", "support") == ((("email",), "hash"),)
    assert found.of("input", "other") == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "redact.toml:1: not TOML"),
        ("[mask]\nargs=['a']", "mask is one table; write [[mask]]"),
        ("[[mask]]\nargs=['a']\n\n[[mask]]\nargz=['b']", "redact.toml:4: unknown key 'argz'; did"),
        ("[[mask]]\ntools=['a']", "redact.toml:1: it masks nothing"),
        ("[[mask]]\nargs=[]", "args is empty, which would mask nothing"),
        ("[[mask]]\nargs=['a..b']", "'a..b' is no path"),
        ("[[mask]]\nargs=['a']\nhow='hide'", "how is 'hide'; write 'hash' or 'drop'"),
        ("[[mask]]\nargs=['a']\ninput=['b']", "it is about calls and about runs"),
        ("[[mask]]\nagents=['x']\nargs=['a']", "calls are masked by tool"),
        ("[[mask]]\ntools=['x']\ninput=['a']", "runs are masked by agent"),
        ("[other]\n", "unknown table 'other'"),
    ],
)
def test_a_mask_that_is_none_is_refused_with_its_place(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "all.cedar").write_text('@id("all") permit (principal, action, resource);')
    (tmp_path / "redact.toml").write_text(text)

    with pytest.raises(RulesInvalid) as refused:
        load(tmp_path)
    assert said in str(refused.value)


def test_an_edit_of_the_masks_is_another_rule_set(tmp_path: Path) -> None:
    (tmp_path / "all.cedar").write_text('@id("all") permit (principal, action, resource);')
    before = load(tmp_path)
    (tmp_path / "redact.toml").write_text("[[mask]]\nargs = ['a']\n")
    after = load(tmp_path)

    assert before.hash != after.hash
    assert before.masks.of("args", "t") == ()
    assert after.masks.of("args", "t") == ((("a",), "hash"),)
