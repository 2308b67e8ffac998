"""The published client's own `Agent` and `Client` against a real server (protocol 11)."""

import asyncio
import uuid
from typing import Any

import httpx2
import pytest
import rebuno
from tests.conformance.conftest import SECRET, Serve, Until, register
from tests.support.server import Server

from proctor_kernel import signatures

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def name() -> str:
    return f"agent-{uuid.uuid4().hex[:8]}"


def types_of(events: list[Any]) -> list[str]:
    return [event.type for event in events]


async def approval_of(client: rebuno.Client, execution_id: str, count: int = 1) -> list[Any]:
    async with asyncio.timeout(10):
        while True:
            found = [
                each for each in await client.list_approvals() if each.execution_id == execution_id
            ]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


async def test_a_run_is_delivered_and_completed(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    @rebuno.tool
    async def search(query: str, limit: int = 10) -> list[str]:
        return [query] * limit

    async def handler(question: str) -> Any:
        now = await rebuno.step("now", lambda: 1.5)
        return {"hits": await search(question, limit=2), "at": now}

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={"question": "why"})
    ended = await until(run.id, "completed", "failed")

    assert ended.output == {"hits": ["why", "why"], "at": 1.5}
    events = await client.events(run.id, limit=100)
    assert types_of(events)[:3] == ["execution.created", "execution.started", "dispatch.queued"]
    assert types_of(events)[-1] == "execution.completed"
    assert [event.event_seq for event in events] == list(range(1, len(events) + 1))
    steps = {step.target: step for step in await client.list_steps(run.id)}
    assert steps["search"].args == {"query": "why", "limit": 2}
    assert steps["search"].status == "succeeded"
    assert steps["now"].kind == "local"


