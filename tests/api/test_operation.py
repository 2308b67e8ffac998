"""Running it: readiness, the manifest, addresses of agents, claims, streams, announcements."""

import asyncio
import hashlib
import hmac
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.support.http_port import HttpPort
from tests.support.postgres import Cluster, cluster
from tests.support.server import TOKEN, Server, running

from proctor import Agent, tool
from proctor.wire.calls import StepSubmission, WireError
from proctor.wire.words import Idempotency, StepKind

HEADERS = {"Authorization": f"Bearer {TOKEN}"}


async def test_health_readiness_and_metrics_ask_for_no_token(server: Server) -> None:
    async with httpx2.AsyncClient(base_url=server.url) as http:
        answers = [await http.get(path) for path in ("/v0/health", "/v0/ready", "/metrics")]

    assert [each.status_code for each in answers] == [200, 200, 200]
    assert answers[1].json() == {"status": "ready"}
    assert 'proctor_policy_decisions_total{decision="deny"} 0.0' in answers[2].text


async def test_a_server_without_valid_rules_denies_and_says_what_is_not_ready(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "a.cedar").write_text("permit (principal, action")
    with running("serve", folder=tmp_path, database=str(tmp_path / "p.db"), rules=rules) as server:
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            ready = await http.get("/v0/ready")
            policy = (await http.get("/v0/policy")).json()
            (rules / "a.cedar").write_text('@id("a") permit (principal, action, resource);')
            async with asyncio.timeout(10):
                while (await http.get("/v0/ready")).status_code != 200:
                    await asyncio.sleep(0.05)

    assert ready.status_code == 503
    assert "a.cedar" in ready.json()["checks"]["rules"]
    assert policy["problems"]


def test_what_is_wrong_stops_the_start_by_name(tmp_path: Path, rules: Path) -> None:
    manifest = tmp_path / "agents.yaml"
    manifest.write_text("agents:\n- {id: a, secret: s, policyy: x}\n")

    def said(*arguments: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "proctor_kernel", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={"PATH": "/usr/bin:/bin", **environment},
        )
        assert done.returncode == 1, done.stderr
        return done.stderr

    key = {"PROCTOR_SECRET_KEY": "0123456789abcdef"}
    database = str(tmp_path / "p.db")
    serve = ("serve", "--database", database, "--port", "0")

    assert "PROCTOR_SECRET_KEY is not set" in said(*serve)
    assert "'nowhere' does not exist" in said(*serve, "--rules", "nowhere", **key)
    assert "at least 16 characters" in said(
        *serve, "--rules", str(rules), PROCTOR_SECRET_KEY="short"
    )
    assert "use PostgreSQL" in said(*serve, "--rules", str(rules), "--workers", "2", **key)
    assert "listens on loopback only" in said("dev", "--host", "0.0.0.0", "--rules", str(rules))
    assert "agents.0.policyy" in said(
        *serve, "--rules", str(rules), "--config", str(manifest), **key
    )
    refused = said("serve", "--database", "postgresql://u:secret@127.0.0.1:1/x", **key)
    assert "secret" not in refused


async def test_the_manifest_is_applied_and_applied_again_when_it_changes(
    tmp_path: Path, rules: Path
) -> None:
    manifest = tmp_path / "agents.yaml"
    (tmp_path / "tight.cedar").write_text(
        '@id("only-read") permit (principal, action == Action::"read", resource);'
    )
    entry = "- {{id: {id}, secret: '${{AGENT_SECRET}}', policy_file: tight.cedar}}\n"
    manifest.write_text("agents:\n" + entry.format(id="first"))
    with running(
        "serve",
        folder=tmp_path,
        database=str(tmp_path / "p.db"),
        rules=rules,
        options=("--config", manifest),
        environment={"AGENT_SECRET": "from the environment"},
    ) as server:
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            at_start = (await http.get("/v0/agents")).json()
            manifest.write_text("agents:\n" + entry.format(id="second"))
            async with asyncio.timeout(10):
                while (await http.get("/v0/agents/second")).status_code != 200:
                    await asyncio.sleep(0.05)
            # What is not listed is left alone, and a broken manifest changes nothing.
            manifest.write_text("agents: [")
            await http.post("/v0/agents", json={"id": "first", "secret": "replaced by hand"})
            kept = (await http.get("/v0/agents/first")).json()
            port = HttpPort([server.url], "second", "from the environment")
            claimed = await port.claim(0)
            await port.aclose()

    assert [each["id"] for each in at_start] == ["first"]
    assert "only-read" in kept["policy_bundle"], "registering again drops no rules"
    assert claimed is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9/x", "not a public address"),
        ("http://10.1.2.3/x", "not a public address"),
        ("http://169.254.169.254/latest", "not a public address"),
        ("http://[::1]/x", "not a public address"),
        ("http://[::ffff:127.0.0.1]/x", "not a public address"),
        ("http://localhost/x", "not a public address"),
        ("ftp://example.com/x", "not an http"),
        ("http://user:pw@example.com/x", "credentials"),
        ("nonsense", "not an http"),
    ],
)
async def test_deliveries_go_nowhere_without_consent(
    http: httpx2.AsyncClient, url: str, why: str
) -> None:
    answer = await http.post("/v0/agents", json={"id": "x", "secret": "s", "webhook_url": url})

    assert answer.status_code == 400
    assert why in answer.json()["message"]


