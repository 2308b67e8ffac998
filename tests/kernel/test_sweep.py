"""What time does: retention, as far as every exporter has come, and deadlines."""

from tests.kernel.test_kernel import begun, kernel_on

from proctor_kernel.core.commands import CreateExecution, FinishExecution, Returned
from proctor_kernel.core.identity import Json
from proctor_kernel.queries import Queries
from proctor_kernel.runs import Runs
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change
from proctor_kernel.store.sqlite import SQLite
from proctor_kernel.sweep import Sweep
from proctor_kernel.world import now_micros

HOUR = 3600 * 1_000_000


async def nobody(_: str) -> bool:
    return True


async def test_retention_forgets_what_ended_and_was_shipped_and_nothing_else(
    database: SQLite,
) -> None:
    kernel = kernel_on(database)
    for name in ("ended", "running"):
        lease = await begun(kernel, name)
        if name == "ended":
            await kernel.apply(name, FinishExecution(lease, Returned(Json("1"))))
    runs = Runs(
        kernel=kernel,
        database=database,
        queries=Queries(database),
        has_agent=nobody,
        now_micros=now_micros,
    )

    def later() -> int:
        return now_micros() + 2 * HOUR

    sweep = Sweep(
        database=database, kernel=kernel, runs=runs, now_micros=later, retention_micros=HOUR
    )
    sink = {
        "name": "otlp",
        "position": 1,
        "execution_id": "",
        "event_seq": 0,
        "shipped_to": 0,
        "holder": "",
        "held_until": 0,
        "failing_since": None,
        "error": "",
    }
    database.write([Change(statements.SINKS, [sink])])
    await sweep.once()
    kept = await database.read(statements.EXECUTION_IDS)
    shipped = sink | {"position": await database.settled()}
    database.write([Change(statements.SINKS, [shipped], replace=True)])
    await sweep.once()
    left = await database.read(statements.EXECUTION_IDS)

    assert {row["execution_id"] for row in kept} == {"ended", "running"}
    assert [row["execution_id"] for row in left] == ["running"]


async def test_a_run_past_its_deadline_is_cancelled_with_the_reason(database: SQLite) -> None:
    kernel = kernel_on(database)
    for name, deadline_at in (("late", now_micros() + HOUR), ("in time", now_micros() + 3 * HOUR)):
        created = CreateExecution("a", Json("null"), deadline_at=deadline_at)
        await kernel.apply(name, created)

    def later() -> int:
        return now_micros() + 2 * HOUR

    runs = Runs(
        kernel=kernel,
        database=database,
        queries=Queries(database),
        has_agent=nobody,
        now_micros=later,
    )
    await Sweep(database=database, kernel=kernel, runs=runs, now_micros=later).once()
    states = [await kernel.load(name) for name in ("late", "in time")]

    assert [str(state.status) for state in states] == ["cancelled", "running"]
    assert states[0].failure_reason == "deadline_exceeded"
