"""Exporters: nothing is missing, whatever fails, and what comes twice is the same."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.core.driving import step_of, submit, succeed
from tests.kernel.test_kernel import begun, kernel_on
from tests.support.otlp_receiver import Receiver, attributes_of
from tests.support.postgres import Cluster

from proctor_kernel import world
from proctor_kernel.audit import attributes as names
from proctor_kernel.audit.follow import HELD_SECONDS, Follower, Progress
from proctor_kernel.audit.jsonl import JsonLinesFile
from proctor_kernel.audit.leaving import Projector
from proctor_kernel.audit.otlp import OtlpSink
from proctor_kernel.audit.redact import Redactor
from proctor_kernel.audit.shipping import Sink, SinkDown
from proctor_kernel.core import identity
from proctor_kernel.core.commands import FinishExecution, Returned
from proctor_kernel.core.identity import Json
from proctor_kernel.kernel import Kernel
from proctor_kernel.store import statements
from proctor_kernel.store.database import Database
from proctor_kernel.store.postgres import open_postgres
from proctor_kernel.store.sqlite import SQLite
from proctor_policy.masks import Mask, Masks


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    receiver = Receiver()
    receiver.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    yield receiver
    receiver.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
async def either(
    request: pytest.FixtureRequest, database: SQLite, postgres: Cluster
) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        yield database
        return
    opened = await open_postgres(await asyncio.to_thread(postgres.new_database))
    yield opened
    await opened.aclose()


class Clock:
    def __init__(self) -> None:
        self.ahead = 0

    def __call__(self) -> int:
        return world.now_micros() + self.ahead


def following(
    database: Database,
    sink: Sink,
    *,
    holder: str = "us",
    masks: Masks | None = None,
    told: Callable[[str, Progress], None] = lambda name, progress: None,
    now: Callable[[], int] = world.now_micros,
    from_now: bool = False,
) -> Follower:
    return Follower(
        name="sink",
        sink=sink,
        database=database,
        projector=Projector(database, lambda: Redactor(masks or Masks(), b"key")),
        holder=holder,
        now_micros=now,
        from_now=from_now,
        backoff_seconds=0.02,
        told=told,
    )


async def ran(kernel: Kernel, execution_id: str, steps: int = 2, result: str = '"done"') -> None:
    lease = await begun(kernel, execution_id)
    for n in range(steps):
        reply = await kernel.apply(execution_id, submit(lease, args=f'{{"n":{n}}}'))
        await kernel.apply(execution_id, succeed(lease, step_of(reply), result))
    await kernel.apply(execution_id, FinishExecution(lease, Returned(Json("1"))))


async def everything(follower: Follower) -> None:
    while await follower.once():
        pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


class Kept:
    """A sink that keeps the names of what it is given, and can be down."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.is_down = False

    async def ship(self, batch: Any) -> int:
        if self.is_down:
            raise SinkDown("switched off")
        self.seen += [(each.record.execution_id, each.record.seq) for each in batch]
        return len(batch)

    async def aclose(self) -> None:
        pass


async def log_of(database: Database, *execution_ids: str) -> set[tuple[str, int]]:
    return {
        (row["execution_id"], row["event_seq"])
        for each in execution_ids
        for row in await database.read(statements.LOG_OF_EXECUTION, execution_id=each)
    }


async def test_every_event_is_shipped_once_and_each_run_in_order(either: Database) -> None:
    kernel = kernel_on(either, is_alone=False)
    sink = Kept()
    follower = following(either, sink)
    await asyncio.gather(*(ran(kernel, f"run {n}") for n in range(5)), everything(follower))
    await everything(follower)

    assert len(sink.seen) == len(set(sink.seen))
    assert set(sink.seen) == await log_of(either, *(f"run {n}" for n in range(5)))
    for n in range(5):
        seqs = [seq for execution_id, seq in sink.seen if execution_id == f"run {n}"]
        assert seqs == sorted(seqs)


async def test_a_follower_goes_on_where_the_one_before_it_stopped(either: Database) -> None:
    kernel = kernel_on(either, is_alone=False)
    sink = Kept()
    clock = Clock()
    first = following(either, sink, holder="first", now=clock)
    await begun(kernel, "run")
    await everything(first)
    before = len(sink.seen)
    second = following(either, sink, holder="second", now=clock)
    await ran(kernel, "other")
    held = await second.once()
    clock.ahead = int((HELD_SECONDS + 1) * 1_000_000)
    await everything(second)
    await first.once()  # it was silent, so it learns that it was taken over
    await ran(kernel, "third")
    await everything(first)

    assert not held
    assert before > 0
    assert len(sink.seen) == len(set(sink.seen))
    assert set(sink.seen) == await log_of(either, "run", "other")