async def test_rules_over_the_api_can_only_tighten(
    server: Server, http: httpx2.AsyncClient
) -> None:
    await http.post("/v0/agents", json={"id": "bundled", "secret": "s"})
    agent = Agent("bundled")

    @tool
    def read(path: str) -> str:
        return path

    @tool
    def pay(amount: int) -> str:
        raise AssertionError("the files ask a person")

    @agent.handler
    async def work(input: Any) -> Any:
        return [await read("a"), await read("b")]

    bundle = """
    rules:
    - id: only-a
      when: {target: read, arguments: {path: {equals: a}}}
      then: {decision: allow}
    - id: all-pay
      when: {target: pay}
      then: {decision: allow}
    """
    invalid = await http.post("/v0/policies/bundled", json={"bundle": "permit (principal"})
    unknown = await http.post("/v0/policies/nobody", json={"bundle": bundle})
    accepted = await http.post("/v0/policies/bundled", json={"bundle": bundle})
    await http.post("/v0/executions", json={"agent_id": "bundled"})
    port = HttpPort([server.url], "bundled", "s")
    delivery = await port.claim(5)
    assert delivery is not None
    await agent.deliver(port, delivery)
    await port.aclose()
    ended = (await http.get(f"/v0/executions/{delivery.execution_id}")).json()
    steps = (await http.get(f"/v0/executions/{delivery.execution_id}/steps")).json()

    assert (invalid.status_code, unknown.status_code, accepted.status_code) == (400, 404, 204)
    assert ended["output"] == ["a", "read not allowed. reason: no rule permits read"]
    assert all("+" in step["ruleset"] for step in steps)


