"""`proctor init` and `proctor policy ...` as a rule author uses them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from proctor_kernel.cli import app
from proctor_policy import fmt
from proctor_policy.lexer import split


def proctor(*arguments: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)


def test_a_rule_authors_session(tmp_path: Path) -> None:
    """Init, edit, misspell, read the error, fix it, test, explain."""
    rules = tmp_path / "rules"
    begun = proctor("init", rules)
    checked = proctor("policy", "check", rules)
    file = rules / "rules.cedar"
    good = file.read_text()
    file.write_text(good.replace('@reason("', '@raeson("', 1))
    misspelt = proctor("policy", "check", rules)
    file.write_text(good)
    tested = proctor("policy", "test", rules, "--coverage", "--junit", tmp_path / "out.xml")
    explained = proctor(
        "policy", "explain", rules, "--agent", "support", "--tool", "send_mail",
        "--args", '{"to":"ada@example.com"}', "--session", '{"labels":["untrusted"]}',
    )  # fmt: skip

    assert begun.exit_code == checked.exit_code == tested.exit_code == explained.exit_code == 0
    assert "5 policies" in checked.stdout
    assert misspelt.exit_code == 1
    assert "rules.cedar:" in misspelt.output
    assert "unknown annotation 'raeson'; did you mean 'reason'?" in misspelt.output
    assert "6 passed, 0 failed" in tested.stdout
    assert "5 of 5 rules decided something (100 %)" in tested.stdout
    assert 'tests="6" failures="0"' in (tmp_path / "out.xml").read_text()
    assert "deny: this run has read untrusted content" in explained.stdout
    assert "nothing lifts no-sending-after-untrusted" in explained.stdout


def test_init_does_not_touch_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.cedar").write_text("// mine")

    done = proctor("init", tmp_path)

    assert done.exit_code == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.cedar"]


def test_failing_tests_fail_the_command(tmp_path: Path) -> None:
    proctor("init", tmp_path / "rules")
    (tmp_path / "rules" / "tests" / "more.yaml").write_text(
        "- {name: wrong, tool: search, expect: deny}\n"
    )

    done = proctor("policy", "test", tmp_path / "rules")

    assert done.exit_code == 1
    assert "FAILED" in done.stdout
    assert "more.yaml:1: wrong: search: expected deny, got allow" in done.stdout.replace("\n", "")
    assert "6 passed, 1 failed" in done.stdout


def test_explain_reads_a_call_from_a_program_and_answers_one(tmp_path: Path) -> None:
    proctor("init", tmp_path / "rules")
    call = {"agent": "support", "tool": "send_mail", "args": {"to": "eve@evil.test"}}

    done = proctor("policy", "explain", tmp_path / "rules", "--json", stdin=json.dumps(call))
    told = json.loads(done.stdout)

    assert told["decision"] == "deny"
    assert told["rule_ids"] == ["default"]
    assert told["to_lift"][0] == "a permit must apply to the call"
    assert {rule["id"]: rule["applies"] for rule in told["rules"]}["mail-rate"] is True


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tool", "a", "--model", "b"],
        ["--tool", "a", "--session", "[]"],
        ["--tool", "a", "--session", '{"token": 5}'],
    ],
)
def test_wrong_usage_is_told_apart_from_wrong_rules(tmp_path: Path, arguments: list[str]) -> None:
    proctor("init", tmp_path / "rules")

    assert proctor("policy", "explain", tmp_path / "rules", *arguments).exit_code == 2


def test_diff_shows_what_opens_first_and_fails(tmp_path: Path) -> None:
    for name in ("before", "after"):
        proctor("init", tmp_path / name)
    file = tmp_path / "after" / "rules.cedar"
    file.write_text(
        file.read_text().replace('labels.contains("untrusted")', 'labels.contains("other")')
        + '@id("no-search") forbid (principal, action == Action::"search", resource);\n'
    )

    done = proctor("policy", "diff", tmp_path / "before", tmp_path / "after")
    same = proctor("policy", "diff", tmp_path / "before", tmp_path / "before")
    told = json.loads(
        proctor("policy", "diff", tmp_path / "before", tmp_path / "after", "--json").stdout
    )

    assert done.exit_code == 1
    assert done.stdout.startswith("OPENS")
    assert "send_mail: deny (no-sending-after-untrusted) -> allow" in done.stdout
    assert (same.exit_code, same.stdout.strip()) == (0, "0 verdicts change")
    assert [change["opens"] for change in told][:2] == [True, True]
    assert told[-1]["opens"] is False


UGLY = """// about mail
@id("a")   permit(principal,action==Action::"x",resource)
when{context.input.n>1&&true // why
};   // after

// last words
"""


def test_fmt_keeps_comments_and_meaning_and_is_stable() -> None:
    once = fmt.formatted(UGLY)

    assert fmt.formatted(once) == once
    for comment in ("// about mail", "// why", "// after", "// last words"):
        assert comment in once
    assert [token.text for each in split(once) for token in each.tokens] == [
        token.text for each in split(UGLY) for token in each.tokens
    ]


def test_fmt_changes_files_or_only_says_so(tmp_path: Path) -> None:
    file = tmp_path / "a.cedar"
    file.write_text(UGLY)

    would = proctor("policy", "fmt", "--check", tmp_path)
    untouched = file.read_text()
    did = proctor("policy", "fmt", tmp_path)
    again = proctor("policy", "fmt", "--check", tmp_path)
    (tmp_path / "b.cedar").write_text("permit (")
    broken = proctor("policy", "fmt", tmp_path)

    assert (would.exit_code, did.exit_code, again.exit_code, broken.exit_code) == (1, 0, 0, 1)
    assert untouched == UGLY
    assert file.read_text() == fmt.formatted(UGLY)
    assert "b.cedar:1: " in broken.output


def test_the_command_is_installed() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("proctor")), "--help"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "policy" in done.stdout
