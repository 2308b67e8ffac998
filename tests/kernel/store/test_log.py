"""The log on a real SQLite file: atomic, shared commits, races, and read tables that agree."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.kernel.core.driving import EXECUTION, Run
from tests.kernel.core.test_laws import play, scripts

from proctor.wire.words import Idempotency, Reason, StepKind
from proctor_kernel.core import events
from proctor_kernel.core.events import Event
from proctor_kernel.core.identity import Json
from proctor_kernel.core.state import State
from proctor_kernel.store import rows, statements
from proctor_kernel.store.database import StoreUnavailable
from proctor_kernel.store.log import Log, LogBroken, LostRace
from proctor_kernel.store.sqlite import IN_MEMORY, SQLite

BEGUN: list[Event] = [
    events.ExecutionCreated("researcher", Json("null")),
    events.ExecutionStarted(),
    events.DispatchQueued("d"),
]


def proposed(step_id: str, target: str = "search") -> events.StepProposed:
    return events.StepProposed(
        step_id, StepKind.TOOL_CALL, target, Json("{}"), "h", 0, Idempotency.SAFE_TO_RETRY
    )


async def tables_of(database: SQLite) -> dict[str, list[dict[str, Any]]]:
    return {
        table.name: await database.read(table.select())
        for table in (statements.EXECUTIONS, statements.DISPATCHES, statements.STEPS)
    }


async def recorded(database: SQLite, run: Run) -> None:
    log = Log(database)
    state = State(EXECUTION)
    start = 0
    while start < len(run.log):
        at = run.log[start].at
        batch = [each.event for each in run.log[start:] if each.at == at]
        state = await log.append(state, batch, at)
        start += len(batch)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(script=scripts)
def test_read_tables_are_the_fold_of_the_log(script: list[Any]) -> None:
    run = play(script)
    database = SQLite(IN_MEMORY, "NORMAL")

    async def record_and_load() -> State:
        await recorded(database, run)
        return await Log(database).load(State(EXECUTION))

    state = asyncio.run(record_and_load())
    tables = asyncio.run(tables_of(database))
    database.close()

    assert replace(state, attempt=None) == replace(run.state, attempt=None)
    written = [row.pop("seq") for name in ("executions", "steps") for row in tables[name]]
    assert max(written) == state.seq
    assert tables["executions"] == [without_seq(rows.execution(state))]
    assert tables["dispatches"] == [rows.dispatch(state)]
    assert sorted(tables["steps"], key=lambda row: row["step_id"]) == [
        without_seq(rows.step(state, state.steps[step_id])) for step_id in sorted(state.steps)
    ]


def without_seq(row: rows.Values) -> rows.Values:
    """A row has the number of the event that wrote it, not that of the run's last one."""
    return {name: value for name, value in row.items() if name != "seq"}


async def test_runs_that_append_in_one_turn_of_the_loop_share_a_commit(
    database: SQLite, path: Path
) -> None:
    log = Log(database)
    await log.append(State("first"), BEGUN, 1)
    with sqlite3.connect(path) as other:

        def version() -> int:
            return int(other.execute("PRAGMA data_version").fetchone()[0])

        version()
        commits: list[str] = []
        database._driver.set_trace_callback(  # the driver's own account of what it was sent
            lambda sql: commits.append(sql) if sql == "COMMIT" else None
        )
        await asyncio.gather(*(log.append(State(f"run-{n}"), BEGUN, 1) for n in range(50)))
        database._driver.set_trace_callback(None)
    other.close()

    assert commits == ["COMMIT"]
    assert len((await tables_of(database))["executions"]) == 51


async def test_a_lost_race_writes_nothing_and_does_not_disturb_its_neighbours(
    database: SQLite, path: Path
) -> None:
    log, elsewhere_database = Log(database), SQLite(str(path), "NORMAL")
    elsewhere = Log(elsewhere_database)
    state = await log.append(State("contested"), BEGUN, 1)
    await elsewhere.append(await elsewhere.load(State("contested")), [proposed("theirs")], 2)

    outcomes = await asyncio.gather(
        log.append(State("before"), BEGUN, 1),
        log.append(state, [proposed("ours")], 2),
        log.append(State("after"), BEGUN, 1),
        return_exceptions=True,
    )
    elsewhere_database.close()

    assert [type(outcome) for outcome in outcomes] == [State, LostRace, State]
    assert list((await log.load(State("contested"))).steps) == ["theirs"]
    assert (await log.load(State("before"))).seq == 3


async def test_what_cannot_be_stored_fails_alone_and_nobody_waits_for_ever(
    database: SQLite,
) -> None:
    log = Log(database)
    unstorable = events.ExecutionCreated("\ud800", Json('"\ud800"'))

    with pytest.raises(UnicodeEncodeError):
        await log.append(State("bad"), [unstorable], 1)
    good = await log.append(State("good"), BEGUN, 1)

    assert good.seq == 3
    assert (await log.load(State("bad"))).status is None


async def test_a_database_that_is_locked_acknowledges_nothing_and_comes_back(
    database: SQLite, path: Path
) -> None:
    database._driver.execute("PRAGMA busy_timeout=50")
    log = Log(database)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    with pytest.raises(StoreUnavailable, match=r"proctor\.db: another process holds it"):
        await log.append(State("run"), BEGUN, 1)
    holder.execute("ROLLBACK")
    holder.close()
    empty = await log.load(State("run"))
    after = await log.append(State("run"), BEGUN, 1)

    assert empty.status is None
    assert after.seq == 3


@pytest.mark.parametrize(
    "tampering",
    [
        "UPDATE events SET payload = replace(payload, 'researcher', 'somebody') WHERE event_seq=1",
        "UPDATE events SET occurred_at = 7 WHERE event_seq = 2",
        "UPDATE events SET type = 'execution.completed' WHERE event_seq = 2",
        "DELETE FROM events WHERE event_seq = 2",
        "UPDATE events SET hash = 'f' || substr(hash, 2) WHERE event_seq = 3",
    ],
)
async def test_a_log_that_was_tampered_with_is_not_decided_on(
    database: SQLite, tampering: str
) -> None:
    log = Log(database)
    await log.append(State("run"), BEGUN, 1)
    database._driver.execute(tampering)

    with pytest.raises(LogBroken, match=r"event [123] of execution run"):
        await log.load(State("run"))


async def test_every_acknowledged_event_survives_a_reopen(path: Path) -> None:
    first = SQLite(str(path), "FULL")
    state = await Log(first).append(State("run"), BEGUN, 1)
    state = await Log(first).append(state, [events.ExecutionCancelled(Reason.CLIENT_CANCELLED)], 2)
    first.close()
    second = SQLite(str(path), "FULL")

    assert await Log(second).load(State("run")) == state
    second.close()
