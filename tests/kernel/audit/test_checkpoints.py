"""What a chain cannot show: runs that were rewritten, put in or taken away as a whole."""

import asyncio
import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kernel.audit.logs import RUNS, eventful, record
from tests.kernel.test_kernel import kernel_on
from tests.support.postgres import Cluster

from proctor_kernel.audit import ledger, signing
from proctor_kernel.audit.checkpointing import Checkpointer
from proctor_kernel.audit.inspection import Ended
from proctor_kernel.audit.ledger import Ledger, SignedRow
from proctor_kernel.audit.signing import KeyUnusable, PublicKeys, Signer
from proctor_kernel.audit.verify import Report, verify
from proctor_kernel.core import checkpoints
from proctor_kernel.core.checkpoints import BEFORE_FIRST, Checkpoint, Forgotten, Head
from proctor_kernel.kernel import Kernel
from proctor_kernel.queries import Queries
from proctor_kernel.runs import Runs
from proctor_kernel.store import statements
from proctor_kernel.store.database import Database
from proctor_kernel.store.postgres import open_postgres
from proctor_kernel.store.sqlite import SQLite
from proctor_kernel.sweep import Sweep
from proctor_kernel.world import now_micros

COMPLETED, CANCELLED, AT_WORK = RUNS


def checkpointer(database: Database, signer: Signer, events_max: int = 10_000) -> Checkpointer:
    return Checkpointer(
        database=database,
        signer=signer,
        now_micros=now_micros,
        seconds=3600,
        events_max=events_max,
    )


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "signing.pem"
    signing.generate(path)
    return path


@pytest.fixture(scope="module")
def signer(key: Path) -> Signer:
    return signing.load(key)


@pytest.fixture(scope="module")
def keys(key: Path) -> PublicKeys:
    return signing.public_keys([key])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, signer: Signer) -> Path:
    """Runs that have ended, each signed in a checkpoint of its own; one at work, one unsigned."""
    path = tmp_path_factory.mktemp("signed") / "original.db"
    database = SQLite(str(path), "NORMAL")

    async def fill() -> None:
        signing = checkpointer(database, signer)
        for number, (execution_id, ending) in enumerate(RUNS.items(), 1):
            await record(database, execution_id, eventful(ending, begins_at=number * 1000))
            await signing.catch_up()
        await record(database, "third", eventful("completed", begins_at=5000))
        await signing.catch_up()
        await record(database, "unsigned", eventful("completed", begins_at=6000))

    asyncio.run(fill())
    database.close()
    return path


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    path = tmp_path / "proctor.db"
    shutil.copyfile(original, path)
    return path


def checked(path: Path, keys: PublicKeys | None, expected: tuple[int, str] | None = None) -> Report:
    return asyncio.run(verify(str(path), keys=keys, expected=expected))


def said(report: Report) -> list[tuple[str, str]]:
    return [(finding.execution_id, finding.problem) for finding in report.findings]


