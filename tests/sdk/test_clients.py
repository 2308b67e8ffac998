"""What a client can do, the same over an embedded kernel and over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.support.claiming import at_work
from tests.support.server import Server, running

import proctor
from proctor import Agent, Client, tool

RULES = """
@id("all") permit (principal, action, resource);
@id("no-shell") @reason("agents have no shell here")
forbid (principal, action == Action::"shell", resource);
@id("ask") @gate("approval") @reason("money leaves")
forbid (principal, action == Action::"pay", resource);
"""
NOBODY = str(uuid4())


@tool
async def search(query: str) -> str:
    return f"about {query}"


@tool
async def shell(command: str) -> str:
    return command


@tool
async def pay(amount: Any) -> str:
    return "paid"


def agent() -> Agent:
    made = Agent("clerk")

    @made.handler
    async def work(input: Any) -> Any:
        match input:
            case {"pay": amount}:
                return await pay(amount)
            case {"shell": command}:
                return [await search("first"), await shell(command)]
            case _:
                return {"got": input, "found": await search("cedar")}

    return made


def idle() -> Agent:
    made = Agent("idle")

    @made.handler
    async def wait(input: Any) -> None:
        await asyncio.Event().wait()

    return made


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.cedar").write_text(RULES)
    return folder


@pytest.fixture(scope="module")
def server(rules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with running("dev", folder=folder, database=str(folder / "p.db"), rules=rules) as started:
        yield started


@asynccontextmanager
async def at_server(url: str) -> AsyncIterator[Client]:
    async with at_work(url, agent(), {}), at_work(url, idle(), {}), Client(url) as made:
        yield made


@pytest.fixture(params=["embedded", "server"])
async def client(
    request: pytest.FixtureRequest, rules: Path, server: Server
) -> AsyncIterator[Client]:
    if request.param == "server":
        opened = at_server(server.url)
    else:
        opened = proctor.embedded(agents=[agent(), idle()], rules=rules, database=":memory:")
    async with opened as made:
        yield made


async def pending(client: Client, execution_id: str) -> proctor.Approval:
    async with aclosing(client.watch_approvals()) as changes:
        async with asyncio.timeout(20):
            async for approval in changes:
                if approval.execution_id == execution_id and approval.status == "pending":
                    return approval
    raise AssertionError("unreachable")


async def test_a_run_is_created_waited_for_and_read(client: Client) -> None:
    given = {"text": "naïve ☃", "n": 10**40, "list": [1, 1.5, None, True]}

    created = await client.create("clerk", given)
    ended = await client.wait(created.id, timeout=20)
    again = await client.wait(created.id, timeout=20)
    (step,) = await client.list_steps(created.id)

    assert ended.status == "completed"
    assert ended.output == {"got": given, "found": "about cedar"}
    assert again == ended == await client.get(created.id)
    assert step == await client.get_step(created.id, step.step_id)
    assert (step.target, step.decision, step.result) == ("search", "allow", "about cedar")


async def test_steps_come_in_the_order_in_which_they_were_proposed(client: Client) -> None:
    run = await client.create("clerk", {"shell": "ls"})
    ended = await client.wait(run.id, timeout=20)
    steps = await client.list_steps(run.id)

    assert [each.target for each in steps] == ["search", "shell"]
    assert steps[1].rule_ids == ["no-shell"]
    assert ended.output[1] == "shell not allowed. reason: agents have no shell here"


async def test_watching_gives_every_event_once_to_the_end_of_the_run(client: Client) -> None:
    run = await client.create("clerk", {"pay": 5})
    seen: list[proctor.Event] = []

    async with asyncio.timeout(20):
        async for event in client.watch(run.id):
            seen.append(event)
            if event.type == "execution.blocked":
                approval = await pending(client, run.id)
                await client.grant_approval(approval.id, by="alice")
    after_third = [event async for event in client.watch(run.id, after_seq=3)]

    assert [event.event_seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen[-1].type == "execution.completed"
    assert seen == await client.events(run.id)
    assert after_third == seen[3:]


async def test_runs_are_listed_by_what_narrows_them_over_several_pages(client: Client) -> None:
    session = uuid4().hex
    created = [await client.create("idle", session=session) for _ in range(205)]

    found = [run.id async for run in client.list_executions(session=session)]
    three = [run.id async for run in client.list_executions(agent_id="idle", limit=3)]
    waiting = [run async for run in client.list_executions(session=session, status="pending")]
    with pytest.raises(proctor.ValidationError, match="nonsense"):
        await anext(client.list_executions(status="nonsense"))

    assert found == [run.id for run in reversed(created)]
    assert three == found[:3]
    assert len(waiting) == 204


async def test_what_needs_a_person_is_granted_and_denied(client: Client) -> None:
    granted = await client.create("clerk", {"pay": 1})
    first = await pending(client, granted.id)
    await client.grant_approval(first.id, by="alice", rationale="fine")
    denied = await client.create("clerk", {"pay": 2})
    second = await pending(client, denied.id)
    await client.deny_approval(second.id, by="bob", rationale="once is enough")
    with pytest.raises(proctor.ConflictError):
        await client.grant_approval(second.id, by="alice")
    ended = [await client.wait(run.id, timeout=20) for run in (granted, denied)]
    decided = await client.get_approval(first.id)

    assert (first.target, first.args, first.reason) == ("pay", {"amount": 1}, "money leaves")
    assert [run.output for run in ended] == ["paid", "pay not allowed. reason: once is enough"]
    assert (decided.status, decided.decided_by, decided.rationale) == ("granted", "alice", "fine")
    assert first.id not in [each.id for each in await client.list_approvals()]
    assert decided in await client.list_approvals("granted")


async def test_a_fork_replays_what_was_settled_and_runs_the_rest(client: Client) -> None:
    run = await client.create("clerk", {"shell": "ls"})
    await client.wait(run.id, timeout=20)
    settled = next(each for each in await client.events(run.id) if each.type == "step.succeeded")

    fork = await client.fork(
        run.id,
        settled.event_seq,
        policy_bundle='@id("no") @reason("not in a fork") forbid (principal, action, resource);',
    )
    ended = await client.wait(fork.id, timeout=20)
    points = await client.fork_points(run.id)
    with pytest.raises(proctor.ValidationError, match="at_seq"):
        await client.fork(run.id, 10_000)
    with pytest.raises(proctor.ValidationError) as refused:
        await client.fork(run.id, 1, policy_bundle="permit (")

    assert (fork.forked_from, fork.fork_seq) == (run.id, settled.event_seq)
    assert ended.output[0] == "about first"
    assert "not in a fork" in ended.output[1]
    assert points.latest_seq == len(await client.events(run.id))
    assert "bundle" in refused.value.details


async def test_a_run_follows_another_and_sees_what_it_left(client: Client) -> None:
    first = await client.create("clerk", "one")
    await client.wait(first.id, timeout=20)
    second = await client.create("clerk", "two", parent_execution_id=first.id, on_behalf_of="ann")

    assert (await client.previous(second.id))["got"] == "one"
    assert await client.previous(first.id) is None
    assert (second.parent_execution_id, second.on_behalf_of) == (first.id, "ann")


async def test_a_known_idempotency_key_gives_the_run_it_stands_for(client: Client) -> None:
    key = uuid4().hex
    runs = [await client.create("clerk", n, idempotency_key=key) for n in (1, 2)]
    others = [await client.create("clerk", 1) for _ in range(2)]

    assert runs[0].id == runs[1].id
    assert len({run.id for run in (*runs, *others)}) == 3


async def test_a_run_is_cancelled_once(client: Client) -> None:
    run = await client.create("clerk", {"pay": 1})
    await pending(client, run.id)
    await client.cancel(run.id)
    ended = await client.wait(run.id, timeout=20)

    assert ended.failure_reason == "client_cancelled"
    with pytest.raises(proctor.ConflictError):
        await client.cancel(run.id)


async def test_waiting_ends_when_its_time_is_up_and_says_where_the_run_stands(
    client: Client,
) -> None:
    run = await client.create("clerk", {"pay": 1})
    await pending(client, run.id)

    with pytest.raises(TimeoutError, match=f"{run.id} is still blocked after 0.05 seconds"):
        await client.wait(run.id, timeout=0.05)
    await client.cancel(run.id)


async def test_what_does_not_exist_is_not_found(client: Client) -> None:
    for asked in (
        client.create("nobody"),
        client.get(NOBODY),
        client.wait(NOBODY, timeout=5),
        client.events(NOBODY),
        anext(client.watch(NOBODY)),
        client.list_steps(NOBODY),
        client.get_step(NOBODY, "0" * 64),
        client.previous(NOBODY),
        client.fork(NOBODY, 1),
        client.fork_points(NOBODY),
        client.cancel(NOBODY),
        client.get_approval(NOBODY),
        client.grant_approval(NOBODY, by="alice"),
    ):
        with pytest.raises(proctor.NotFoundError):
            await asked


async def test_the_rules_in_force_are_told(client: Client) -> None:
    status = await client.policy_status()

    assert len(status.hash) == 64
    assert status.problems == []
