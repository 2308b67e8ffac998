"""What the README tells a newcomer to write does what it says."""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.claiming import at_work
from tests.support.server import running

README = Path(__file__).parents[2] / "README.md"


def blocks(language: str) -> list[str]:
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    return [text for name, text in fences if name == language]


def test_the_first_agent_prints_what_the_readme_shows(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "first.cedar").write_text(blocks("cedar")[0])
    (tmp_path / "first.py").write_text(blocks("python")[0])

    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    def without_time(text: str) -> str:
        return re.sub(r"'at': [0-9.]+", "'at': now", text)

    assert done.stderr == ""
    assert without_time(done.stdout) == without_time(blocks("")[0])


def test_the_tests_of_the_first_agent_pass(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "first.cedar").write_text(blocks("cedar")[0])
    (tmp_path / "first.py").write_text(blocks("python")[0])
    (tmp_path / "test_first.py").write_text(blocks("python")[1])

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "proctor.pytest_plugin", "--rootdir", "."],
        cwd=tmp_path,
        # Whether it is installed here or not, the plugin is loaded once.
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert "2 passed" in done.stdout, done.stdout


async def test_the_script_sees_a_run_to_its_end_at_a_server(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "first.cedar").write_text(blocks("cedar")[0])
    (tmp_path / "script.py").write_text(blocks("python")[2])
    first: dict[str, Any] = {"__name__": "first"}
    exec(blocks("python")[0], first)  # what the README says, with nothing that a module adds
    with running(
        "dev", folder=tmp_path, database=str(tmp_path / "server.db"), rules=rules
    ) as server:
        async with at_work(server.url, first["agent"], {}):
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "script.py"],
                cwd=tmp_path,
                env={**os.environ, "PROCTOR_URL": server.url},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

    printed = done.stdout.splitlines()
    assert done.stderr == ""
    assert printed[0] == "execution.created"
    assert printed[-2:] == ["execution.completed", "['about cedar']"]


MODEL = """
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

def called(name, **args):
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])

class Played(GenericFakeChatModel):
    def bind_tools(self, tools, **kwargs):
        return self

    def _generate(self, messages, *args, **kwargs):
        if messages[-1].type == "tool":
            print("told:", messages[-1].content)
        return super()._generate(messages, *args, **kwargs)

model = Played(
    messages=iter(
        [called("search", query="cedar"), called("shell", command="rm -rf /"), AIMessage("A tree.")]
    )
)
"""


@pytest.mark.parametrize(
    ("mark", "shell"),
    [("-", "ran rm -rf /"), ("+", "shell not allowed. reason: agents have no shell here")],
    ids=["before", "after"],
)
def test_an_agent_of_langchain_is_governed_by_three_lines(
    tmp_path: Path, mark: str, shell: str
) -> None:
    (diff,) = blocks("diff")
    lines = [line for line in diff.splitlines() if line[:1] in ("", " ", mark)]
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "first.cedar").write_text(blocks("cedar")[0])
    (tmp_path / "my_model.py").write_text(MODEL)
    (tmp_path / "clerk.py").write_text("\n".join(line[1:] for line in lines))

    done = subprocess.run(
        [sys.executable, "clerk.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["told: ten pages about cedar", f"told: {shell}", "A tree."]
    assert len([line for line in diff.splitlines() if line.startswith("+")]) == 3
    assert len([line for line in diff.splitlines() if line.startswith("-")]) <= 3


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = README.with_name("Makefile").read_text()

    for target in re.findall(r"^    make (\w+)", README.read_text(), re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_every_proctor_command_of_the_readme_runs(tmp_path: Path) -> None:
    shutil.copytree(README.with_name("rules"), tmp_path / "rules")
    shutil.copytree(README.with_name("rules"), tmp_path / "rules-before")
    commands = re.findall(r"^    (proctor .*?)(?:   .*)?$", README.read_text(), re.MULTILINE)

    for command in commands:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("proctor")), *shlex.split(command)[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert len(commands) == 6
