"""A client of a real server that is killed, restarted, or not there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.claiming import at_work
from tests.support.server import TOKEN, Server, free_port, running

import proctor
from proctor import Agent, Client, tool

RULES = """
@id("all") permit (principal, action, resource);
@id("ask") @gate("approval") @approvers("ops") @reason("a person has to look")
forbid (principal, action == Action::"pay", resource);
"""
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "rules.cedar").write_text(RULES)
    with running(
        "serve",
        folder=tmp_path,
        database=str(tmp_path / "p.db"),
        rules=rules,
        port=free_port(),
        options=("--lease-seconds", 2),
    ) as started:
        yield started


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async with Client(server.url, TOKEN) as made:
        yield made


def worker(begun: asyncio.Event, go_on: asyncio.Event) -> Agent:
    @tool
    async def read(n: int) -> int:
        return n

    agent = Agent("worker")

    @agent.handler
    async def work(input: Any) -> Any:
        await read(1)
        begun.set()
        await go_on.wait()
        return await read(2)

    return agent


async def killed_and_started(server: Server) -> None:
    await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.start)


async def test_waiting_and_watching_go_on_when_the_server_is_killed_and_started_again(
    server: Server, client: Client
) -> None:
    begun, go_on, seen = asyncio.Event(), asyncio.Event(), asyncio.Queue[proctor.Event]()

    async def watch(execution_id: str) -> list[int]:
        seqs = []
        async for event in client.watch(execution_id):
            seqs.append(event.event_seq)
            seen.put_nowait(event)
        return seqs

    async with at_work(server.url, worker(begun, go_on), HEADERS), asyncio.timeout(60):
        run = await client.create("worker")
        waiting = asyncio.create_task(client.wait(run.id))
        watching = asyncio.create_task(watch(run.id))
        await begun.wait()
        while (await seen.get()).type != "step.succeeded":
            pass
        await killed_and_started(server)
        go_on.set()
        ended = await waiting
        seqs = await watching

    assert (ended.status, ended.output) == ("completed", 2)
    assert seqs == list(range(1, len(seqs) + 1))
    assert len(seqs) == len(await client.events(run.id))


async def test_watching_approvals_goes_on_after_a_restart_and_tells_nothing_twice(
    server: Server, client: Client
) -> None:
    @tool
    async def pay(amount: int) -> str:
        return "paid"

    agent = Agent("payer")

    @agent.handler
    async def work(input: Any) -> Any:
        return await pay(input)

    told = asyncio.Queue[tuple[int, str]]()

    async def watch() -> None:
        async for approval in client.watch_approvals():
            told.put_nowait((approval.args["amount"], str(approval.status)))

    watching = asyncio.create_task(watch())
    async with at_work(server.url, agent, HEADERS), asyncio.timeout(60):
        await client.create("payer", 1)
        first = await told.get()
        await killed_and_started(server)
        run = await client.create("payer", 2)
        second = await told.get()
        await client.cancel(run.id)
        third = await told.get()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

    assert [first, second, third] == [(1, "pending"), (2, "pending"), (2, "expired")]
    assert told.empty()


async def test_a_read_waits_for_a_server_that_is_being_restarted(
    server: Server, client: Client
) -> None:
    before = await client.policy_status()
    await asyncio.to_thread(server.kill)
    reading = asyncio.create_task(client.policy_status())
    await asyncio.sleep(0)
    await asyncio.to_thread(server.start)

    assert (await reading).hash == before.hash


class Losing:
    """A way to a server that lets requests through and loses the first answers."""

    def __init__(self, port: int, lose: int) -> None:
        self._port = port
        self.left = lose

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ahead, back = await asyncio.open_connection("127.0.0.1", self._port)

        async def pass_on() -> None:
            while part := await reader.read(65536):
                back.write(part)
                await back.drain()

        passing = asyncio.create_task(pass_on())
        try:
            while part := await ahead.read(65536):
                if self.left:
                    self.left -= 1
                    break
                writer.write(part)
                await writer.drain()
        finally:
            passing.cancel()
            for each in (writer, back):
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()


@contextlib.asynccontextmanager
async def losing(server: Server, answers: int) -> AsyncIterator[str]:
    port = int(server.url.rpartition(":")[2])
    listening = await asyncio.start_server(Losing(port, answers), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()


async def test_a_create_whose_answers_are_lost_is_sent_again_and_is_one_run(
    server: Server, client: Client
) -> None:
    async with (
        at_work(server.url, worker(asyncio.Event(), asyncio.Event()), HEADERS),
        losing(server, 2) as url,
        Client(url, TOKEN) as far,
    ):
        run = await far.create("worker", {"n": 1})
        found = [each.id async for each in client.list_executions()]

    assert found == [run.id]
    assert run.idempotency_key


async def test_what_must_not_be_done_twice_is_asked_once_and_says_to_look(
    server: Server, client: Client
) -> None:
    async with at_work(server.url, worker(asyncio.Event(), asyncio.Event()), HEADERS):
        run = await client.create("worker")
        async with losing(server, 1) as url, Client(url, TOKEN) as far:
            with pytest.raises(proctor.NetworkError, match="look before you ask again"):
                await far.cancel(run.id)

        assert (await client.wait(run.id, timeout=20)).status == "cancelled"


async def test_a_server_that_is_not_there_is_told_at_once_with_what_to_do() -> None:
    async with Client(f"http://127.0.0.1:{free_port()}", retry_for=600) as client:
        async with asyncio.timeout(5):
            with pytest.raises(proctor.NetworkError, match=r"no server answers at .*PROCTOR_URL"):
                await client.policy_status()
            with pytest.raises(proctor.NetworkError, match="no server answers at"):
                await client.wait("0" * 8)


async def test_a_server_that_stays_away_is_given_up_after_a_while(
    server: Server,
) -> None:
    async with Client(server.url, TOKEN, retry_for=0.5) as client:
        await client.policy_status()
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(10):
            for asked in (client.policy_status(), client.wait("0" * 8), anext(client.watch("0"))):
                with pytest.raises(proctor.NetworkError, match="no server answers at"):
                    await asked


async def test_the_environment_names_the_server_and_the_key(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROCTOR_URL", server.url)
    monkeypatch.setenv("PROCTOR_API_KEY", TOKEN)
    async with Client() as client:
        assert (await client.policy_status()).problems == []
    monkeypatch.delenv("PROCTOR_API_KEY")
    async with Client() as client:
        with pytest.raises(proctor.UnauthorizedError, match=r"Client\(api_key=...\)"):
            await client.policy_status()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"base_url": "localhost:8080"}, "begins with http://"),
        ({"base_url": "http://"}, "begins with http://"),
        ({"api_key": "schlüssel"}, "cannot be sent"),
    ],
)
def test_a_wrong_address_or_key_is_refused_before_anything_is_sent(
    arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Client(**arguments)


async def test_something_else_that_answers_is_no_proctor_server() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n<hi/>")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with Client(url) as client:
        with pytest.raises(proctor.APIError, match=r"at http\S+ HTTP 404 <hi/>"):
            await client.policy_status()
    listening.close()


async def test_who_decides_is_not_said_beside_a_key(client: Client) -> None:
    with pytest.raises(proctor.ValidationError, match="API key"):
        await client.grant_approval("0" * 8, by="mallory")
    with pytest.raises(proctor.ValidationError, match="groups"):
        await client.grant_approval("0" * 8, groups=["ops"])