def tamper(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def erase(path: Path, execution_id: str) -> None:
    tamper(
        path,
        *(
            f"DELETE FROM {table} WHERE {key} = '{execution_id}'"
            for table, key in (
                ("events", "execution_id"),
                ("executions", "id"),
                ("steps", "execution_id"),
                ("approvals", "execution_id"),
                ("dispatches", "execution_id"),
            )
        ),
    )


def rewrite(path: Path, execution_id: str, ending: str) -> None:
    """Tell another history of a run, with hashes and read tables that fit it."""
    erase(path, execution_id)
    database = SQLite(str(path), "NORMAL")
    asyncio.run(record(database, execution_id, eventful(ending, begins_at=9000)))
    database.close()


def test_what_is_signed_is_intact_and_what_is_not_yet_is_counted(
    original: Path, keys: PublicKeys
) -> None:
    report = checked(original, keys)

    assert report.findings == ()
    assert report.checkpoints.count == 3
    assert set(report.checkpoints.ended) == {COMPLETED, CANCELLED, "third"}
    assert report.unsigned == 1


@pytest.mark.parametrize("ending", ["completed", "cancelled", "none"])
def test_a_run_that_was_written_anew_as_a_whole_is_found(
    copy: Path, keys: PublicKeys, ending: str
) -> None:
    rewrite(copy, COMPLETED, ending)
    report = checked(copy, keys)

    assert [run for run, _ in said(report)] == [COMPLETED]
    assert "checkpoint 1" in report.findings[0].problem


def test_a_run_that_was_deleted_with_all_its_rows_is_found(copy: Path, keys: PublicKeys) -> None:
    erase(copy, CANCELLED)
    report = checked(copy, keys)

    assert [run for run, _ in said(report)] == [CANCELLED]
    assert "it is gone; checkpoint 2 names it" in report.findings[0].problem


def test_a_run_that_was_put_in_among_those_that_are_signed_is_found(
    copy: Path, keys: PublicKeys
) -> None:
    tamper(copy, "UPDATE events SET position = position + 1000 WHERE execution_id = 'unsigned'")
    fine = checked(copy, keys)
    tamper(copy, "UPDATE events SET position = event_seq WHERE execution_id = 'unsigned'")
    report = checked(copy, keys)

    assert fine.findings == ()
    assert [run for run, _ in said(report)] == ["unsigned"]
    assert "put in later" in report.findings[0].problem


def test_a_signed_run_that_was_moved_to_other_positions_is_found(
    copy: Path, keys: PublicKeys
) -> None:
    tamper(copy, f"UPDATE events SET position = position + 1000 WHERE execution_id = '{COMPLETED}'")

    assert [run for run, _ in said(checked(copy, keys))] == [COMPLETED]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM checkpoints WHERE number = 1", "checkpoint 1 is missing"),
        ("DELETE FROM checkpoints WHERE number = 2", "checkpoint 2 is missing"),
        ("DELETE FROM checkpoints WHERE number < 3", "checkpoints 1 to 2 are missing"),
        (
            f"UPDATE checkpoints SET body = replace(body, '{COMPLETED}', 'else') WHERE number = 1",
            "checkpoint 1: not signed by a known key",
        ),
        (
            "UPDATE checkpoints SET signature = (SELECT signature FROM checkpoints WHERE number=1)"
            " WHERE number = 3",
            "checkpoint 3: not signed by a known key",
        ),
        ("UPDATE checkpoints SET signature = 'x' WHERE number=3", "not signed by a known key"),
        ("UPDATE checkpoints SET body = '{}' WHERE number=3", "checkpoint 3: not a checkpoint"),
        ("UPDATE checkpoints SET body = x'ff' WHERE number=3", "checkpoint 3: not a checkpoint"),
        ("UPDATE checkpoints SET position = 1 WHERE number=3", "its columns are not what"),
        ("UPDATE checkpoints SET signed_at = 'x' WHERE number=3", "its columns are not what"),
        ("UPDATE checkpoints SET key_id = 'other' WHERE number=3", "its columns are not what"),
    ],
)
def test_a_checkpoint_that_was_edited_or_taken_away_is_found(
    copy: Path, keys: PublicKeys, statement: str, problem: str
) -> None:
    tamper(copy, statement)
    found = [what for _, what in said(checked(copy, keys))]

    assert any(problem in what for what in found), found


def test_checkpoints_signed_again_by_another_key_are_not_believed(
    copy: Path, keys: PublicKeys, tmp_path: Path
) -> None:
    """Whoever can rewrite the database can sign as well, but not with the operator's key."""
    forger = signing.generate(tmp_path / "forger.pem")
    rewrite(copy, COMPLETED, "completed")
    tamper(copy, "DELETE FROM checkpoints")
    database = SQLite(str(copy), "NORMAL")
    asyncio.run(checkpointer(database, forger).catch_up())
    database.close()
    unchecked = checked(copy, None)
    report = checked(copy, keys)
    both = checked(copy, signing.public_keys([tmp_path / "forger.pem"]))

    assert unchecked.findings == ()
    assert both.findings == ()
    assert said(report) == [
        ("", f"checkpoint 1: not signed by a known key; it says that key {forger.key_id[:16]} "
             "signed it")
    ]  # fmt: skip


def test_checkpoints_cut_off_at_the_end_are_found_by_one_that_is_kept_elsewhere(
    copy: Path, keys: PublicKeys
) -> None:
    whole = checked(copy, keys)
    last = (whole.checkpoints.number, whole.checkpoints.hash)
    kept = checked(copy, keys, expected=last)
    other = checked(copy, keys, expected=(last[0], "0" * 64))
    tamper(copy, "DELETE FROM checkpoints WHERE number = 3")
    unnoticed = checked(copy, keys)
    noticed = checked(copy, keys, expected=last)

    assert kept.findings == ()
    assert "is not the expected one" in other.findings[0].problem
    assert (unnoticed.findings, unnoticed.unsigned) == ((), 2)
    assert said(noticed) == [("", "checkpoint 3 is expected; the last one is 2")]


