"""Rules and databases for whole runs: real files, a real kernel, no server."""

from collections.abc import Callable
from pathlib import Path

import pytest

PERMIT_ALL = '@id("all")\npermit (principal, action, resource);\n'


@pytest.fixture
def rules(tmp_path: Path) -> Callable[..., Path]:
    """Write a rules folder; with no text, one that permits everything."""

    def write(*policies: str) -> Path:
        folder = tmp_path / "rules"
        folder.mkdir(exist_ok=True)
        (folder / "rules.cedar").write_text("\n".join(policies or (PERMIT_ALL,)))
        return folder

    return write


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A place for a database file."""
    return tmp_path / "proctor.db"