async def test_a_sink_that_is_given_up_is_taken_at_once(database: SQLite) -> None:
    await ran(kernel_on(database), "run")
    first, second = (following(database, Kept(), holder=name) for name in ("first", "second"))
    task = asyncio.create_task(first.run())
    await until(lambda: first._after is not None)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await second.once()

    assert second._after is not None


async def test_a_new_sink_may_begin_with_what_happens_from_now_on(database: SQLite) -> None:
    kernel = kernel_on(database)
    lease = await begun(kernel, "old")
    sink = Kept()
    follower = following(database, sink, from_now=True)
    await everything(follower)
    await kernel.apply("old", FinishExecution(lease, Returned(Json("1"))))
    await everything(follower)

    assert sink.seen
    assert min(seq for _, seq in sink.seen) > 3


async def test_a_sink_that_is_down_for_long_gets_everything_when_it_is_back(
    database: SQLite, receiver: Receiver
) -> None:
    kernel = kernel_on(database)
    told: list[Progress] = []
    follower = following(database, OtlpSink("traces"), told=lambda _, each: told.append(each))
    await ran(kernel, "before")
    task = asyncio.create_task(follower.run())
    await until(lambda: bool(receiver.trace(identity.trace_id("before"))))
    receiver.stop()
    for n in range(20):
        await ran(kernel, f"while it is down {n}")
    await until(lambda: sum(each.failures for each in told) >= 2)
    (row,) = await database.read(statements.SINK_BY_NAME, sink_name="sink")
    receiver.start()
    traces = [identity.trace_id(f"while it is down {n}") for n in range(20)]
    await until(lambda: all(len(receiver.trace(trace)) == 5 for trace in traces))
    await until(lambda: not told[-1].error)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (after,) = await database.read(statements.SINK_BY_NAME, sink_name="sink")

    assert set(receiver.times.values()) == {1}
    assert row["failing_since"] is not None
    assert "refused" in row["error"].lower() or "connect" in row["error"].lower()
    assert (after["failing_since"], after["error"]) == (None, "")


@pytest.mark.parametrize("way", ["refuses", "rejects"])
async def test_a_span_that_the_backend_refuses_is_set_aside_and_the_others_arrive(
    database: SQLite, receiver: Receiver, way: str
) -> None:
    def poisoned(span: Any) -> bool:
        return span.name == "execute_tool poison"

    setattr(receiver, way, poisoned)
    kernel = kernel_on(database)
    lease = await begun(kernel, "run")
    for target in ("search", "poison", "read"):
        reply = await kernel.apply("run", submit(lease, target=target))
        await kernel.apply("run", succeed(lease, step_of(reply)))
    await kernel.apply("run", FinishExecution(lease, Returned(Json("1"))))
    told: list[Progress] = []
    await everything(
        following(database, OtlpSink("traces"), told=lambda _, each: told.append(each))
    )
    refusals = await database.read(statements.REFUSALS_OF_SINK, sink_name="sink", row_limit=10)
    arrived = {span.name for span in receiver.trace(identity.trace_id("run"))}

    assert {"execute_tool search", "execute_tool read", "invoke_agent a"} <= arrived
    assert "execute_tool poison" not in arrived
    assert [row["execution_id"] for row in refusals] == ["run"]
    assert "not to our taste" in refusals[0]["error"]
    assert sum(each.refused for each in told) == 1


async def test_a_backend_that_fails_over_one_span_only_is_not_waited_for_for_ever(
    database: SQLite, receiver: Receiver
) -> None:
    class Choosy(OtlpSink):
        async def ship(self, batch: Any) -> int:
            if any(span.name == "execute_tool poison" for each in batch for span in each.spans):
                raise SinkDown("HTTP 500")
            return await super().ship(batch)

    kernel = kernel_on(database)
    lease = await begun(kernel, "run")
    for target in ("search", "poison", "read"):
        reply = await kernel.apply("run", submit(lease, target=target))
        await kernel.apply("run", succeed(lease, step_of(reply)))
    await everything(following(database, Choosy("traces")))
    refusals = await database.read(statements.REFUSALS_OF_SINK, sink_name="sink", row_limit=10)
    arrived = {span.name for span in receiver.trace(identity.trace_id("run"))}

    assert {"execute_tool search", "execute_tool read"} <= arrived
    assert [row["error"] for row in refusals] == ["HTTP 500"]


