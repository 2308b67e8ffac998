"""What is counted, as a scraper sees it: of one process and of several, and pushed by OTLP."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2 as wire,
)
from opentelemetry.proto.collector.metrics.v1 import (
    metrics_service_pb2_grpc as service,
)
from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings
from prometheus_client.parser import text_string_to_metric_families
from tests.support.http_port import HttpPort
from tests.support.postgres import Cluster, cluster
from tests.support.server import TOKEN, Server, free_port, running

from proctor.wire.calls import Lease, StepSubmission
from proctor.wire.words import Idempotency, StepKind
from proctor_kernel.otlp_metrics import Destination, destination

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
RULES = """
@id("all") permit (principal, action, resource);
@id("ask") @gate("approval") @reason("a person has to look")
forbid (principal, action == Action::"pay", resource);
@id("no-delete") @reason("nothing is deleted") 
forbid (principal, action == Action::"delete", resource);
@id("trial") @gate("shadow") forbid (principal, action == Action::"search", resource);
"""

Sample = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "rules.cedar").write_text(RULES)
    return folder


@pytest.fixture(scope="module")
def postgres() -> Iterator[Cluster]:
    with cluster() as started:
        yield started


async def scraped(http: httpx2.AsyncClient) -> dict[Sample, float]:
    """Return every sample that `/metrics` shows."""
    text = (await http.get("/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(name: str, **labels: str) -> Sample:
    return (f"proctor_{name}", tuple(sorted(labels.items())))


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.05)


OPEN: list[HttpPort] = []


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    while OPEN:
        await OPEN.pop().aclose()


class Run:
    """One run of one agent, driven by hand."""

    def __init__(self, port: HttpPort, execution_id: str, lease: Lease) -> None:
        self.execution_id = execution_id
        self._port = port
        self._lease = lease

    @classmethod
    async def begin(cls, http: httpx2.AsyncClient, agent: str = "a") -> "Run":
        await http.post("/v0/agents", json={"id": agent, "secret": f"secret-of-{agent}"})
        await http.post("/v0/executions", json={"agent_id": agent})
        port = HttpPort([str(http.base_url).rstrip("/")], agent, f"secret-of-{agent}")
        OPEN.append(port)
        claimed = await port.claim(wait_seconds=20)
        assert claimed is not None
        return cls(port, claimed.execution_id, claimed.lease)

    async def ask(self, target: str, kind: StepKind = StepKind.TOOL_CALL) -> Any:
        asked = StepSubmission(kind, target, "{}", Idempotency.SAFE_TO_RETRY)
        return await self._port.submit_step(self.execution_id, self._lease, asked)

    async def call(self, target: str) -> None:
        reply = await self.ask(target)
        await self._port.complete_step(
            self.execution_id, self._lease, reply.step_id, result_json="1"
        )


async def test_decisions_are_counted_by_effect_by_kind_and_by_rule(
    tmp_path: Path, rules: Path
) -> None:
    with running("serve", folder=tmp_path, database=str(tmp_path / "p.db"), rules=rules) as server:
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            run = await Run.begin(http)
            await run.call("search")
            await run.ask("delete")
            await run.ask("a-name-that-a-model-chose")
            await run.ask("pay")
            seen = await scraped(http)
            text = (await http.get("/metrics")).text

    assert seen[sample("policy_decisions_total", decision="allow")] == 2
    assert seen[sample("policy_decisions_total", decision="deny")] == 1
    assert seen[sample("step_decisions_total", kind="tool_call", decision="deny")] == 1
    assert seen[sample("step_decisions_total", kind="llm_call", decision="deny")] == 0
    assert seen[sample("rule_decisions_total", rule="no-delete", decision="deny")] == 1
    assert seen[sample("rule_decisions_total", rule="ask", decision="require_approval")] == 1
    assert seen[sample("rule_shadow_hits_total", rule="trial")] == 1
    assert seen[sample("steps_settled_total", kind="tool_call", status="succeeded")] == 1
    assert seen[sample("steps_settled_total", kind="tool_call", status="denied")] == 1
    assert seen[sample("submit_seconds_count")] == 4
    assert seen[sample("settle_seconds_count", outcome="complete")] == 1
    assert seen[sample("approvals_requested_total")] == 1
    assert seen[sample("approvals_pending")] == 1
    assert seen[sample("approvals_expiring")] == 0
    assert seen[sample("executions_live", status="running")] == 1
    assert seen[sample("database_up")] == 1
    assert seen[sample("log_flush_events_count")] > 0
    assert "a-name-that-a-model-chose" not in text


async def test_what_people_deny_and_what_a_fork_copies_are_no_second_decisions(
    tmp_path: Path, rules: Path
) -> None:
    with running("serve", folder=tmp_path, database=str(tmp_path / "p.db"), rules=rules) as server:
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            run = await Run.begin(http)
            await run.call("search")
            pay = await run.ask("pay")
            assert (await http.post(f"/v0/approvals/{pay.approval_id}/deny", json={})).is_success
            found = (await http.get(f"/v0/executions/{run.execution_id}/events")).json()
            at = {"at_seq": found[-1]["event_seq"]}
            forked = await http.post(f"/v0/executions/{run.execution_id}/fork", json=at)
            assert forked.is_success, forked.text
            seen = await scraped(http)

    assert seen[sample("policy_decisions_total", decision="require_approval")] == 1
    assert seen[sample("policy_decisions_total", decision="allow")] == 1
    assert seen[sample("policy_decisions_total", decision="deny")] == 0
    assert seen[sample("policy_latency_seconds_count")] == 2
    assert seen[sample("steps_settled_total", kind="tool_call", status="denied")] == 1
    assert seen[sample("steps_settled_total", kind="tool_call", status="succeeded")] == 1
    assert seen[sample("executions_created_total")] == 2


async def test_a_rule_that_is_gone_is_shown_no_more_and_the_new_set_is_named(
    tmp_path: Path, rules: Path
) -> None:
    with running("serve", folder=tmp_path, database=str(tmp_path / "p.db"), rules=rules) as server:
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            run = await Run.begin(http)
            await run.ask("delete")
            before = await scraped(http)
            (rules / "rules.cedar").write_text('@id("new") permit (principal, action, resource);')

            async def reloaded() -> bool:
                return (await scraped(http))[sample("rules_reloads")] == 1

            await until(reloaded)
            after = await scraped(http)
            (rules / "rules.cedar").write_text("permit (")

            async def failing() -> bool:
                return (await scraped(http))[sample("rules_failing")] == 1

            await until(failing)
            broken = await scraped(http)
            policy = (await http.get("/v0/policy")).json()

    gone = sample("rule_decisions_total", rule="no-delete", decision="deny")
    assert gone in before
    assert gone not in after
    assert after[sample("rules_failing_since_timestamp_seconds")] == 0
    assert broken[sample("rules_failing_since_timestamp_seconds")] > 0
    assert broken[sample("rules_reload_failures")] == 1
    assert broken[sample("rules_info", ruleset=policy["hash"])] == 1


async def test_what_waits_is_looked_up(tmp_path: Path, rules: Path) -> None:
    options = ("--approval-seconds", 200, "--lease-seconds", 1)
    with running(
        "serve", folder=tmp_path, database=str(tmp_path / "p.db"), rules=rules, options=options
    ) as server:
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            first = await Run.begin(http)
            await first.ask("pay")
            for _ in range(2):
                made = {"agent_id": "a", "session": "one"}
                assert (await http.post("/v0/executions", json=made)).is_success

            async def aged() -> bool:
                return (await scraped(http))[sample("approval_oldest_seconds")] > 0.5

            await until(aged)
            seen = await scraped(http)

            async def overdue() -> bool:
                return (await scraped(http))[sample("queue_depth")] >= 1

            await until(overdue)

    assert seen[sample("approvals_expiring")] == 1
    assert seen[sample("sessions_waiting")] == 1
    assert seen[sample("executions_live", status="pending")] == 1


async def test_a_run_that_is_taken_over_is_counted_once(tmp_path: Path, rules: Path) -> None:
    with running(
        "serve",
        folder=tmp_path,
        database=str(tmp_path / "p.db"),
        rules=rules,
        options=("--lease-seconds", 1),
    ) as server:
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            await Run.begin(http)
            port = HttpPort([server.url], "a", "secret-of-a")
            again = await port.claim(wait_seconds=20)
            await port.aclose()
            seen = await scraped(http)

    assert again is not None
    assert again.lease.attempt == 2
    assert seen[sample("dispatches_reclaimed_total")] == 1
    assert "taken over" in server.log()


# Several workers


@pytest.fixture
def database(postgres: Cluster) -> str:
    return postgres.new_database()


@pytest.fixture
def two(tmp_path: Path, rules: Path, database: str) -> Iterator[Server]:
    with running(
        "serve",
        folder=tmp_path,
        database=database,
        rules=rules,
        options=("--workers", 2),
    ) as server:
        yield server


def workers(server: Server) -> list[int]:
    assert server.process is not None
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [
        pid
        for pid in map(int, children.read_text().split())
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


async def test_workers_count_together_and_a_dead_ones_gauges_are_forgotten(
    two: Server, rules: Path
) -> None:
    def fresh() -> httpx2.AsyncClient:
        # A connection stays with its worker, so each request has its own.
        limits = httpx2.Limits(max_keepalive_connections=0)
        return httpx2.AsyncClient(base_url=two.url, headers=HEADERS, limits=limits, timeout=20)

    async with fresh() as http:
        run = await Run.begin(http)
        for _ in range(8):
            await run.call("search")
        every = [await scraped(http) for _ in range(6)]
        (rules / "rules.cedar").write_text("permit (")

        async def failing() -> bool:
            return (await scraped(http))[sample("rules_failing")] == 1

        await until(failing)
        victim = workers(two)[0]
        os.kill(victim, signal.SIGKILL)
        (rules / "rules.cedar").write_text(RULES)

        async def good() -> bool:
            try:
                seen = await scraped(http)
            except httpx2.HTTPError:
                return False
            return seen[sample("rules_failing")] == 0 and len(workers(two)) == 2

        await until(good, seconds=40)
        after = await scraped(http)

    allowed = sample("policy_decisions_total", decision="allow")
    assert {seen[allowed] for seen in every} == {8}
    assert {seen[sample("approvals_pending")] for seen in every} == {0}
    assert {seen[sample("executions_live", status="running")] for seen in every} == {1}
    assert after[allowed] == 8
    assert not [name for name, labels in after if any(key == "pid" for key, _ in labels)]


# OTLP


@asynccontextmanager
async def tapped(port: int) -> AsyncIterator[OtelTapHttpProtobufReceiver]:
    settings = OtelTapHttpProtobufReceiverSettings(http_port=port)
    async with OtelTapHttpProtobufReceiver(settings) as receiver:
        yield receiver


def pushed(endpoint: str, **more: str) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "300",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        **more,
    }


async def test_what_is_pushed_over_http_is_what_is_scraped(tmp_path: Path, rules: Path) -> None:
    port = free_port()
    async with tapped(port) as receiver:
        with running(
            "serve",
            folder=tmp_path,
            database=str(tmp_path / "p.db"),
            rules=rules,
            environment=pushed(f"http://127.0.0.1:{port}"),
        ) as server:
            async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
                run = await Run.begin(http)
                await run.call("search")
                await run.ask("delete")
                seen = await scraped(http)

                def by_rule(metric: Any) -> bool:
                    points = metric.sum.data_points
                    return metric.name == "proctor_rule_decisions" and len(points) == 2

                decisions = await receiver.await_metric(by_rule, timeout=20)
                submits = await receiver.await_metric(
                    lambda each: (
                        each.name == "proctor_submit_seconds"
                        and each.histogram.data_points[0].count == 2
                    ),
                    timeout=20,
                )
                live = await receiver.await_metric(
                    lambda each: each.name == "proctor_executions_live", timeout=20
                )

    assert decisions.sum.is_monotonic
    assert decisions.sum.aggregation_temporality == 2  # cumulative
    for point in decisions.sum.data_points:
        labels = {each.key: each.value.string_value for each in point.attributes}
        assert point.as_double == seen[sample("rule_decisions_total", **labels)]
        assert 0 < point.start_time_unix_nano < point.time_unix_nano
    (spread,) = submits.histogram.data_points
    assert len(spread.bucket_counts) == len(spread.explicit_bounds) + 1
    assert sum(spread.bucket_counts) == 2
    upto = 0
    for bound, number in zip(spread.explicit_bounds, spread.bucket_counts, strict=False):
        upto += number
        shown = {
            dict(labels)["le"]: value
            for (name, labels), value in seen.items()
            if name == "proctor_submit_seconds_bucket"
        }
        assert shown[str(float(bound))] == upto
    assert live.WhichOneof("data") == "gauge"


class Collector(service.MetricsServiceServicer):
    def __init__(self) -> None:
        self.received: list[Any] = []
        self.headers: list[dict[str, str]] = []

    def Export(self, request: Any, context: Any) -> Any:
        self.received.append(request)
        self.headers.append(dict(context.invocation_metadata()))
        return wire.ExportMetricsServiceResponse()


@contextmanager
def collecting() -> Iterator[tuple[Collector, str]]:
    """Run an OTLP receiver over gRPC, which also shows whose the metrics are; gives its address."""
    collector = Collector()
    listening = grpc.server(futures.ThreadPoolExecutor(2))
    service.add_MetricsServiceServicer_to_server(collector, listening)
    port = listening.add_insecure_port("127.0.0.1:0")
    listening.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        listening.stop(0).wait()


def resource_of(request: Any) -> dict[str, str]:
    (sent,) = request.resource_metrics
    return {each.key: each.value.string_value for each in sent.resource.attributes}


async def test_metrics_are_pushed_over_grpc_with_headers_and_whose_they_are(
    tmp_path: Path, rules: Path
) -> None:
    with (
        collecting() as (collector, endpoint),
        running(
            "serve",
            folder=tmp_path,
            database=str(tmp_path / "p.db"),
            rules=rules,
            environment=pushed(
                endpoint,
                OTEL_EXPORTER_OTLP_PROTOCOL="grpc",
                OTEL_EXPORTER_OTLP_HEADERS="x-tenant=one",
                OTEL_SERVICE_NAME="gate",
            ),
        ),
    ):
        async with asyncio.timeout(20):
            while not collector.received:
                await asyncio.sleep(0.05)

    (sent,) = collector.received[0].resource_metrics
    names = {each.name for each in sent.scope_metrics[0].metrics}
    assert {"proctor_policy_decisions", "proctor_database_up", "proctor_build_info"} <= names
    assert collector.headers[0]["x-tenant"] == "one"
    resource = resource_of(collector.received[0])
    assert resource["service.name"] == "gate"
    assert resource["deployment.environment.name"] == "test"
    assert resource["service.instance.id"]


async def test_what_happened_last_is_pushed_when_the_service_stops(
    tmp_path: Path, rules: Path
) -> None:
    with collecting() as (collector, endpoint):
        environment = pushed(endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
        environment["OTEL_METRIC_EXPORT_INTERVAL"] = "3600000"
        with running(
            "serve",
            folder=tmp_path,
            database=str(tmp_path / "p.db"),
            rules=rules,
            environment=environment,
        ) as server:
            async with asyncio.timeout(20):
                while not collector.received:
                    await asyncio.sleep(0.05)
            async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
                run = await Run.begin(http)
                await run.call("search")
            server.stop()

    (sent,) = collector.received[-1].resource_metrics
    (submits,) = (
        each for each in sent.scope_metrics[0].metrics if each.name == "proctor_submit_seconds"
    )
    assert submits.histogram.data_points[0].count == 1


async def test_a_receiver_that_is_down_is_told_of_once_and_again_when_it_is_back(
    tmp_path: Path, rules: Path
) -> None:
    port = free_port()
    with running(
        "serve",
        folder=tmp_path,
        database=str(tmp_path / "p.db"),
        rules=rules,
        environment=pushed(f"http://127.0.0.1:{port}", OTEL_METRIC_EXPORT_TIMEOUT="500"),
    ) as server:

        async def said(text: str) -> bool:
            return text in server.log()

        await until(lambda: said("metrics are not taken"))
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            run = await Run.begin(http)
            await run.call("search")
        async with tapped(port) as receiver:
            await receiver.await_metric(lambda each: each.name == "proctor_database_up", timeout=20)
            await until(lambda: said("metrics are taken by their OTLP endpoint again"))
            # While there is a receiver: what a service counted last is pushed when it stops.
            await asyncio.to_thread(server.stop)

    assert server.log().count("metrics are not taken") == 1
    assert "Traceback" not in server.log()


async def test_of_two_workers_one_pushes_and_another_goes_on_when_it_dies(
    tmp_path: Path, rules: Path, database: str
) -> None:
    with (
        collecting() as (collector, endpoint),
        running(
            "serve",
            folder=tmp_path,
            database=database,
            rules=rules,
            options=("--workers", 2),
            environment=pushed(endpoint, OTEL_EXPORTER_OTLP_PROTOCOL="grpc"),
        ) as server,
    ):

        async def pushed_again() -> None:
            number = len(collector.received)
            async with asyncio.timeout(40):
                while len(collector.received) < number + 2:
                    await asyncio.sleep(0.05)

        await pushed_again()
        for pid in workers(server):
            os.kill(pid, signal.SIGKILL)
            await pushed_again()

    def began(request: Any) -> int:
        (sent,) = request.resource_metrics
        (steps,) = (
            each for each in sent.scope_metrics[0].metrics if each.name == "proctor_steps_submitted"
        )
        return int(steps.sum.data_points[0].start_time_unix_nano)

    assert len({resource_of(each)["service.instance.id"] for each in collector.received}) == 1
    assert len({began(each) for each in collector.received}) == 1


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        pytest.param(
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http/protobuf or grpc", id="protocol"
        ),
        pytest.param(
            {"OTEL_METRIC_EXPORT_INTERVAL": "often"}, "it takes milliseconds", id="interval"
        ),
    ],
)
def test_a_variable_that_cannot_be_followed_stops_the_start(
    tmp_path: Path, rules: Path, environment: dict[str, str], said: str
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "proctor_kernel", "dev", "--port", "0"),
            *("--database", str(tmp_path / "p.db"), "--rules", str(rules)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", **environment},
    )

    assert done.returncode == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="no endpoint"),
        pytest.param({"OTEL_METRICS_EXPORTER": "none"}, id="none"),
        pytest.param({"OTEL_METRICS_EXPORTER": "prometheus"}, id="another"),
        pytest.param({"OTEL_SDK_DISABLED": "true"}, id="disabled"),
    ],
)
def test_nothing_is_pushed_unless_it_is_wanted(environment: dict[str, str]) -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"} if environment else {}

    assert destination({**endpoint, **environment}) is None
    assert destination({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}) == Destination(
        "http/protobuf", 60.0, 10.0
    )
