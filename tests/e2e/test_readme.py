"""What the README tells a newcomer to write does what it says."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

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
