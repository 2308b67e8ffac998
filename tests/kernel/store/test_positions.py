"""The order of commits, which exporters follow: nothing may be below what they have passed."""

import asyncio
from pathlib import Path

import asyncpg
import pytest
from tests.kernel.core.driving import step_of, submit, succeed
from tests.kernel.test_kernel import begun, kernel_on
from tests.support.postgres import Cluster

from proctor_kernel.core.commands import FinishExecution, Returned
from proctor_kernel.core.identity import Json
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Database, Removal
from proctor_kernel.store.postgres import open_postgres
from proctor_kernel.store.sqlite import SQLite


@pytest.fixture
async def url(postgres: Cluster) -> str:
    return await asyncio.to_thread(postgres.new_database)


async def positions_of(database: Database, execution_id: str) -> list[int]:
    log = await database.read(statements.LOG_OF_EXECUTION, execution_id=execution_id)
    return [row["position"] for row in log]


async def test_positions_rise_along_a_run_and_are_settled_once_it_is_recorded(
    database: SQLite, url: str
) -> None:
    server = await open_postgres(url)
    for each in (database, server):
        kernel = kernel_on(each)
        lease = await begun(kernel, "run")
        reply = await kernel.apply("run", submit(lease))
        await kernel.apply("run", succeed(lease, step_of(reply)))
        positions = await positions_of(each, "run")

        assert positions == sorted(positions)
        assert positions[-1] > positions[0]
        assert await each.settled() > positions[-1]
    await server.aclose()


async def test_what_commits_late_is_not_below_what_was_settled(url: str) -> None:
    server = await open_postgres(url)
    slow = await asyncpg.connect(url)
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute(
        "INSERT INTO events (execution_id, event_seq, type, payload, occurred_at, hash)"
        " VALUES ('slow', 1, '', '', 0, '')"
    )
    await begun(kernel_on(server), "quick")
    settled = await server.settled()
    await transaction.commit()
    slow_at = await positions_of(server, "slow")
    quick_at = await positions_of(server, "quick")
    after = await server.settled()
    await slow.close()
    await server.aclose()

    assert slow_at[0] >= settled
    assert slow_at[0] < quick_at[0]
    assert after > quick_at[-1]


async def test_a_restored_database_goes_on_above_the_positions_that_it_came_with(url: str) -> None:
    server = await open_postgres(url)
    await begun(kernel_on(server), "before")
    await server._pool.execute("UPDATE events SET position = position + 1000000000")
    await server.aclose()
    restored = await open_postgres(url)
    await begun(kernel_on(restored), "after")
    before, after = [await positions_of(restored, name) for name in ("before", "after")]
    settled = await restored.settled()
    await restored.aclose()

    assert min(after) > max(before)
    assert settled > max(after)


async def test_positions_are_not_given_twice_when_the_latest_events_were_deleted(
    path: Path,
) -> None:
    opened = SQLite(str(path), "NORMAL")
    kernel = kernel_on(opened)
    lease = await begun(kernel, "run")
    await kernel.apply("run", FinishExecution(lease, Returned(Json("1"))))
    shipped = (await positions_of(opened, "run"))[-1]
    sink = {"name": "otlp", "position": shipped, "execution_id": "run", "event_seq": 9}
    held = {"shipped_to": 0, "holder": "", "held_until": 0, "failing_since": None, "error": ""}
    opened.write([Change(statements.SINKS, [sink | held])])
    opened.write([Removal(statements.EVENTS, ["run"])])
    opened.close()
    again = SQLite(str(path), "NORMAL")
    await begun(kernel_on(again), "next")
    given = await positions_of(again, "next")
    again.close()

    assert min(given) > shipped
