"""JSON lines: whole lines, once each, in files that are put aside by size or by others."""

import io
import json
import resource
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.audit.test_follow import everything, following, log_of, ran
from tests.kernel.test_kernel import kernel_on

from proctor_kernel.audit.follow import read_batch
from proctor_kernel.audit.jsonl import JsonLinesFile, JsonLinesStream
from proctor_kernel.audit.leaving import Leaving, Place, Projector
from proctor_kernel.audit.redact import Redactor
from proctor_kernel.audit.shipping import SinkDown
from proctor_kernel.store import statements
from proctor_kernel.store.sqlite import SQLite
from proctor_policy.masks import Masks


async def batch_of(database: SQLite) -> list[Leaving]:
    found = await read_batch(database, Place(0), await database.settled())
    projected = await Projector(database, lambda: Redactor(Masks(), b"k")).project(found)
    assert all(isinstance(each, Leaving) for each in projected)
    return projected  # type: ignore[return-value]  # just checked


def lines_of(*files: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


async def test_a_line_has_the_payload_that_was_hashed_and_where_it_belongs(
    database: SQLite, tmp_path: Path
) -> None:
    await ran(kernel_on(database), "run", result="1.50")
    file = tmp_path / "trail.jsonl"
    await JsonLinesFile(file).ship(await batch_of(database))
    log = await database.read(statements.LOG_OF_EXECUTION, execution_id="run")
    lines = lines_of(file)

    assert [line["id"] for line in lines] == [f"run:{row['event_seq']}" for row in log]
    assert [line["hash"] for line in lines] == [row["hash"] for row in log]
    assert all(
        row["payload"] in text for row, text in zip(log, file.read_text().splitlines(), strict=True)
    )
    assert lines[0]["at"].endswith("Z")
    assert {line["agent_id"] for line in lines} == {"a"}
    assert {line.get("target") for line in lines} == {None, "search"}
    assert file.stat().st_mode & 0o777 == 0o640


async def test_what_was_written_before_a_crash_is_not_written_again(
    database: SQLite, tmp_path: Path
) -> None:
    await ran(kernel_on(database), "run")
    batch = await batch_of(database)
    file = tmp_path / "trail.jsonl"
    await JsonLinesFile(file).ship(batch[:5])
    with file.open("ab") as torn:
        torn.write(b'{"id":"run:6","half')
    await JsonLinesFile(file).ship(batch)

    assert [line["seq"] for line in lines_of(file)] == [each.record.seq for each in batch]


async def test_a_file_of_another_database_does_not_keep_lines_out(
    database: SQLite, tmp_path: Path
) -> None:
    await ran(kernel_on(database), "run")
    batch = await batch_of(database)
    file = tmp_path / "trail.jsonl"
    file.write_text('{"execution_id":"other","seq":9,"hash":"x","position":999999}\n')
    await JsonLinesFile(file).ship(batch)

    assert len(lines_of(file)) == 1 + len(batch)


async def test_a_file_is_put_aside_when_it_is_full_and_the_oldest_go(
    database: SQLite, tmp_path: Path
) -> None:
    kernel = kernel_on(database)
    file = tmp_path / "trail.jsonl"
    follower = following(database, JsonLinesFile(file, bytes_max=2000, kept_max=2))
    for n in range(6):
        await ran(kernel, f"run {n}")
        await everything(follower)
    names = sorted(each.name for each in tmp_path.glob("trail*"))
    latest = lines_of(file)

    assert names == ["trail.jsonl", "trail.jsonl.1", "trail.jsonl.2"]
    assert {line["execution_id"] for line in latest} == {"run 5"}


async def test_all_files_are_kept_when_that_is_asked_for(database: SQLite, tmp_path: Path) -> None:
    kernel = kernel_on(database)
    sink = JsonLinesFile(tmp_path / "trail.jsonl", bytes_max=1, kept_max=0)
    follower = following(database, sink)
    for n in range(4):
        await ran(kernel, f"run {n}")
        await everything(follower)
    found = {
        (line["execution_id"], line["seq"]) for line in lines_of(*tmp_path.glob("trail.jsonl*"))
    }

    assert found == await log_of(database, *(f"run {n}" for n in range(4)))


async def test_a_file_that_somebody_else_moved_away_is_begun_anew(
    database: SQLite, tmp_path: Path
) -> None:
    kernel = kernel_on(database)
    file = tmp_path / "trail.jsonl"
    follower = following(database, JsonLinesFile(file))
    await ran(kernel, "first")
    await everything(follower)
    file.rename(tmp_path / "moved")
    await ran(kernel, "second")
    await everything(follower)

    assert {line["execution_id"] for line in lines_of(tmp_path / "moved")} == {"first"}
    assert {line["execution_id"] for line in lines_of(file)} == {"second"}


async def test_a_full_disk_leaves_no_half_batch_and_is_tried_again(
    database: SQLite, tmp_path: Path
) -> None:
    await ran(kernel_on(database), "run")
    batch = await batch_of(database)
    file = tmp_path / "trail.jsonl"
    sink = JsonLinesFile(file)
    await sink.ship(batch[:5])
    room = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 100, room[1]))
    try:
        with pytest.raises(SinkDown, match="File too large"):
            await sink.ship(batch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, room)
    after_failure = len(lines_of(file))
    await sink.ship(batch)

    assert after_failure == 5
    assert [line["seq"] for line in lines_of(file)] == [each.record.seq for each in batch]


async def test_lines_go_to_a_stream_as_they_go_to_a_file(database: SQLite, tmp_path: Path) -> None:
    await ran(kernel_on(database), "run")
    batch = await batch_of(database)
    stream = io.StringIO()
    await JsonLinesStream(stream).ship(batch)
    await JsonLinesFile(tmp_path / "trail.jsonl").ship(batch)

    assert stream.getvalue() == (tmp_path / "trail.jsonl").read_text()
