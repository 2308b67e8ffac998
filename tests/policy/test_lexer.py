"""Cedar text cut into policies, with lines, before the parser may see it."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor_policy.lexer import NESTING_MAX, Unreadable, split


def test_each_policy_is_cut_out_with_its_line() -> None:
    text = (
        '// a comment; with "quotes" {\n'
        "permit (principal, action, resource);\n"
        "\r\n"
        '@id("a;b") @reason("say \\"no\\"; really")\n'
        "forbid (principal, action, resource)\n"
        'when { context.input.x == ";" && [1, 2].contains(1) }; permit(principal,action,resource);'
    )

    fragments = list(split(text))

    assert [fragment.line for fragment in fragments] == [2, 4, 6]
    assert fragments[1].text.startswith('@id("a;b")')
    assert fragments[1].text.endswith("};")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        pytest.param("permit (principal, action, resource)", 1, "does not end", id="no semicolon"),
        pytest.param("\npermit (principal;", 2, "never closed", id="open bracket"),
        pytest.param("permit (principal, action, resource));", 1, "unexpected", id="too many"),
        pytest.param('@id("a', 1, "string that is never closed", id="open string"),
        pytest.param("/* no */ permit", 1, "comments", id="c comment"),
        pytest.param("\n\n§", 3, "unexpected character", id="character"),
        pytest.param("\ufeffpermit", 1, "byte order mark", id="bom"),
        pytest.param("(" * 40, 1, "nest deeper", id="nesting"),
        pytest.param("if " * 40 + ";", 1, "'if'", id="ifs"),
        pytest.param("a " + "&& a " * 1001 + ";", 1, "operators", id="operators"),
    ],
)
def test_what_is_not_a_policy_is_reported_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(Unreadable, match=message) as caught:
        list(split(text))
    assert caught.value.line == line


@given(st.text(alphabet='permit(){}[];"\\/\n @=', max_size=80))
def test_no_text_does_worse_than_being_unreadable(text: str) -> None:
    try:
        fragments = list(split(text))
    except Unreadable:
        return
    assert all(fragment.text.endswith(";") for fragment in fragments)


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param("(" * NESTING_MAX + "true" + ")" * NESTING_MAX, id="brackets"),
        pytest.param("!(" * (NESTING_MAX - 2) + "true" + ")" * (NESTING_MAX - 2), id="negations"),
        pytest.param("if true then true else " * 32 + "true", id="ifs"),
        pytest.param(" && ".join(["true"] * 900), id="terms"),
        pytest.param("[" * 30 + "]" * 30 + " == []", id="sets"),
    ],
)
def test_what_the_bounds_let_through_does_not_kill_the_process(condition: str) -> None:
    """The parser dies of deep nesting, so this runs in a process of its own, on a small stack."""
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from proctor_policy.load import load, RulesInvalid\n"
        "def go():\n"
        "    try:\n"
        "        load(Path(sys.argv[1]))\n"
        "    except RulesInvalid as error:\n"
        "        print(error)\n"
        "threading.stack_size(1 << 20)\n"
        "thread = threading.Thread(target=go); thread.start(); thread.join()\n"
        "print('alive')\n"
    )
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.cedar").write_text(
            f'@id("a") permit (principal, action, resource) when {{ {condition} }};'
        )
        done = subprocess.run(
            [sys.executable, "-c", program, folder], capture_output=True, text=True, check=False
        )

    assert "alive" in done.stdout, (done.returncode, done.stdout, done.stderr)