async def test_a_denied_tool_returns_the_string_of_the_protocol(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    @rebuno.tool
    async def delete(path: str) -> str:
        raise AssertionError("the body must not run")

    async def handler(input: Any) -> Any:
        return await delete("/etc")

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    ended = await until(run.id, "completed", "failed")

    assert (
        ended.output
        == "delete not allowed. reason: [policy_denied] nothing is deleted here (HTTP 403)"
    )


async def test_a_granted_call_runs_once_and_earlier_steps_replay(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    ran: list[str] = []

    @rebuno.tool
    async def read() -> str:
        ran.append("read")
        return "text"

    @rebuno.tool(idempotency="at_most_once")
    async def pay(amount: int) -> str:
        ran.append(f"pay {amount}")
        return "paid"

    async def handler(input: Any) -> Any:
        await read()
        return await pay(5)

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    await until(run.id, "blocked")
    (approval,) = await approval_of(client, run.id)
    before = list(ran)
    await client.grant_approval(approval.id, decided_by="alice", rationale="fine")
    ended = await until(run.id, "completed", "failed")

    assert before == ["read"]
    assert ran == ["read", "pay 5"]
    assert ended.output == "paid"
    decided = await client.get_approval(approval.id)
    assert (decided.status, decided.decided_by, decided.message) == (
        "granted",
        "alice",
        "please look",
    )
    with pytest.raises(rebuno.ConflictError):
        await client.grant_approval(approval.id, decided_by="bob")


async def test_a_denial_by_a_person_reaches_the_model_with_its_rationale(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    @rebuno.tool
    async def pay(amount: int) -> str:
        raise AssertionError("the body must not run")

    async def handler(input: Any) -> Any:
        return await pay(5)

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    (approval,) = await approval_of(client, run.id)
    await client.deny_approval(approval.id, decided_by="alice", rationale="too much")
    ended = await until(run.id, "completed", "failed")

    assert ended.output == "pay not allowed. reason: [policy_denied] too much (HTTP 403)"


async def test_an_approval_that_nobody_decides_expires(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    @rebuno.tool
    async def hurry() -> str:
        raise AssertionError("the body must not run")

    async def handler(input: Any) -> Any:
        return await hurry()

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    (approval,) = await approval_of(client, run.id)
    ended = await until(run.id, "completed", "failed")

    assert ended.output == "hurry not allowed. reason: [policy_denied] approval_timeout (HTTP 403)"
    with pytest.raises(rebuno.ConflictError):
        await client.grant_approval(approval.id, decided_by="late")


async def test_who_is_not_asked_may_not_decide_and_two_must_agree(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    @rebuno.tool
    async def transfer() -> str:
        return "done"

    async def handler(input: Any) -> Any:
        return await transfer()

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    (approval,) = await approval_of(client, run.id)

    with pytest.raises(rebuno.ForbiddenError):
        await client.grant_approval(approval.id, decided_by="mallory")
    await client.grant_approval(approval.id, decided_by="alice")
    with pytest.raises(rebuno.ConflictError, match=r"alice has agreed already.*1 of 2"):
        await client.grant_approval(approval.id, decided_by="alice")
    await client.grant_approval(approval.id, decided_by="finance")
    ended = await until(run.id, "completed", "failed")

    assert ended.output == "done"


async def test_a_crashed_agent_is_superseded_by_the_next_attempt(
    server: Server, serve: Serve, client: rebuno.Client, until: Until
) -> None:
    attempts: list[int] = []
    stuck = asyncio.Event()

    @rebuno.tool
    async def work() -> str:
        return "worked"

    async def handler(input: Any) -> Any:
        attempt = rebuno.execution().dispatch_attempt
        attempts.append(attempt)
        await work()
        if attempt == 1:
            await stuck.wait()
        return attempt

    agent = name()
    served = await serve(agent, handler)
    run = await client.create(agent, input={})
    while not attempts:
        await asyncio.sleep(0.01)
    port = served.port
    await served.stop()
    again = rebuno.Agent(agent, secret=SECRET, base_url=server.url)
    again.bind(handler)
    served.agent = again
    served.port = port
    await served.start()
    ended = await until(run.id, "completed", "failed", seconds=30)

    assert ended.output == attempts[-1] >= 2
    old = await signed_post(server, agent, run.id, "heartbeat", attempt=1, dispatch=None)
    assert old.json()["code"] == "execution_terminal"


async def test_an_outcome_that_nobody_knows_is_indeterminate_and_not_retried(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    started: list[int] = []
    told: list[str] = []

    @rebuno.tool(idempotency="at_most_once")
    async def launch() -> str:
        started.append(1)
        await asyncio.sleep(60)
        return "never"

    async def handler(input: Any) -> Any:
        if rebuno.execution().dispatch_attempt == 1:
            asyncio.get_running_loop().call_later(0.3, task_of_attempt.cancel)
        for _ in range(2):
            try:
                told.append(await launch())
            except rebuno.ToolError as error:
                told.append(str(error))
        return told

    task_of_attempt: Any = None

    async def outer(input: Any) -> Any:
        nonlocal task_of_attempt
        task_of_attempt = asyncio.current_task()
        return await handler(input)

    agent = name()
    await serve(agent, outer)
    run = await client.create(agent, input={})
    ended = await until(run.id, "completed", "failed", seconds=30)

    assert len(started) == 1
    assert "outcome unknown" in ended.output[0]
    assert "retry refused" in ended.output[1]


async def test_parallel_identical_calls_are_two_steps(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    @rebuno.tool
    async def roll() -> int:
        return 4

    async def handler(input: Any) -> Any:
        return await asyncio.gather(roll(), roll())

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    ended = await until(run.id, "completed", "failed")

    assert ended.output == [4, 4]
    steps = await client.list_steps(run.id)
    assert sorted(step.occurrence for step in steps) == [0, 1]


async def test_subagents_suspend_the_run_once_and_it_resumes_after_both(
    server: Server, serve: Serve, client: rebuno.Client, until: Until
) -> None:
    async def child(n: int) -> Any:
        await asyncio.sleep(0.2)
        return n * 10

    @rebuno.tool
    async def delegate(n: int) -> Any:
        async with rebuno.Client(base_url=server.url) as own:
            return await rebuno.subagent(children, {"n": n}, client=own)

    async def handler(input: Any) -> Any:
        return await asyncio.gather(delegate(1), delegate(2))

    children, agent = name(), name()
    await serve(children, child)
    await serve(agent, handler)
    run = await client.create(agent, input={})
    ended = await until(run.id, "completed", "failed", seconds=30)

    assert ended.output == [10, 20]
    types = types_of(await client.events(run.id, limit=1000))
    assert types.count("execution.blocked") <= 1
    assert types.count("step.succeeded") == 2


async def test_runs_of_a_session_take_turns_and_hand_state_on(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    async def handler(input: Any) -> Any:
        before = await rebuno.previous()
        await asyncio.sleep(0.1)
        return rebuno.Result(output=before, state={"n": (before or {"n": 0})["n"] + 1})

    agent, session = name(), f"s-{uuid.uuid4()}"
    await serve(agent, handler)
    runs = [await client.create(agent, input={}, session=session) for _ in range(3)]
    ended = [await until(run.id, "completed", "failed") for run in runs]

    assert [run.status.value for run in runs[1:]] == ["pending", "pending"]
    assert [run.output for run in ended] == [None, {"n": 1}, {"n": 2}]
    assert ended[1].parent_execution_id == ended[0].id


async def test_a_fork_replays_up_to_its_event_and_runs_live_after_it(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    ran: list[int] = []

    @rebuno.tool
    async def count(n: int) -> int:
        ran.append(n)
        return n

    async def handler(input: Any) -> Any:
        return [await count(n) for n in range(3)]

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    await until(run.id, "completed")
    events = await client.events(run.id, limit=100)
    at_seq = [event.event_seq for event in events if event.type == "step.succeeded"][1]
    fork = await client.fork(run.id, at_seq=at_seq)
    ended = await until(fork.id, "completed", "failed")

    assert (fork.forked_from, fork.fork_seq) == (run.id, at_seq)
    assert ran == [0, 1, 2, 2]
    assert ended.output == [0, 1, 2]


async def test_a_streamed_model_call_sends_deltas_and_replays(
    server: Server, serve: Serve, client: rebuno.Client, until: Until
) -> None:
    chunks = [f'data: {{"n":{n}}}\n\n'.encode() for n in range(3)]
    chunks.append(b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n')
    asked: list[int] = []

    class Provider(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            asked.append(1)

            async def stream() -> Any:
                for chunk in chunks:
                    await asyncio.sleep(0.2)
                    yield chunk

            return httpx2.Response(
                200, headers={"content-type": "text/event-stream"}, content=stream()
            )

    @rebuno.tool
    async def pay() -> str:
        return "paid"

    async def handler(input: Any) -> Any:
        transport = rebuno.RebunoTransport(inner=Provider())
        async with httpx2.AsyncClient(transport=transport) as http:
            answer = await http.post("http://model/v1", json={"model": "m", "stream": True})
            text = (await answer.aread()).decode()
        await pay()
        return text

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    frames: list[str] = []

    async def follow() -> None:
        async with (
            httpx2.AsyncClient(base_url=server.url, timeout=20) as http,
            http.stream("GET", f"/v0/executions/{run.id}/stream") as stream,
        ):
            async for line in stream.aiter_lines():
                frames.append(line)  # noqa: PERF401  # read while they come

    following = asyncio.create_task(follow())
    (approval,) = await approval_of(client, run.id)
    await client.grant_approval(approval.id, decided_by="alice")
    ended = await until(run.id, "completed", "failed")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)

    assert ended.output == b"".join(chunks).decode()
    assert asked == [1], "the second attempt replays"
    assert frames[0] == ": ok"
    assert any('"seq":' in frame for frame in frames)
    (call,) = [step for step in await client.list_steps(run.id) if step.kind == "llm_call"]
    async with httpx2.AsyncClient(base_url=server.url) as http:
        shown = (await http.get(f"/v0/executions/{run.id}/steps/{call.step_id}")).json()
    assert (shown["usage_input"], shown["usage_output"]) == (3, 4)


async def test_a_limit_refuses_and_a_budget_of_tokens_holds(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    class Provider(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, json={"usage": {"input_tokens": 60, "output_tokens": 60}})

    @rebuno.tool
    async def poll(n: int) -> int:
        return n

    async def handler(input: Any) -> Any:
        told = []
        for n in range(3):
            try:
                told.append(str(await poll(n)))
            except rebuno.RateLimited as error:
                told.append(str(error))
        async with httpx2.AsyncClient(transport=rebuno.RebunoTransport(inner=Provider())) as http:
            for _ in range(2):
                answer = await http.post("http://model/v1", json={"model": "m"})
                told.append(str(answer.status_code))
        return told

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    ended = await until(run.id, "completed", "failed")

    assert ended.output == ["0", "1", "not so often", "200", "403"]


async def test_a_limit_with_a_wait_puts_the_run_off(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    @rebuno.tool
    async def patient(n: int) -> int:
        return n

    async def handler(input: Any) -> Any:
        return [await patient(n) for n in range(2)]

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    ended = await until(run.id, "completed", "failed")

    assert ended.output == [0, 1]
    types = types_of(await client.events(run.id, limit=100))
    assert types.count("step.rate_limited") == 1
    assert types.count("dispatch.queued") == 2


async def test_a_resource_is_checkpointed_and_restored_on_a_fork(
    serve: Serve, client: rebuno.Client, until: Until
) -> None:
    made: list[str | None] = []

    class Driver:
        driver_id = "counter"

        async def create(self, ref: str | None) -> Any:
            made.append(ref)
            return {"n": int(ref or 0)}, {"at": len(made)}

        async def open(self, binding: Any) -> Any:
            return {"n": 0}

        async def checkpoint(self, handle: Any) -> str:
            return str(handle["n"])

    async def handler(input: Any) -> Any:
        handle = await rebuno.resource(
            "counter", driver=Driver(), checkpoints=rebuno.CheckpointPolicy(every_steps=1)
        )

        @rebuno.tool(resources=["counter"])
        async def up() -> int:
            handle["n"] += 1
            return int(handle["n"])

        return [await up() for _ in range(2)]

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={})
    ended = await until(run.id, "completed", "failed")
    events = await client.events(run.id, limit=100)
    saved = [event for event in events if event.type == "resource.checkpointed"]
    at_seq = saved[1].event_seq if len(saved) > 1 else saved[0].event_seq
    fork = await client.fork(run.id, at_seq=at_seq)
    await until(fork.id, "completed", "failed")

    assert ended.output == [1, 2], ended.failure_reason
    assert saved[0].payload["generation"] == 0
    assert fork.restoration["counter"]["checkpoint_ref"] is not None
    assert made[0] is None
    assert made[-1] == fork.restoration["counter"]["checkpoint_ref"]


async def test_metadata_is_published_and_shown(
    server: Server, serve: Serve, client: rebuno.Client, until: Until
) -> None:
    async def handler(question: str, limit: int = 3) -> Any:
        return None

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent, input={"question": "q"})
    await until(run.id, "completed")
    async with httpx2.AsyncClient(base_url=server.url) as http:
        shown = (await http.get(f"/v0/agents/{agent}")).json()

    assert set(shown["input_schema"]["properties"]) == {"question", "limit"}
    assert "secret" not in shown


async def test_a_run_without_input_has_null(
    server: Server, serve: Serve, client: rebuno.Client, until: Until
) -> None:
    async def handler(input: Any) -> Any:
        return {"got": input}

    agent = name()
    await serve(agent, handler)
    run = await client.create(agent)
    ended = await until(run.id, "completed", "failed")

    assert ended.output == {"got": None}


async def test_an_agent_that_cannot_be_reached_exhausts_its_run(
    server: Server, client: rebuno.Client, until: Until
) -> None:
    agent = name()
    await register(server, agent, 1)
    run = await client.create(agent, input={})
    ended = await until(run.id, "failed", seconds=40)

    assert ended.failure_reason == "dispatch_exhausted"
    types = types_of(await client.events(run.id, limit=100))
    assert types.count("dispatch.failed") == 5


async def signed_post(
    server: Server,
    agent: str,
    execution_id: str,
    what: str,
    *,
    attempt: int,
    dispatch: str | None,
    secret: str = SECRET,
    body: bytes = b"",
) -> httpx2.Response:
    import time

    target = f"/v0/executions/{execution_id}/{what}"
    timestamp = str(int(time.time()))
    dispatch_id = dispatch or str(uuid.uuid4())
    signature = signatures.of_request(
        secret,
        method="POST",
        target=target,
        timestamp=timestamp,
        dispatch_id=dispatch_id,
        dispatch_attempt=str(attempt),
        body=body,
    )
    headers = {
        "Rebuno-Agent-Id": agent,
        "Rebuno-Timestamp": timestamp,
        "Rebuno-Signature": signature,
        "Rebuno-Dispatch-Id": dispatch_id,
        "Rebuno-Dispatch-Attempt": str(attempt),
    }
    async with httpx2.AsyncClient(base_url=server.url) as http:
        return await http.post(target, content=body, headers=headers)


async def test_an_agent_may_not_touch_the_runs_of_another(
    server: Server, serve: Serve, client: rebuno.Client, until: Until
) -> None:
    release = asyncio.Event()

    async def handler(input: Any) -> Any:
        await release.wait()

    agent, other = name(), name()
    await serve(agent, handler)
    await register(server, other, 1)
    run = await client.create(agent, input={})
    foreign = await signed_post(server, other, run.id, "heartbeat", attempt=1, dispatch=None)
    forged = await signed_post(
        server, agent, run.id, "heartbeat", attempt=1, dispatch=None, secret="wrong"
    )
    stale = await signed_post(server, agent, run.id, "heartbeat", attempt=1, dispatch=None)
    release.set()
    await until(run.id, "completed")

    assert (foreign.status_code, foreign.json()["code"]) == (403, "forbidden")
    assert (forged.status_code, forged.json()["code"]) == (401, "unauthorized")
    assert (stale.status_code, stale.json()["code"]) == (409, "lease_superseded")
