"""`make demo` is the first thing that a newcomer runs."""

import subprocess
import sys
from pathlib import Path


def test_the_demo_keeps_its_promises() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the hash chain holds" in done.stdout
    assert "NO  " not in done.stdout