async def test_a_run_whose_log_was_edited_is_set_aside_and_the_others_leave(
    database: SQLite,
) -> None:
    kernel = kernel_on(database)
    await ran(kernel, "edited")
    await ran(kernel, "sound")
    database._driver.execute(
        "UPDATE events SET payload = replace(payload, 'done', 'gone') WHERE execution_id = 'edited'"
    )
    sink = Kept()
    await everything(following(database, sink))
    refusals = await database.read(statements.REFUSALS_OF_SINK, sink_name="sink", row_limit=100)

    assert await log_of(database, "sound") <= set(sink.seen)
    assert {row["execution_id"] for row in refusals} == {"edited"}
    assert len(refusals) + len(sink.seen) == len(await log_of(database, "sound", "edited"))
    assert "hash" in refusals[0]["error"]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
async def test_headers_compression_and_protocol_come_from_the_standard_variables(
    database: SQLite, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=acme")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    if protocol == "grpc":
        port = receiver.start_grpc()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    await ran(kernel_on(database), "run")
    sink = OtlpSink("traces")
    await everything(following(database, sink))
    await sink.aclose()
    headers, _ = receiver.requests[0]

    assert headers["x-tenant"] == "acme"
    assert "gzip" in (headers.get("content-encoding"), headers.get("grpc-encoding", "gzip"))
    assert len(receiver.trace(identity.trace_id("run"))) == 5


async def test_grpc_refusals_and_outages_are_told_apart(
    database: SQLite, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{receiver.start_grpc()}")
    receiver.refuses = lambda span: span.name == "execute_tool search"
    await ran(kernel_on(database), "run", steps=1)
    sink = OtlpSink("traces")
    await everything(following(database, sink))
    await sink.aclose()
    refusals = await database.read(statements.REFUSALS_OF_SINK, sink_name="sink", row_limit=10)

    assert len(refusals) == 1
    assert "INVALID_ARGUMENT" in refusals[0]["error"]
    assert {span.name for span in receiver.trace(identity.trace_id("run"))} == {
        "run of a created",
        "attempt 1",
        "invoke_agent a",
    }


async def test_every_event_is_one_log_record_in_its_trace(
    database: SQLite, receiver: Receiver
) -> None:
    await ran(kernel_on(database), "run", steps=1)
    sink = OtlpSink("logs")
    await everything(following(database, sink))
    await sink.aclose()
    log = await database.read(statements.LOG_OF_EXECUTION, execution_id="run")
    said = [attributes_of(record) for record in receiver.records]

    assert [record.event_name for record in receiver.records] == [
        f"proctor.{row['type']}" for row in log
    ]
    assert [each[names.EVENT_SEQ] for each in said] == [row["event_seq"] for row in log]
    assert [each[names.EVENT_HASH] for each in said] == [row["hash"] for row in log]
    assert {record.trace_id.hex() for record in receiver.records} == {identity.trace_id("run")}
    assert [record.time_unix_nano for record in receiver.records] == [
        row["occurred_at"] * 1000 for row in log
    ]


async def test_a_masked_value_is_in_no_exporters_bytes(
    database: SQLite, receiver: Receiver, tmp_path: Path
) -> None:
    kernel = kernel_on(database)
    lease = await begun(kernel, "run")
    args = json.dumps({"card": "4111-1111", "pin": 9021077, "note": "for 4111-1111"})
    reply = await kernel.apply("run", submit(lease, target="pay", args=args))
    echo = json.dumps(
        {"said": "charged 4111-1111 with 9021077", "inner": json.dumps({"pin": 9021077})}
    )
    await kernel.apply("run", succeed(lease, step_of(reply), echo))
    again = await kernel.apply("run", submit(lease, target="mail", args='{"text":"4111-1111"}'))
    await kernel.apply("run", succeed(lease, step_of(again)))
    await kernel.apply("run", FinishExecution(lease, Returned(Json('"paid by 4111-1111"'))))
    masks = Masks((Mask(("pay",), {"args": (("card",), ("pin",))}, "hash"),))
    file = tmp_path / "trail.jsonl"
    for sink in (OtlpSink("traces"), OtlpSink("logs"), JsonLinesFile(file)):
        follower = following(database, sink, masks=masks)
        follower._name = str(sink)
        await everything(follower)
        await sink.aclose()
    sent = b"".join(body for _, body in receiver.requests) + file.read_bytes()

    assert receiver.records
    assert receiver.spans
    assert b"masked:" in sent
    assert b"4111-1111" not in sent
    assert b"9021077" not in sent
