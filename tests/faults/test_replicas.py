"""Two replicas on one PostgreSQL, one of them killed again and again."""

import asyncio
import collections
import random
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest
from tests.support.http_port import HttpPort
from tests.support.postgres import cluster
from tests.support.server import TOKEN, Server, free_port, running

from proctor import Agent, ToolError, execution, tool
from proctor_kernel.audit.verify import verify
from proctor_kernel.store import statements
from proctor_kernel.store.database import Database, Row
from proctor_kernel.store.postgres import open_postgres

RUNS = 300
WORKERS = 12
KILLED_AT = (0.1, 0.3, 0.5, 0.7, 0.9)
"""How much of the work is done when a replica is killed; they take turns."""
SECRET = "test-secret"


@pytest.mark.timeout(240)
async def test_killing_replicas_loses_and_doubles_nothing(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "all.cedar").write_text('@id("all") permit (principal, action, resource);')
    ran: collections.Counter[tuple[str, str]] = collections.Counter()
    unknown: list[str] = []
    agent = Agent("worker")

    @tool
    async def read(n: int) -> int:
        ran[(execution().id, f"read {n}")] += 1
        await asyncio.sleep(random.uniform(0, 0.05))
        return n

    @tool(idempotency="at_most_once")
    async def pay(n: int) -> int:
        ran[(execution().id, f"pay {n}")] += 1
        return n

    @agent.handler
    async def work(n: int) -> int:
        await asyncio.gather(read(1), read(2), read(2))
        try:
            await pay(n)
        except ToolError as error:
            unknown.append(str(error))
        return await read(3)

    with ExitStack() as stack:
        postgres = stack.enter_context(cluster(durable=True))
        url = await asyncio.to_thread(postgres.new_database)
        replicas = [
            stack.enter_context(
                running(
                    "serve",
                    folder=tmp_path,
                    database=url,
                    rules=rules,
                    options=("--lease-seconds", 3, "--attempts-max", 50),
                    name=f"replica-{n}",
                    port=free_port(),
                )
            )
            for n in range(2)
        ]
        urls = [each.url for each in replicas]
        await register(urls[0])
        created = await all_created(urls)
        kills: list[int] = []
        killing = asyncio.create_task(keep_killing(replicas, url, kills))
        workers = [asyncio.create_task(keep_working(urls, agent)) for _ in range(WORKERS)]
        try:
            statuses = await until_all_ended(url, created)
        finally:
            for task in (killing, *workers):
                task.cancel()
            await asyncio.gather(killing, *workers, return_exceptions=True)
        database = await open_postgres(url)
        report = await verify(url)
        steps = await database.read(statements.STEPS.select())
        await database.aclose()

    assert len(kills) == len(KILLED_AT), "it was over before anything happened to it"
    assert set(statuses.values()) == {"completed"}, collections.Counter(statuses.values())
    assert report.findings == ()
    per_run = collections.Counter(row["execution_id"] for row in steps)
    assert set(per_run.values()) == {5}, "a step was recorded twice, or is lost"
    assert {row["status"] for row in steps} <= {"succeeded", "failed"}
    doubled = {call: times for call, times in ran.items() if "pay" in call[1] and times > 1}
    assert doubled == {}
    assert all("outcome unknown" in each for each in unknown)


async def register(url: str) -> None:
    async with httpx2.AsyncClient() as http:
        registered = await http.post(
            f"{url}/v0/agents",
            json={"id": "worker", "secret": SECRET},
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        assert registered.status_code == 201, registered.text


async def all_created(urls: list[str]) -> set[str]:
    headers = {"Authorization": f"Bearer {TOKEN}"}

    async with httpx2.AsyncClient(headers=headers, timeout=10) as http:

        async def create(n: int) -> str:
            body = {"agent_id": "worker", "input": {"n": n}, "idempotency_key": f"run-{n}"}
            answer = await http.post(f"{urls[n % 2]}/v0/executions", json=body)
            assert answer.status_code == 201, answer.text
            return str(answer.json()["id"])

        return set(await asyncio.gather(*(create(n) for n in range(RUNS))))


async def keep_working(urls: list[str], agent: Agent) -> None:
    port = HttpPort(random.sample(urls, len(urls)), agent.id, SECRET)
    try:
        while True:
            delivery = await port.claim(1.0)
            if delivery is not None:
                await agent.deliver(port, delivery)
    finally:
        await port.aclose()


async def keep_killing(replicas: list[Server], url: str, kills: list[int]) -> None:
    database = await open_postgres(url)
    try:
        for number, share in enumerate(KILLED_AT):
            while len(await ended(database)) < share * RUNS:
                await asyncio.sleep(0.05)
            kills.append(number)
            replica = replicas[number % 2]
            await asyncio.to_thread(replica.kill)
            await asyncio.to_thread(replica.start)
    finally:
        await database.aclose()


async def ended(database: Database) -> list[Row]:
    rows = await database.read(statements.EXECUTIONS.select())
    return [row for row in rows if row["status"] in statements.ENDED]


async def until_all_ended(url: str, created: set[str]) -> dict[str, str]:
    database = await open_postgres(url)
    try:
        async with asyncio.timeout(120):
            while True:
                rows = await database.read(statements.EXECUTIONS.select())
                statuses = {row["id"]: row["status"] for row in rows}
                assert created <= set(statuses), "an acknowledged run is lost"
                if all(statuses[each] in statements.ENDED for each in created):
                    return statuses
                await asyncio.sleep(0.3)
    finally:
        await database.aclose()
