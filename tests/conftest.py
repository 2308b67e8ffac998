"""What tests of several modules share: a PostgreSQL, started once."""

from collections.abc import Iterator

import pytest
from tests.support.postgres import Cluster, cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    with cluster() as running:
        yield running