class Listening:
    """What was posted to an address on loopback."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = ""
        self.status = 200


@contextmanager
def listening() -> Iterator[Listening]:
    heard = Listening()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.got.append((dict(self.headers), body))
            self.send_response(heard.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        heard.url = f"http://127.0.0.1:{server.server_address[1]}/approvals"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield heard
        server.shutdown()
        thread.join()


async def blocked_run(http: httpx2.AsyncClient, url: str, name: str) -> dict[str, Any]:
    await http.post("/v0/agents", json={"id": name, "secret": "s"})
    agent = Agent(name)

    @tool
    def pay(amount: int) -> str:
        return f"paid {amount}"

    @agent.handler
    async def work(input: Any) -> Any:
        return await pay(7)

    run: dict[str, Any] = (await http.post("/v0/executions", json={"agent_id": name})).json()
    port = HttpPort([url], name, "s")
    delivery = await port.claim(5)
    assert delivery is not None
    await agent.deliver(port, delivery)
    await port.aclose()
    return run


async def test_approvals_are_announced_signed_and_again_until_they_are_heard(
    tmp_path: Path, rules: Path
) -> None:
    with (
        listening() as heard,
        running(
            "serve",
            folder=tmp_path,
            database=str(tmp_path / "p.db"),
            rules=rules,
            options=("--approvals-webhook", heard.url),
            environment={"PROCTOR_APPROVALS_WEBHOOK_SECRET": "hush"},
        ) as server,
    ):
        heard.status = 500
        async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS) as http:
            frames: list[Any] = []
            listens = asyncio.Event()
            following = asyncio.create_task(
                follow(server.url, "/v0/approvals/stream", frames, listens)
            )
            await listens.wait()
            await blocked_run(http, server.url, "payer")
            async with asyncio.timeout(20):
                while not heard.got:
                    await asyncio.sleep(0.02)
                heard.status = 200
                while len(heard.got) < 2:
                    await asyncio.sleep(0.02)
            (approval,) = (await http.get("/v0/approvals")).json()
            insider = await http.post(
                "/v0/api-keys",
                json={"name": "carol", "scopes": ["approvals:write"], "groups": ["finance"]},
            )
            denied = await http.post(
                f"/v0/approvals/{approval['id']}/deny",
                json={"rationale": "no"},
                headers={"Authorization": f"Bearer {insider.json()['token']}"},
            )
            assert denied.status_code == 204, denied.text
            async with asyncio.timeout(20):
                while len(frames) < 2:
                    await asyncio.sleep(0.02)
                while json.loads(heard.got[-1][1])["status"] == "pending":
                    await asyncio.sleep(0.02)
            following.cancel()

    headers, body = heard.got[0]
    expected = hmac.new(
        b"hush", headers["Proctor-Timestamp"].encode() + b"." + body, hashlib.sha256
    ).hexdigest()
    assert headers["Proctor-Signature"] == f"v1={expected}"
    assert json.loads(body)["args"] == {"amount": 7}
    assert headers["Proctor-Delivery"] == heard.got[1][0]["Proctor-Delivery"]
    assert [frame["status"] for frame in frames] == ["pending", "denied"]


async def follow(url: str, path: str, frames: list[Any], listens: asyncio.Event) -> None:
    async with (
        httpx2.AsyncClient(base_url=url, headers=HEADERS, timeout=30) as http,
        http.stream("GET", path) as stream,
    ):
        async for line in stream.aiter_lines():
            if line == ": ok":
                listens.set()
            if line.startswith("data: "):
                frames.append(json.loads(line.removeprefix("data: ")))


@pytest.fixture
async def replicas(
    postgres: Cluster, tmp_path: Path, rules: Path
) -> AsyncIterator[tuple[Server, Server]]:
    url = await asyncio.to_thread(postgres.new_database)

    def one(name: str) -> Any:
        return running("serve", folder=tmp_path, database=url, rules=rules, name=name)

    with one("a") as first, one("b") as second:
        yield first, second


async def test_a_run_that_is_created_at_one_replica_is_claimed_at_once_at_another(
    replicas: tuple[Server, Server],
) -> None:
    first, second = replicas
    async with httpx2.AsyncClient(base_url=first.url, headers=HEADERS) as http:
        await http.post("/v0/agents", json={"id": "far", "secret": "s"})
        port = HttpPort([second.url], "far", "s")
        waits = []
        for _ in range(5):
            claiming = asyncio.create_task(port.claim(10))
            # That it waits there by now cannot be seen from outside.
            await asyncio.sleep(0.15)
            began = time.monotonic()
            run = (await http.post("/v0/executions", json={"agent_id": "far"})).json()
            delivery = await claiming
            waits.append(time.monotonic() - began)
            assert delivery is not None
            assert delivery.execution_id == run["id"]
        await port.aclose()

    # Looking, which is what finds a notice that was lost, takes up to a second.
    assert sorted(waits)[2] < 0.5


async def test_deltas_are_followed_across_replicas_also_long_ones(
    replicas: tuple[Server, Server],
) -> None:
    first, second = replicas
    frames: list[Any] = []
    async with httpx2.AsyncClient(base_url=first.url, headers=HEADERS) as http:
        await http.post("/v0/agents", json={"id": "model", "secret": "s"})
        await http.post("/v0/executions", json={"agent_id": "model"})
        port = HttpPort([first.url], "model", "s")
        delivery = await port.claim(5)
        assert delivery is not None
        run, lease = delivery.execution_id, delivery.lease
        submission = StepSubmission(
            StepKind.LLM_CALL, "m", "{}", Idempotency.SAFE_TO_RETRY, "request"
        )
        step_id = (await port.submit_step(run, lease, submission)).step_id
        assert step_id is not None
        listens = asyncio.Event()
        following = asyncio.create_task(
            follow(second.url, f"/v0/executions/{run}/stream", frames, listens)
        )
        await listens.wait()
        texts = ["short", '"\\\u20ac' * 1000]
        for seq, text in enumerate(texts):
            await port.stream_delta(run, lease, step_id, seq, text)
        with pytest.raises(WireError, match="longer than 7000 bytes"):
            await port.stream_delta(run, lease, step_id, 2, "x" * 7001)
        async with asyncio.timeout(10):
            while len(frames) < 2:
                await asyncio.sleep(0.02)
        following.cancel()
        await port.aclose()

    assert [(frame["seq"], frame["data"]) for frame in frames] == list(enumerate(texts))


async def test_the_log_is_followed_across_replicas(
    replicas: tuple[Server, Server],
) -> None:
    first, second = replicas
    frames: list[Any] = []
    async with httpx2.AsyncClient(base_url=first.url, headers=HEADERS) as http:
        await http.post("/v0/agents", json={"id": "writer", "secret": "s"})
        run = (await http.post("/v0/executions", json={"agent_id": "writer"})).json()
        listens = asyncio.Event()
        following = asyncio.create_task(
            follow(second.url, f"/v0/executions/{run['id']}/watch", frames, listens)
        )
        await listens.wait()
        agent = Agent("writer")

        @agent.handler
        async def work(input: Any) -> Any:
            return "done"

        port = HttpPort([first.url], "writer", "s")
        delivery = await port.claim(5)
        assert delivery is not None
        await agent.deliver(port, delivery)
        await port.aclose()
        await asyncio.wait_for(following, 10)

    events, ended = frames[:-1], frames[-1]
    assert [each["event_seq"] for each in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "execution.completed"
    assert (ended["status"], ended["output"]) == ("completed", "done")


@pytest.mark.timeout(120)
async def test_a_database_that_goes_away_is_503_and_nothing_acknowledged_is_lost(
    tmp_path: Path, rules: Path
) -> None:
    with cluster(durable=True) as own:
        url = await asyncio.to_thread(own.new_database)
        with running("serve", folder=tmp_path, database=url, rules=rules) as server:
            async with httpx2.AsyncClient(base_url=server.url, headers=HEADERS, timeout=30) as http:
                await http.post("/v0/agents", json={"id": "a", "secret": "s"})
                acknowledged: list[str] = []
                refused: list[httpx2.Response] = []

                enough = asyncio.Event()

                async def create() -> None:
                    while not enough.is_set():
                        answer = await http.post("/v0/executions", json={"agent_id": "a"})
                        if answer.status_code == 201:
                            acknowledged.append(answer.json()["id"])
                        else:
                            refused.append(answer)
                            await asyncio.sleep(0.05)

                async def more_than(answers: list[Any], count: int) -> None:
                    async with asyncio.timeout(60):
                        while len(answers) <= count:
                            await asyncio.sleep(0.01)

                load = [asyncio.create_task(create()) for _ in range(4)]
                await more_than(acknowledged, 20)
                await asyncio.to_thread(own.stop)
                await more_than(refused, 4)
                not_ready = await http.get("/v0/ready")
                health = await http.get("/v0/health")
                before = len(acknowledged)
                await asyncio.to_thread(own.start)
                await more_than(acknowledged, before + 4)
                enough.set()
                await asyncio.gather(*load)
                ready = await http.get("/v0/ready")
                found = [
                    (await http.get(f"/v0/executions/{each}")).status_code for each in acknowledged
                ]

    assert refused
    assert {each.status_code for each in refused} == {503}
    assert {each.headers["Retry-After"] for each in refused} == {"1"}
    assert {each.json()["code"] for each in refused} == {"unavailable"}
    assert (not_ready.status_code, health.status_code, ready.status_code) == (503, 200, 200)
    assert "database" in not_ready.json()["checks"]
    assert set(found) == {200}


async def test_the_documentation_is_whole_and_its_examples_are_accepted(
    server: Server, http: httpx2.AsyncClient
) -> None:
    document = (await http.get("/v0/openapi.json")).json()
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    unsecured = {
        path
        for path, operations in document["paths"].items()
        for operation in operations.values()
        if not operation.get("security")
    }
    examples = {
        f"{method} {path}": example
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for example in operation.get("requestBody", {})
        .get("content", {})
        .get("application/json", {})
        .get("schema", {})
        .get("examples", [])
    }
    agent = {**examples["post /v0/agents"], "webhook_url": None}
    accepted = [
        await http.post("/v0/agents", json=agent),
        await http.post("/v0/executions", json=examples["post /v0/executions"]),
        await http.post(
            f"/v0/policies/{agent['id']}", json=examples["post /v0/policies/{agent_id}"]
        ),
        await http.post("/v0/api-keys", json=examples["post /v0/api-keys"]),
    ]

    assert named <= set(document["components"]["schemas"])
    assert unsecured == {"/v0/health", "/v0/ready", "/metrics"}
    assert [each.status_code for each in accepted] == [201, 201, 204, 201]


@pytest.mark.timeout(180)
def test_nothing_that_fits_the_documentation_makes_a_server_error(
    tmp_path: Path, rules: Path
) -> None:
    with running("dev", folder=tmp_path, database=str(tmp_path / "p.db"), rules=rules) as server:
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("schemathesis")), "run",
                f"{server.url}/v0/openapi.json", "--checks", "not_a_server_error",
                "--exclude-path-regex", "/(stream|watch|claim)$",
                "--max-examples", "15", "--phases", "examples,coverage,fuzzing",
                "--seed", "1", "--workers", "2", "--no-color",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )  # fmt: skip
        log = server.log()

    assert done.returncode == 0, done.stdout[-6000:]
    assert "Traceback" not in log
