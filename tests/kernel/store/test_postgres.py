"""PostgreSQL beside SQLite: the same schema, one round trip an append, replicas that notice."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from tests.kernel.core.driving import answered, step_of, submit, succeed
from tests.kernel.test_kernel import begun, kernel_on
from tests.support.postgres import Cluster

from proctor.wire.words import Answer, ErrorCode
from proctor_kernel.core.commands import ClaimDispatch, Claimed, Rejected
from proctor_kernel.store import migrate
from proctor_kernel.store.database import Change, Conflict, StoreError
from proctor_kernel.store.postgres import Postgres, open_postgres
from proctor_kernel.store.statements import METADATA


@pytest.fixture
async def url(postgres: Cluster) -> str:
    return await asyncio.to_thread(postgres.new_database)


@pytest.fixture
async def database(url: str) -> AsyncIterator[Postgres]:
    opened = await open_postgres(url)
    yield opened
    await opened.aclose()


class Counted:
    """How many statements were sent to the server, and which."""

    def __init__(self, database: Postgres) -> None:
        self.sent: list[str] = []
        pool: Any = database._pool
        for holder in pool._holders:
            if holder._con is not None:
                holder._con.add_query_logger(lambda record: self.sent.append(record.query))


async def test_a_hot_submit_and_its_outcome_are_one_round_trip_each(database: Postgres) -> None:
    kernel = kernel_on(database, is_alone=False)
    lease = await begun(kernel, "run")
    await kernel.apply("run", succeed(lease, step_of(await kernel.apply("run", submit(lease)))))
    counted = Counted(database)

    reply = answered(await kernel.apply("run", submit(lease, args='{"n":1}')))
    after_submit = len(counted.sent)
    await kernel.apply("run", succeed(lease, step_of(reply)))
    after_outcome = len(counted.sent)
    claimed = await kernel.apply("run", ClaimDispatch(5))
    assert isinstance(claimed, Claimed)
    before_replay = len(counted.sent)
    replayed = answered(await kernel.apply("run", submit(claimed.lease)))

    assert (after_submit, after_outcome) == (1, 2), counted.sent
    assert replayed.decision is Answer.REPLAY
    assert len(counted.sent) - before_replay == 1, counted.sent[before_replay:]


async def test_an_attempt_goes_on_at_another_replica_with_its_counts(url: str) -> None:
    databases = [await open_postgres(url) for _ in range(2)]
    ours, theirs = (kernel_on(database, is_alone=False) for database in databases)
    first = await begun(ours, "run")
    for n in range(4):
        kernel = (ours, theirs)[n % 2]
        reply = await kernel.apply("run", submit(first))
        await (theirs, ours)[n % 2].apply("run", succeed(first, step_of(reply), str(n)))
    claimed = await theirs.apply("run", ClaimDispatch(5))
    assert isinstance(claimed, Claimed)

    replayed = [
        answered(await (ours, theirs)[n % 2].apply("run", submit(claimed.lease))) for n in range(4)
    ]
    at_once = await asyncio.gather(
        *((ours, theirs)[n % 2].apply("run", submit(claimed.lease)) for n in range(6))
    )
    late = await ours.apply("run", submit(first, "late"))
    for database in databases:
        await database.aclose()

    assert [reply.result_json for reply in replayed] == ["0", "1", "2", "3"]
    assert len({step_of(reply) for reply in at_once}) == 6
    assert isinstance(late, Rejected)
    assert late.code is ErrorCode.LEASE_SUPERSEDED


async def test_an_attempt_that_was_taken_over_elsewhere_is_not_even_answered_from_the_record(
    url: str,
) -> None:
    databases = [await open_postgres(url) for _ in range(2)]
    ours, theirs = (kernel_on(database, is_alone=False) for database in databases)
    first = await begun(ours, "run")
    step_id = step_of(await ours.apply("run", submit(first)))
    await ours.apply("run", succeed(first, step_id))
    second = await ours.apply("run", ClaimDispatch(5))
    assert isinstance(second, Claimed)
    third = await theirs.apply("run", ClaimDispatch(5))
    assert isinstance(third, Claimed)

    late = await ours.apply("run", submit(second.lease))
    replayed = answered(await ours.apply("run", submit(third.lease)))
    for database in databases:
        await database.aclose()

    assert isinstance(late, Rejected)
    assert late.code is ErrorCode.LEASE_SUPERSEDED
    assert replayed.decision is Answer.REPLAY


async def test_replicas_that_start_together_make_the_tables_once(url: str) -> None:
    opened = await asyncio.gather(*(open_postgres(url) for _ in range(5)))

    assert len(opened) == 5
    for database in opened:
        await database.aclose()


async def test_a_notice_reaches_every_process_that_listens(url: str) -> None:
    ours, theirs = [await open_postgres(url) for _ in range(2)]
    heard: list[str] = []
    listening = asyncio.Event()
    theirs.listen(heard.append, listening.set)
    await asyncio.wait_for(listening.wait(), 10)
    await ours.notify("news")
    async with asyncio.timeout(10):
        while not heard:
            await asyncio.sleep(0.01)
    await ours.aclose()
    await theirs.aclose()

    assert heard == ["news"]


async def test_what_is_wrong_with_the_address_is_said_without_the_password() -> None:
    with pytest.raises(StoreError) as raised:
        await open_postgres("postgresql://me:hush@127.0.0.1:1/x")

    assert "hush" not in str(raised.value)
    assert "127.0.0.1:1" in str(raised.value)


async def test_a_row_that_is_there_is_a_conflict(database: Postgres) -> None:
    kernel = kernel_on(database, is_alone=False)
    await begun(kernel, "run")
    rows = await database.read(METADATA.tables["events"].select())

    with pytest.raises(Conflict):
        await database.write([Change(METADATA.tables["events"], rows[:1])])


def differences(connection: Connection) -> list[Any]:
    context = MigrationContext.configure(connection)
    return list(compare_metadata(context, METADATA))


def test_the_revisions_make_the_tables_that_the_code_has() -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        migrate.upgrade(connection, "memory")
        revision = migrate.revision_of(connection)
        found = differences(connection)
    engine.dispose()

    assert found == []
    assert revision == migrate.SCHEMA_HEAD


async def test_an_upgraded_postgresql_has_the_tables_that_the_code_has(url: str) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    async with engine.begin() as connection:
        await connection.run_sync(lambda sync: migrate.upgrade(sync, "fresh"))
        found = await connection.run_sync(differences)
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    await engine.dispose()

    assert found == []
    logging.getLogger("alembic").setLevel(logging.CRITICAL)
    with pytest.raises(StoreError, match="a newer Proctor has used this database"):
        await open_postgres(url)
