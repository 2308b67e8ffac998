"""The client that blocks: what the other does, in scripts and where a loop is running."""

import asyncio
import inspect
import threading
from collections.abc import Iterator

import pytest
from tests.support.server import Server, running

import proctor
import proctor.sync

ASYNC_ONLY = {"over"}
"""A port belongs to the event loop that it was made in."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    rules = folder / "rules"
    rules.mkdir()
    (rules / "all.cedar").write_text('@id("all") permit (principal, action, resource);')
    (folder / "agents.yaml").write_text("agents:\n- {id: clerk, secret: a secret of some length}\n")
    options = ("--config", folder / "agents.yaml")
    with running(
        "dev", folder=folder, database=str(folder / "p.db"), rules=rules, options=options
    ) as started:
        yield started


def public(cls: type) -> dict[str, object]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    awaited, blocking = public(proctor.Client), public(proctor.sync.Client)

    assert blocking.keys() == awaited.keys() - ASYNC_ONLY
    for name, method in blocking.items():
        parameters = inspect.signature(method).parameters
        assert parameters == inspect.signature(awaited[name]).parameters, name
        assert method.__doc__, name
        assert not inspect.iscoroutinefunction(method)
    made, asked = (inspect.signature(each) for each in (proctor.sync.Client, proctor.Client))
    assert made.parameters == asked.parameters


def run_through(url: str) -> None:
    with proctor.sync.Client(url) as client:
        run = client.create("clerk", {"n": 1})
        with pytest.raises(TimeoutError, match="is still running"):
            client.wait(run.id, timeout=0.05)
        first = next(client.watch(run.id))
        client.cancel(run.id)
        ended = client.wait(run.id, timeout=20)
        events = list(client.watch(run.id))
        found = next(each for each in client.list_executions(agent_id="clerk"))
        with pytest.raises(proctor.ConflictError):
            client.cancel(run.id)

    assert first == events[0]
    assert (ended.status, events[-1].type) == ("cancelled", "execution.cancelled")
    assert found == ended


def test_a_script_uses_it_and_nothing_is_left_behind(server: Server) -> None:
    before = threading.active_count()

    run_through(server.url)

    assert threading.active_count() == before


async def test_it_works_inside_a_running_event_loop(server: Server) -> None:
    run_through(server.url)


def test_a_closed_client_says_so_and_closing_twice_is_fine(server: Server) -> None:
    client = proctor.sync.Client(server.url)
    client.close()
    client.close()

    with pytest.raises(RuntimeError, match="closed"):
        client.policy_status()


def test_a_client_that_is_forgotten_ends_its_thread(server: Server) -> None:
    before = threading.active_count()
    client = proctor.sync.Client(server.url)
    client.policy_status()
    running = threading.active_count()
    del client

    assert (running, threading.active_count()) == (before + 1, before)


def test_several_threads_may_share_one(server: Server) -> None:
    with proctor.sync.Client(server.url) as client:

        async def at_once() -> list[proctor.PolicyStatus]:
            asked = (asyncio.to_thread(client.policy_status) for _ in range(8))
            return await asyncio.gather(*asked)

        statuses = asyncio.run(at_once())

    assert len({each.hash for each in statuses}) == 1
