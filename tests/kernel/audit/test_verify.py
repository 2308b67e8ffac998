"""Whatever is done to a log, an auditor finds it and says where."""

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from tests.kernel.audit.logs import RUNS, eventful, fill, record
from tests.support.postgres import Cluster

from proctor_kernel.audit.inspection import Finding
from proctor_kernel.audit.reading import CannotRead
from proctor_kernel.audit.verify import Report, Scope, verify
from proctor_kernel.store import statements
from proctor_kernel.store.postgres import open_postgres
from proctor_kernel.store.sqlite import SQLite

many = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
COMPLETED, CANCELLED, AT_WORK = RUNS
TABLES = {
    "executions": "id",
    "steps": "execution_id",
    "approvals": "execution_id",
    "dispatches": "execution_id",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "original.db"
    database = SQLite(str(path), "NORMAL")
    asyncio.run(fill(database))
    database.close()
    return path


def tampered(original: Path, tamper: Callable[[sqlite3.Connection], object]) -> Report:
    """Do something to a copy of the log, and return what an auditor finds."""
    with tempfile.TemporaryDirectory(dir=original.parent) as folder:
        copy = Path(folder) / "copy.db"
        shutil.copyfile(original, copy)
        connection = sqlite3.connect(copy, isolation_level=None)
        try:
            tamper(connection)
        except sqlite3.IntegrityError:
            reject()  # the database itself does not take it
        finally:
            connection.close()
        return asyncio.run(verify(str(copy)))


def places(report: Report) -> set[tuple[str, int | None]]:
    return {(finding.execution_id, finding.seq) for finding in report.findings}


def length(original: Path, execution_id: str) -> int:
    connection = sqlite3.connect(original)
    query = "SELECT count(*) FROM events WHERE execution_id = ?"
    (count,) = connection.execute(query, [execution_id]).fetchone()
    connection.close()
    return int(count)


def test_what_nobody_touched_is_intact(original: Path) -> None:
    report = asyncio.run(verify(str(original)))

    assert report.findings == ()
    assert report.executions == len(RUNS)
    assert report.events == sum(length(original, each) for each in RUNS)


@many
@given(data=st.data())
def test_a_flipped_byte_in_any_column_of_any_event_is_found_at_that_event(
    original: Path, data: st.DataObject
) -> None:
    execution_id = data.draw(st.sampled_from(list(RUNS)))
    seq = data.draw(st.integers(1, length(original, execution_id)))
    column = data.draw(
        st.sampled_from(["execution_id", "event_seq", "type", "payload", "occurred_at", "hash"])
    )

    def flip(connection: sqlite3.Connection) -> None:
        flip_one(connection, data, "events", column, "execution_id = ? AND event_seq = ?",
                 execution_id, seq)  # fmt: skip

    report = tampered(original, flip)

    assert (execution_id, seq) in places(report), report.findings


def flip_one(
    connection: sqlite3.Connection,
    data: st.DataObject,
    table: str,
    column: str,
    where: str,
    *key: object,
) -> object:
    """Change one byte of one value, as the file has it."""
    (value,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}", key).fetchone()
    mask = data.draw(st.integers(1, 255))
    if value is None:
        changed: Any = data.draw(st.sampled_from(["", "x", 7]))
        sql = "?"
    elif isinstance(value, int):
        changed = value ^ (mask << 8 * data.draw(st.integers(0, 3)))
        sql = "?"
    else:
        text = bytearray(value.encode())
        if text:
            text[data.draw(st.integers(0, len(text) - 1))] ^= mask
        else:
            text.append(mask)
        changed, sql = bytes(text), "CAST(? AS TEXT)"
    connection.execute(f"UPDATE {table} SET {column} = {sql} WHERE {where}", (changed, *key))
    return changed


@many
@given(data=st.data())
def test_a_flipped_byte_in_any_read_table_is_found_in_that_run(
    original: Path, data: st.DataObject
) -> None:
    table = data.draw(st.sampled_from(list(TABLES)))
    columns = [column.name for column in statements.METADATA.tables[table].columns]
    column = data.draw(st.sampled_from([each for each in columns if each != "seq"]))
    execution_id = data.draw(st.sampled_from(list(RUNS)))

    def flip(connection: sqlite3.Connection) -> None:
        query = f"SELECT rowid FROM {table} WHERE {TABLES[table]} = ?"
        rowids = [row[0] for row in connection.execute(query, [execution_id])]
        flip_one(connection, data, table, column, "rowid = ?", data.draw(st.sampled_from(rowids)))

    report = tampered(original, flip)

    assert execution_id in {place for place, _ in places(report)}, (column, report.findings)


@many
@given(data=st.data())
def test_a_dropped_event_is_found_where_it_was(original: Path, data: st.DataObject) -> None:
    execution_id = data.draw(st.sampled_from(list(RUNS)))
    last = length(original, execution_id)
    seq = data.draw(st.one_of(st.integers(1, last), st.sampled_from([1, last])))
    report = tampered(
        original,
        lambda connection: connection.execute(
            "DELETE FROM events WHERE execution_id = ? AND event_seq = ?", (execution_id, seq)
        ),
    )

    assert (execution_id, seq) in places(report)


@many
@given(data=st.data())
def test_a_log_that_was_cut_short_is_found_where_it_ends(
    original: Path, data: st.DataObject
) -> None:
    execution_id = data.draw(st.sampled_from(list(RUNS)))
    first = data.draw(st.integers(2, length(original, execution_id)))
    report = tampered(
        original,
        lambda connection: connection.execute(
            "DELETE FROM events WHERE execution_id = ? AND event_seq >= ?", (execution_id, first)
        ),
    )

    assert places(report) == {(execution_id, first)}


@many
@given(data=st.data())
def test_two_events_that_were_swapped_are_found_at_the_first(
    original: Path, data: st.DataObject
) -> None:
    execution_id = data.draw(st.sampled_from(list(RUNS)))
    last = length(original, execution_id)
    first, second = sorted(
        data.draw(st.lists(st.integers(1, last), min_size=2, max_size=2, unique=True))
    )

    def swap(connection: sqlite3.Connection) -> None:
        for old, new in ((first, -1), (second, first), (-1, second)):
            connection.execute(
                "UPDATE events SET event_seq = ? WHERE execution_id = ? AND event_seq = ?",
                (new, execution_id, old),
            )

    assert (execution_id, first) in places(tampered(original, swap))


@many
@given(data=st.data())
def test_an_event_that_was_doubled_is_found_where_it_was_put(
    original: Path, data: st.DataObject
) -> None:
    source, target = (data.draw(st.sampled_from(list(RUNS))) for _ in range(2))
    copied = data.draw(st.integers(1, length(original, source)))
    place = data.draw(st.integers(1, length(original, target) + 1))

    def double(connection: sqlite3.Connection) -> None:
        for step in (-1000, 1001):  # by way of numbers that nothing has, for the key's sake
            connection.execute(
                "UPDATE events SET event_seq = event_seq + ?"
                " WHERE execution_id = ? AND (event_seq >= ? OR event_seq < 0)",
                (step, target, place),
            )
        connection.execute(
            "INSERT INTO events SELECT ?, ?, type, payload, occurred_at, hash, position"
            " FROM events WHERE execution_id = ? AND event_seq = ?",
            (target, place, source, copied + (source == target and copied >= place)),
        )

    # Of two that are the same, nobody can say that the first was put in.
    found = place + 1 if (source, copied) == (target, place) else place
    assert (target, found) in places(tampered(original, double))


def test_an_event_appended_with_a_right_hash_and_no_row_is_found(original: Path) -> None:
    from proctor.wire.words import Reason
    from proctor_kernel.core import chain, events

    last = length(original, AT_WORK)

    def append(connection: sqlite3.Connection) -> None:
        query = "SELECT hash FROM events WHERE execution_id = ? AND event_seq = ?"
        (head,) = connection.execute(query, (AT_WORK, last)).fetchone()
        forged = [events.ExecutionCancelled(Reason.CLIENT_CANCELLED)]
        (record,) = chain.link(AT_WORK, seq=last, head=head, happened=forged, at=10**6)
        connection.execute(
            "INSERT INTO events VALUES (?, ?, 'execution.cancelled', ?, ?, ?, 10000)",
            (AT_WORK, last + 1, record.payload, record.at, record.hash),
        )

    report = tampered(original, append)

    assert places(report) == {(AT_WORK, last + 1)}


@pytest.mark.parametrize("table", TABLES)
def test_rows_without_a_log_and_a_log_without_rows_are_found(original: Path, table: str) -> None:
    key = TABLES[table]
    orphaned = tampered(
        original, lambda it: it.execute(f"UPDATE {table} SET {key} = 'other' WHERE {key} = ?",
                                        [COMPLETED])
    )  # fmt: skip
    deleted = tampered(
        original, lambda it: it.execute(f"DELETE FROM {table} WHERE {key} = ?", [CANCELLED])
    )

    assert {COMPLETED, "other"} <= {place for place, _ in places(orphaned)}
    assert {place for place, _ in places(deleted)} == {CANCELLED}


def test_a_log_that_is_gone_is_found_by_its_rows(original: Path) -> None:
    report = tampered(
        original, lambda it: it.execute("DELETE FROM events WHERE execution_id = ?", [COMPLETED])
    )

    assert {place for place, _ in places(report)} == {COMPLETED}


@pytest.mark.parametrize("column", ["event_seq", "occurred_at", "position", "payload", "hash"])
def test_a_value_of_another_type_is_found(original: Path, column: str) -> None:
    for value in (b"\x00\xff", "\x00", 1.5):
        report = tampered(
            original,
            lambda it, value=value: it.execute(
                f"UPDATE events SET {column} = ? WHERE execution_id = ? AND event_seq = 3",
                (value, AT_WORK),
            ),
        )
        assert {place for place, _ in places(report)} == {AT_WORK}


def test_positions_that_do_not_rise_are_found(original: Path) -> None:
    report = tampered(
        original,
        lambda it: it.execute(
            "UPDATE events SET position = 1 WHERE execution_id = ? AND event_seq = 4", [AT_WORK]
        ),
    )

    assert places(report) == {(AT_WORK, 4)}


def test_a_row_that_claims_an_event_that_did_not_write_it_is_found(original: Path) -> None:
    report = tampered(
        original,
        lambda it: it.execute(
            "UPDATE steps SET seq = 2 WHERE execution_id = ? AND target = 'mail'", [AT_WORK]
        ),
    )

    assert [place for place, _ in places(report)] == [AT_WORK]
    assert "written by event 2" in report.findings[0].problem


def test_only_the_runs_that_are_asked_for_are_checked(original: Path) -> None:
    broken = original.with_name("narrow.db")
    shutil.copyfile(original, broken)
    connection = sqlite3.connect(broken, isolation_level=None)
    connection.execute("UPDATE events SET payload = '{}' WHERE execution_id = ?", [CANCELLED])
    connection.close()

    def check(scope: Scope) -> Report:
        return asyncio.run(verify(str(broken), scope=scope))

    one = check(Scope((COMPLETED,)))
    other = check(Scope((CANCELLED, AT_WORK)))
    early = check(Scope(until=2000))
    late = check(Scope(since=2000, until=3000))
    nothing = check(Scope(("unknown",)))

    assert (one.executions, one.findings) == (1, ())
    assert (other.executions, len(other.findings)) == (2, 1)
    assert (early.executions, early.findings) == (1, ())
    assert [place for place, _ in places(late)] == [CANCELLED]
    assert nothing.findings == (Finding("unknown", None, "there is no such run"),)


def test_what_cannot_be_checked_says_why(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE t (x)").connection.close()
    (tmp_path / "text.db").write_text("not a database, but long enough to look like one" * 20)

    for path, said in (
        (tmp_path / "none.db", "there is no such file"),
        (other, "not a database of Proctor"),
        (tmp_path / "text.db", "not a database"),
    ):
        with pytest.raises(CannotRead, match=said):
            asyncio.run(verify(str(path)))
    with pytest.raises(CannotRead, match="nobody"):
        asyncio.run(verify("postgresql://nobody:secret@127.0.0.1:1/nothing"))


async def test_a_file_is_checked_beside_the_process_that_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    database = SQLite(str(path), "NORMAL")
    await fill(database)
    first = await verify(str(path))
    await record(database, "one-more", eventful("completed", begins_at=9000))
    second = await verify(str(path))
    database.close()

    assert (first.executions, first.findings) == (3, ())
    assert (second.executions, second.findings) == (4, ())


def test_a_copy_in_a_folder_that_cannot_be_written_is_checked(
    original: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "evidence" / "proctor.db"
    copy.parent.mkdir()
    shutil.copyfile(original, copy)
    copy.parent.chmod(0o500)
    report = asyncio.run(verify(str(copy)))
    copy.parent.chmod(0o700)

    assert report.findings == ()


def test_several_processes_find_the_same_as_one(original: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.db"
    database = SQLite(str(path), "NORMAL")

    async def fill_more() -> None:
        for number in range(400):
            run = eventful("completed", begins_at=number * 1000 + 1)
            await record(database, f"run-{number:04}", run)

    asyncio.run(fill_more())
    database.close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE events SET payload = '{}' WHERE event_seq = 7 AND position % 5 = 0")
    connection.close()
    told: list[tuple[int, int]] = []
    alone = asyncio.run(verify(str(path)))
    together = asyncio.run(
        verify(str(path), jobs=2, progress=lambda done, total: told.append((done, total)))
    )

    assert len(alone.findings) > 10
    assert together == alone
    assert told[-1] == (alone.events, alone.events)


async def test_tampering_is_found_on_postgresql_too(postgres: Cluster) -> None:
    url = await asyncio.to_thread(postgres.new_database)
    server = await open_postgres(url)
    await fill(server)
    await server.aclose()
    connection = await asyncpg.connect(url)
    log = await connection.fetch("SELECT * FROM events ORDER BY execution_id, event_seq")
    untouched = await verify(url)

    for row in (log[0], log[len(log) // 2], log[-1]):
        place = (row["execution_id"], row["event_seq"])
        here = f"execution_id = '{place[0]}' AND event_seq = {place[1]}"
        for change in (
            "type = type || 'x'", "payload = '{' || payload", "occurred_at = occurred_at # 4",
            "hash = 'f' || hash", "event_seq = event_seq # 64",
            "execution_id = execution_id || 'x'",
        ):  # fmt: skip
            await assert_found(connection, url, f"UPDATE events SET {change} WHERE {here}", place)
        await assert_found(connection, url, f"DELETE FROM events WHERE {here}", place)
    middle = log[len(log) // 2]
    for tampering in (
        "UPDATE steps SET reason = 'x' WHERE target = 'shell' AND execution_id = '{}'",
        "UPDATE executions SET seq = seq - 1 WHERE id = '{}'",
        "UPDATE approvals SET decided_by = 'mallory' WHERE execution_id = '{}'",
        "UPDATE dispatches SET attempt = 9 WHERE execution_id = '{}'",
        "UPDATE events SET position = 1 WHERE event_seq = 5 AND execution_id = '{}'",
    ):
        run = middle["execution_id"]
        await assert_found(connection, url, tampering.format(run), (run, None))
    await connection.close()

    assert untouched.findings == ()


async def assert_found(
    connection: Any, url: str, tampering: str, place: tuple[str, int | None]
) -> None:
    before = {
        table: await connection.fetch(f"SELECT * FROM {table}") for table in ("events", *TABLES)
    }
    await connection.execute(tampering)
    report = await verify(url)
    for table, rows in before.items():
        await connection.execute(f"DELETE FROM {table}")
        await connection.copy_records_to_table(table, records=[tuple(row) for row in rows])

    found = places(report)
    assert place in found or (place[1] is None and place[0] in {run for run, _ in found}), (
        tampering,
        report.findings,
    )