def test_a_key_may_change_if_the_verifier_knows_both(
    copy: Path, key: Path, keys: PublicKeys, tmp_path: Path
) -> None:
    new = tmp_path / "new.pem"
    public = tmp_path / "new.pub"
    public.write_text(signing.generate(new).public_pem)
    database = SQLite(str(copy), "NORMAL")
    asyncio.run(checkpointer(database, signing.load(new)).catch_up())
    database.close()
    both = checked(copy, signing.public_keys([key, public]))
    old = checked(copy, keys)

    assert (both.findings, both.checkpoints.count, both.unsigned) == ((), 4, 0)
    assert [what[:38] for _, what in said(old)] == ["checkpoint 4: not signed by a known ke"]


def sweeping(database: Database, signer: Signer | None) -> Sweep:
    kernel: Kernel = kernel_on(database)  # type: ignore[arg-type]  # any database will do

    async def nobody(_: str) -> bool:
        return True

    runs = Runs(
        kernel=kernel,
        database=database,
        queries=Queries(database),
        has_agent=nobody,
        now_micros=now_micros,
    )
    return Sweep(
        database=database,
        kernel=kernel,
        runs=runs,
        now_micros=now_micros,
        retention_micros=1,
        signer=signer,
    )


def test_what_retention_deleted_is_not_missing(
    copy: Path, keys: PublicKeys, signer: Signer
) -> None:
    database = SQLite(str(copy), "NORMAL")
    asyncio.run(sweeping(database, signer).once())
    at_once = checked(copy, keys)
    asyncio.run(checkpointer(database, signer).catch_up())
    signed = checked(copy, keys)
    pending = asyncio.run(database.read(statements.ALL_FORGOTTEN))
    database.close()

    assert (at_once.executions, at_once.findings, at_once.forgotten) == (1, (), 4)
    assert (signed.findings, signed.forgotten) == ((), 4)
    assert set(signed.checkpoints.forgotten.values()) == {4}
    assert pending == []


def test_a_deletion_that_no_kernel_signed_does_not_explain_a_missing_run(
    copy: Path, keys: PublicKeys, signer: Signer, tmp_path: Path
) -> None:
    database = SQLite(str(copy), "NORMAL")
    asyncio.run(sweeping(database, None).once())
    forged = signing.generate(tmp_path / "forger.pem")
    tamper(
        copy,
        f"UPDATE forgotten SET key_id = '{signer.key_id}', signature = "
        f"'{forged.sign('deletion', checkpoints.deletion(COMPLETED, 1))}'",
    )
    asyncio.run(checkpointer(database, signer).catch_up())
    report = checked(copy, keys)
    database.close()

    assert {run for run, _ in said(report)} == {COMPLETED, CANCELLED, "third"}
    assert "which no known key signed" in report.findings[0].problem


def test_a_file_that_lost_its_latest_events_gives_no_position_that_is_signed_already(
    copy: Path, keys: PublicKeys, signer: Signer
) -> None:
    database = SQLite(str(copy), "NORMAL")
    asyncio.run(checkpointer(database, signer).catch_up())
    asyncio.run(sweeping(database, signer).once())
    asyncio.run(checkpointer(database, signer).catch_up())
    database.close()
    again = SQLite(str(copy), "NORMAL")
    asyncio.run(record(again, "later", eventful("completed", begins_at=7000)))
    before = checked(copy, keys)
    asyncio.run(checkpointer(again, signer).catch_up())
    after = checked(copy, keys)
    again.close()

    assert (before.findings, before.unsigned) == ((), 1)
    assert (after.findings, after.unsigned) == ((), 0)


