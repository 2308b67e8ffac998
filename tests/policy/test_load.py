"""A rules folder into a rule set, wholly or not at all, each problem with file and line."""

import os
from pathlib import Path

import pytest
from tests.policy.conftest import Write, a_call

from proctor_policy.load import load
from proctor_policy.problem import RulesInvalid

PERMIT = '@id("{}") permit (principal, action, resource);\n'


def problems(folder: Path) -> list[str]:
    with pytest.raises(RulesInvalid) as caught:
        load(folder)
    return [str(problem).replace(str(folder), "rules") for problem in caught.value.problems]


def test_policies_are_taken_from_every_folder_below(write: Write) -> None:
    folder = write(
        **{
            "a.cedar": PERMIT.format("a"),
            "team/b.cedar": PERMIT.format("b"),
            "team/deep/c.cedar": PERMIT.format("c"),
            ".hidden/d.cedar": PERMIT.format("d"),
            ".e.cedar": PERMIT.format("e"),
            "tests/f.cedar": PERMIT.format("f"),
            "notes.txt": "not a policy",
        }
    )

    rules = load(folder)

    assert [policy.id for policy in rules.policies] == ["a", "b", "c"]
    assert sorted(rules.files) == ["a.cedar", "team/b.cedar", "team/deep/c.cedar"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "\n\npermit (principal, action, resource);",
            'rules/rules.cedar:3: a policy without an id; put @id("a-name-of-its-own") before it',
            id="no id",
        ),
        pytest.param(
            '@id("a") @resaon("x") permit (principal, action, resource);',
            "rules/rules.cedar:1: unknown annotation 'resaon'; did you mean 'reason'?",
            id="misspelt annotation",
        ),
        pytest.param(
            PERMIT.format("a") + "\n" + PERMIT.format("a"),
            "rules/rules.cedar:3: the id 'a' is taken; it is the policy in rules/rules.cedar:1",
            id="duplicate id",
        ),
        pytest.param(
            PERMIT.format("default"),
            "rules/rules.cedar:1: the id 'default' is taken by a built-in rule; choose another one",
            id="built-in id",
        ),
        pytest.param(
            PERMIT.format("__mine"),
            "rules/rules.cedar:1: the id '__mine' is taken by a built-in rule; choose another one",
            id="reserved id",
        ),
        pytest.param(
            PERMIT.format("a") + '@id("b")\npermit (principal, action, resource)\n',
            "rules/rules.cedar:3: the policy that begins in line 2 does not end; "
            "a policy ends with ';'",
            id="no semicolon",
        ),
        pytest.param(
            '@id("a") permit (principal == ?principal, action, resource);',
            "rules/rules.cedar:1: a template is never linked here; name the entity",
            id="template",
        ),
        pytest.param(
            '@id("a") @id("b") permit (principal, action, resource);',
            "rules/rules.cedar:1: ",
            id="annotation twice",
        ),
        pytest.param(
            PERMIT.format("a") + '\n@id("b") permit (principal, action);',
            "rules/rules.cedar:3: ",
            id="not cedar",
        ),
        pytest.param(
            '@id("a") permit (principal, action, resource) when { context.nope( };',
            "rules/rules.cedar:1: ",
            id="not an expression",
        ),
    ],
)
def test_a_broken_policy_is_reported_with_file_line_and_what_to_do(
    write: Write, text: str, expected: str
) -> None:
    (problem,) = problems(write(text))

    assert problem.startswith(expected)


def test_every_problem_is_reported_at_once(write: Write) -> None:
    folder = write(
        **{
            "a.cedar": "permit (principal, action, resource);\nforbid (principal, action);",
            "b.cedar": PERMIT.format("b") + '"',
            "entities.json": "{",
        }
    )

    assert [problem.split(": ")[0] for problem in problems(folder)] == [
        "rules/a.cedar:1",
        "rules/a.cedar:2",
        "rules/b.cedar:2",
        "rules/entities.json",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("{}", "list of entities", id="not a list"),
        pytest.param('[{"uid": "Tool::x"}]', "entity 1", id="uid as text"),
        pytest.param(
            '[{"uid":{"type":"Tool","id":"a"}},{"uid":{"type":"Tool","id":"a"}}]',
            "twice",
            id="twice",
        ),
        pytest.param(
            '[{"uid":{"type":"Tool","id":"a"},"attrs":{"labels":"x"}}]', "labels", id="labels"
        ),
        pytest.param('[{"uid":{"type":"Tool","id":"a"},"parents":{}}]', "parents", id="parents"),
        pytest.param('[{"uid":{"type":"Tool","id":"a"},"attrs":{"f":1.5}}]', "", id="float"),
        pytest.param(
            '[{"uid":{"type":"G","id":"a"},"parents":[{"type":"G","id":"b"}]},'
            '{"uid":{"type":"G","id":"b"},"parents":[{"type":"G","id":"a"}]}]',
            "cycle",
            id="cycle",
        ),
        pytest.param("[" * 100_000, "JSON", id="deep"),
    ],
)
def test_entities_that_cedar_would_not_take_are_reported(write: Write, text: str, why: str) -> None:
    (problem,) = problems(write(PERMIT.format("a"), **{"entities.json": text}))

    assert problem.startswith("rules/entities.json: ")
    assert why in problem


@pytest.mark.parametrize("state", ["missing", "file", "empty", "no policy", "not utf-8"])
def test_a_folder_without_rules_is_no_rule_set(tmp_path: Path, write: Write, state: str) -> None:
    folder = tmp_path / "rules"
    match state:
        case "file":
            folder.write_text(PERMIT.format("a"))
        case "empty":
            folder.mkdir()
        case "no policy":
            write("// nothing yet\n")
        case "not utf-8":
            write(PERMIT.format("a"))
            (folder / "rules.cedar").write_bytes(b"// one\n// \xff\n")

    (problem,) = problems(folder)

    assert problem.startswith("rules" if state != "not utf-8" else "rules/rules.cedar:2: not UTF-8")


def test_a_byte_order_mark_is_reported(write: Write) -> None:
    (problem,) = problems(write("\ufeff" + PERMIT.format("a")))

    assert "byte order mark" in problem


def test_a_kubernetes_config_map_is_read_once(tmp_path: Path) -> None:
    """Its files are links into a hidden folder that is swapped as a whole."""
    folder = tmp_path / "rules"
    hidden = folder / "..2026_12_01"
    hidden.mkdir(parents=True)
    (hidden / "a.cedar").write_text(PERMIT.format("a"))
    (folder / "..data").symlink_to(hidden.name)
    (folder / "a.cedar").symlink_to("..data/a.cedar")

    assert [policy.id for policy in load(folder).policies] == ["a"]


def test_a_link_that_leads_back_up_does_not_hang(write: Write) -> None:
    folder = write(PERMIT.format("a"))
    os.symlink(folder, folder / "again")

    assert [policy.id for policy in load(folder).policies] == ["a"]


def test_the_hash_names_paths_and_texts(write: Write) -> None:
    first = load(write(PERMIT.format("a"))).hash
    same = load(write(PERMIT.format("a"))).hash
    changed = load(write(PERMIT.format("a") + "// comment\n")).hash
    write(PERMIT.format("a"))
    (write() / "rules.cedar").rename(write() / "moved.cedar")
    moved = load(write()).hash

    assert first == same
    assert len({first, changed, moved}) == 3
    assert len(first) == 64


def test_a_loaded_set_does_not_change_with_its_folder(write: Write) -> None:
    rules = load(write(PERMIT.format("a")))
    write('@id("a") forbid (principal, action, resource);')

    assert rules.decide(a_call()).decision == "allow"
