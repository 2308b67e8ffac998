"""A server that asks for tokens, on SQLite, shared by the tests of a module."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.support.server import TOKEN, Server, running

RULES = """
@id("all") permit (principal, action, resource);
@id("ask") @gate("approval") @approvers("finance") @reason("a person has to look")
forbid (principal, action == Action::"pay", resource);
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.cedar").write_text(RULES)
    return folder


@pytest.fixture(scope="module")
def server(rules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with running("serve", folder=folder, database=str(folder / "p.db"), rules=rules) as started:
        yield started


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    """A client with every scope."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=20) as client:
        yield client
