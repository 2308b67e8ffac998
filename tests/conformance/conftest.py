"""A server process, and agents of the published `rebuno` package on loopback.

Every test runs on SQLite and on PostgreSQL. Nothing of the package is patched.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
import rebuno
import uvicorn
from tests.support.postgres import Cluster
from tests.support.server import Server, free_port, running

SECRET = "test-secret"

RULES = """
@id("all") permit (principal, action, resource);
@id("no-delete") @reason("nothing is deleted here")
forbid (principal, action == Action::"delete", resource);
@id("ask") @gate("approval") @message("please look") @reason("a person has to look")
forbid (principal, action == Action::"pay", resource);
@id("ask-soon") @gate("approval") @timeout("1s")
forbid (principal, action == Action::"hurry", resource);
@id("finance") @gate("approval") @approvers("alice, finance") @quorum("2")
forbid (principal, action == Action::"transfer", resource);
@id("seldom") @gate("rate_limit") @limit("2/1h") @reason("not so often")
forbid (principal, action == Action::"poll", resource);
@id("wait-a-bit") @gate("rate_limit") @limit("1/2s") @wait("10s")
forbid (principal, action == Action::"patient", resource);
@id("budget") @reason("the budget is spent")
forbid (principal, action == Action::"llm_call", resource)
when { context.session.tokens >= 100 };
"""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    rules = folder / "rules"
    rules.mkdir()
    (rules / "rules.cedar").write_text(RULES)
    if request.param == "sqlite":
        database = str(folder / "proctor.db")
    else:
        cluster: Cluster = request.getfixturevalue("postgres")
        database = cluster.new_database()
    with running(
        "dev",
        folder=folder,
        database=database,
        rules=rules,
        options=("--lease-seconds", 2, "--backoff-seconds", 0.2),
    ) as started:
        yield started


class Served:
    """One agent of the published package, behind a real HTTP server."""

    def __init__(self, agent: rebuno.Agent) -> None:
        self.agent = agent
        self.port = 0
        self._uvicorn: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        config = uvicorn.Config(
            self.agent.app, host="127.0.0.1", port=self.port, log_level="warning"
        )
        self._uvicorn = uvicorn.Server(config)
        self._task = asyncio.create_task(self._uvicorn.serve())
        while not self._uvicorn.started:
            await asyncio.sleep(0.01)
        self.port = self._uvicorn.servers[0].sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._uvicorn is not None
        assert self._task is not None
        self._uvicorn.should_exit = True
        await self._task
        await self.agent.close()


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve(server: Server) -> AsyncIterator[Serve]:
    """Start an agent by its id and handler, and register it."""
    async with AsyncExitStack() as stack:

        async def start(agent_id: str, handler: Callable[..., Any]) -> Served:
            agent = rebuno.Agent(agent_id, secret=SECRET, base_url=server.url)
            agent.bind(handler)
            served = Served(agent)
            served.port = free_port()
            # First, as a manifest does: what the agent says of itself is sent as it starts.
            await register(server, agent_id, served.port)
            await served.start()
            stack.push_async_callback(served.stop)
            return served

        yield start


async def register(server: Server, agent_id: str, port: int) -> None:
    async with httpx2.AsyncClient(base_url=server.url) as http:
        registered = await http.post(
            "/v0/agents",
            json={
                "id": agent_id,
                "webhook_url": f"http://127.0.0.1:{port}/webhook",
                "secret": SECRET,
            },
        )
        assert registered.status_code == 201, registered.text


@pytest.fixture
async def client(server: Server) -> AsyncIterator[rebuno.Client]:
    async with rebuno.Client(base_url=server.url) as made:
        yield made


Until = Callable[..., Awaitable[Any]]


@pytest.fixture
def until(client: rebuno.Client) -> Until:
    """Wait until a run has one of some statuses, and return it."""

    async def wait(execution_id: str, *statuses: str, seconds: float = 20) -> Any:
        async with asyncio.timeout(seconds):
            while True:
                run = await client.get(execution_id)
                if str(run.status.value) in statuses:
                    return run
                await asyncio.sleep(0.02)

    return wait
