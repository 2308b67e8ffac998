"""A real SQLite file, opened as the kernel opens it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from proctor_kernel.store.sqlite import SQLite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proctor.db"


@pytest.fixture
def database(path: Path) -> Iterator[SQLite]:
    opened = SQLite(str(path), "NORMAL")
    yield opened
    opened.close()
