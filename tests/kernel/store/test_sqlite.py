"""Opening a database: ours, new, or refused with the file's name and left as it was."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from proctor_kernel.store.database import StoreError
from proctor_kernel.store.sqlite import SQLite


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
def test_the_durability_that_was_chosen_is_the_one_in_force(
    path: Path, synchronous: str, level: int
) -> None:
    database = SQLite(str(path), synchronous)  # type: ignore[arg-type]
    in_force = database._driver.execute("PRAGMA synchronous").fetchone()[0]
    journal = database._driver.execute("PRAGMA journal_mode").fetchone()[0]
    database.close()

    assert in_force == level
    assert journal == "wal"


def test_an_unknown_durability_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="'OFF'"):
        SQLite(str(path), "OFF")  # type: ignore[arg-type]
    assert not path.exists()


def test_a_schema_of_another_version_is_refused(path: Path) -> None:
    SQLite(str(path), "NORMAL").close()
    with sqlite3.connect(path) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.close()

    with pytest.raises(StoreError, match=r"proctor\.db: .*9999.*a newer Proctor"):
        SQLite(str(path), "NORMAL")


def test_a_damaged_file_is_named(path: Path) -> None:
    SQLite(str(path), "NORMAL").close()
    damaged = bytearray(path.read_bytes())
    damaged[100:4000] = b"\xff" * 3900
    path.write_bytes(damaged)

    with pytest.raises(StoreError, match=r"proctor\.db: "):
        SQLite(str(path), "NORMAL")


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()

    SQLite(str(path), "NORMAL").close()

    assert path.stat().st_size > 0


READ_ONLY = """
import os, sys
from proctor_kernel.store.database import StoreError
from proctor_kernel.store.sqlite import SQLite
os.setgid(65534)
os.setuid(65534)
try:
    SQLite(sys.argv[1], "NORMAL")
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody without rights")
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_read_only_database_is_named(what: str) -> None:
    # Not below pytest's own folder, which only its user may enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proctor.db"
        if what == "file":
            SQLite(str(path), "NORMAL").close()
            path.chmod(0o444)
        Path(folder).chmod(0o555)

        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.stdout.startswith(f"{path}: "), done.stderr
    assert "read-only" in done.stdout or "cannot be opened" in done.stdout
