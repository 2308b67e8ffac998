"""A process that is killed between any two writes of a run loses and doubles nothing."""

import asyncio
import collections
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from proctor_kernel.audit.verify import verify

VICTIM = Path(__file__).with_name("victim.py")
KILLED = -9
AT_ONCE = 2
WRITES_MAX = 60


def start(folder: Path, kill_at: int) -> int:
    done = subprocess.run(
        [sys.executable, str(VICTIM), str(folder), str(kill_at)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, KILLED), done.stderr
    return done.returncode


def prepared(folder: Path) -> Path:
    (folder / "rules").mkdir(parents=True)
    (folder / "rules" / "all.cedar").write_text('@id("all") permit (principal, action, resource);')
    return folder


def lines(folder: Path, file: str) -> list[list[str]]:
    path = folder / file
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def check(folder: Path) -> None:
    """Check what must hold once the run has come to its end."""
    report = asyncio.run(verify(str(folder / "proctor.db")))
    with sqlite3.connect(folder / "proctor.db") as reading:
        runs = dict(reading.execute("SELECT id, status FROM executions").fetchall())
        steps = reading.execute(
            "SELECT execution_id, proposed_seq, status FROM steps ORDER BY 1, 2"
        ).fetchall()
    reading.close()
    statuses: dict[str, list[str]] = collections.defaultdict(list)
    for execution_id, _, status in steps:
        statuses[execution_id].append(status)
    paid = collections.Counter(
        (execution_id, amount)
        for execution_id, tool, amount in lines(folder, "ran")
        if tool == "pay"
    )

    assert report.findings == ()
    assert set(runs.values()) == {"completed"}, "a run is stuck"
    assert not [each for each in paid.values() if each > 1], "an at_most_once body ran twice"
    for execution_id, number in lines(folder, "acknowledged"):
        assert statuses[execution_id][int(number)] == "succeeded", "an acknowledged step is lost"
    for execution_id in runs:
        assert len(statuses[execution_id]) == 5
        assert set(statuses[execution_id]) <= {"succeeded", "failed"}


def killed_at(folder: Path, kill_at: int) -> bool:
    prepared(folder)
    killed = start(folder, kill_at) == KILLED
    if killed:
        assert start(folder, 0) == 0
    check(folder)
    return killed


def test_sigkill_between_any_two_writes_loses_and_doubles_nothing(tmp_path: Path) -> None:
    killed: dict[int, bool] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for first in range(1, WRITES_MAX, 8):
            numbers = range(first, first + 8)
            outcomes = pool.map(lambda n: killed_at(tmp_path / f"at-{n}", n), numbers)
            killed.update(zip(numbers, outcomes, strict=True))
            if not any(killed[number] for number in numbers):
                break

    reached = [number for number, was_killed in killed.items() if was_killed]
    assert len(reached) >= 24, "the run has at least a dozen commits to die at"
    assert reached == list(range(1, len(reached) + 1))
    assert not killed[max(killed)], "every write was tried, up to the end of the run"


def test_a_process_that_dies_again_and_again_gets_there_in_the_end(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "again")
    start(folder, 16)
    deaths = 0
    # Late enough that each life records the outcome of one more step.
    while start(folder, 12) == KILLED:
        deaths += 1
        assert deaths < 20

    assert deaths >= 1
    check(folder)