def test_a_kernel_that_was_away_catches_up_in_bounded_steps(
    tmp_path: Path, keys: PublicKeys, signer: Signer, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "late.db"
    database = SQLite(str(path), "NORMAL")

    async def fill() -> None:
        for number in range(20):
            ending = "none" if number % 3 == 0 else "completed"
            await record(database, f"run-{number}", eventful(ending, begins_at=number * 1000))
        with caplog.at_level("INFO"):
            await checkpointer(database, signer, events_max=50).catch_up()

    asyncio.run(fill())
    rows = asyncio.run(database.read(statements.ALL_CHECKPOINTS))
    report = checked(path, keys)
    database.close()
    logged = [record.proctor_fields["checkpoint_hash"] for record in caplog.records]  # type: ignore[attr-defined]

    assert (report.findings, report.unsigned) == ((), 0)
    assert len(rows) > 5
    assert all(len(json.loads(row["body"])["ended"]) <= 2 for row in rows)
    assert logged == [checkpoints.digest(row["body"]) for row in rows]


async def test_replicas_that_sign_at_once_make_one_chain(
    postgres: Cluster, keys: PublicKeys, signer: Signer
) -> None:
    url = await asyncio.to_thread(postgres.new_database)
    replicas = [await open_postgres(url) for _ in range(3)]
    for number in range(12):
        run = eventful("completed", begins_at=number * 1000)
        await record(replicas[number % 3], f"run-{number}", run)
        if number % 4 == 3:
            await asyncio.gather(*(checkpointer(each, signer).catch_up() for each in replicas))
    await sweeping(replicas[0], signer).once()
    await asyncio.gather(*(checkpointer(each, signer).catch_up() for each in replicas))
    report = await verify(url, keys=keys)
    for each in replicas:
        await each.aclose()

    assert report.findings == ()
    assert len(report.checkpoints.ended) == 12
    assert report.forgotten == 12
    assert report.unsigned == 0


def test_a_key_file_is_for_its_owner_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    made = signing.generate(path)
    public = tmp_path / "key.pub"
    public.write_text(made.public_pem)
    (tmp_path / "text").write_text("no key")

    assert path.stat().st_mode & 0o777 == 0o600
    assert signing.load(path).key_id == made.key_id
    assert signing.public_keys([public]).ids == (made.key_id,)
    for attempt, said in (
        (lambda: signing.generate(path), "is not overwritten"),
        (lambda: signing.load(public), "not a private key"),
        (lambda: signing.load(tmp_path / "none"), "No such file"),
        (lambda: signing.public_keys([tmp_path / "text"]), "not a public key"),
    ):
        with pytest.raises(KeyUnusable, match=said):
            attempt()


ids = st.text(alphabet="abc-", min_size=1, max_size=4)
heads = st.builds(Head, ids, st.integers(1, 99), st.text("0123456789abcdef", max_size=4))


@st.composite
def chains(draw: st.DrawFn) -> list[Checkpoint]:
    made: list[Checkpoint] = []
    previous, upto = BEFORE_FIRST, 0
    for number in range(1, draw(st.integers(1, 6)) + 1):
        after, upto = upto, upto + draw(st.integers(0, 9))
        made.append(
            Checkpoint(
                number, previous, draw(st.integers(0, 99)), after, upto, "key",
                tuple(draw(st.lists(heads, max_size=3))),
                tuple(draw(st.lists(st.builds(Forgotten, ids, st.integers(0, 9)), max_size=2))),
            )
        )  # fmt: skip
        previous = checkpoints.digest(checkpoints.to_text(made[-1]))
    return made


def rows(chain: list[Checkpoint]) -> list[SignedRow]:
    return [
        SignedRow(each.number, each.upto, each.at, checkpoints.to_text(each), each.key_id, "")
        for each in chain
    ]


@given(chains())
def test_a_checkpoint_reads_back_as_it_was_and_a_whole_chain_has_no_findings(
    chain: list[Checkpoint],
) -> None:
    assert [checkpoints.from_text(row.body) for row in rows(chain)] == chain
    assert ledger.read(rows(chain), None).findings == ()


@given(chains(), st.data())
def test_any_edit_of_a_checkpoint_is_found_with_the_next_one(
    chain: list[Checkpoint], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(chain) - 1))
    edits: dict[str, object] = {
        "number": 77, "previous": "f" * 64, "at": 1234, "after": 777, "upto": 888,
        "key_id": "other", "ended": (Head("new", 1, ""),), "forgotten": (Forgotten("new", 1),),
    }  # fmt: skip
    name = data.draw(st.sampled_from(list(edits)))
    changed = list(chain)
    changed[place] = replace(chain[place], **{name: edits[name]})  # type: ignore[arg-type]
    last = changed[-1]
    believed = {checkpoints.to_text(each) for each in chain}

    assert ledger.read(rows(changed), lambda _, text, __: text in believed).findings != ()
    if place < len(chain) - 1:
        assert ledger.read(rows(changed), None).findings != ()
    else:
        expected = (last.number, checkpoints.digest(checkpoints.to_text(chain[-1])))
        assert ledger.read(rows(changed), None, expected).findings != ()


@given(st.text())
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a checkpoint"):
        checkpoints.from_text(text)


@given(chains(), st.integers(0, 60))
def test_a_position_is_covered_when_a_checkpoint_reaches_it(
    chain: list[Checkpoint], position: int
) -> None:
    read: Ledger = ledger.read(rows(chain), None)

    assert read.covers(position) == (0 < position <= chain[-1].upto)
    if read.covers(position):
        assert ledger.held_to(read, "not named", Ended(position, 1, "")) is not None
