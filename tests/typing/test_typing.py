"""What type checkers tell users of the SDK: types that are kept, mistakes that are found."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent


def test_types_reach_the_users_of_the_sdk_and_their_mistakes_are_found() -> None:
    files = sorted(map(str, FOLDER.glob("typed_*.py")))

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", *files],
        cwd=FOLDER.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.startswith("Success: no issues found"), done.stdout + done.stderr
    assert len(files) == 3
