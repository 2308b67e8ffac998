"""What is malformed, unknown or not allowed: the right code, and nothing written."""

import asyncio
import json
import uuid
from typing import Any

import httpx2
import pytest
from tests.support.server import Server

UNKNOWN = "01920000-0000-7000-8000-0000000000aa"


@pytest.fixture
async def agent(http: httpx2.AsyncClient) -> str:
    name = f"agent-{uuid.uuid4().hex[:8]}"
    answer = await http.post("/v0/agents", json={"id": name, "secret": "s"})
    assert answer.status_code == 201, answer.text
    return name


def code_of(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


BODIES: list[Any] = [
    pytest.param(b"{", id="cut off"),
    pytest.param(b"[]", id="no object"),
    pytest.param(b'{"agent_id":"a","input":NaN}', id="NaN"),
    pytest.param(b'{"agent_id":"a","input":-Infinity}', id="Infinity"),
    pytest.param(b'{"agent_id":"a","more":1}', id="an unknown field"),
    pytest.param(b'{"agent_id":"a","spawned_by":{"execution_id":"x","step_id":"y","z":1}}', id="n"),
    pytest.param(b'{"agent_id":1}', id="a wrong type"),
    pytest.param(b"{}", id="a missing field"),
    pytest.param(b'{"agent_id":"a"}{}', id="two documents"),
    pytest.param(b'{"agent_id":"a",}', id="a comma too many"),
    pytest.param(b'\xff\xfe{"agent_id":"a"}', id="not UTF-8"),
    pytest.param(b'{"agent_id":"a","session":"   "}', id="a blank session"),
    pytest.param(b'{"agent_id":"a","session":"' + b"x" * 257 + b'"}', id="a long session"),
    pytest.param(b'{"agent_id":"a","parent_execution_id":"7"}', id="no id"),
    pytest.param(b'{"agent_id":"a","input":' + b"[" * 5000 + b"]" * 5000 + b"}", id="deep"),
]


@pytest.mark.parametrize("body", BODIES)
async def test_a_malformed_creation_is_refused_and_creates_nothing(
    http: httpx2.AsyncClient, agent: str, body: bytes
) -> None:
    sent = body.replace(b'"a"', json.dumps(agent).encode())
    before = (await http.get("/v0/executions?limit=200")).json()
    answer = await http.post("/v0/executions", content=sent)

    assert code_of(answer) == (400, "validation_error"), answer.text
    assert answer.json()["message"]
    assert (await http.get("/v0/executions?limit=200")).json() == before


async def test_a_body_over_the_limit_is_refused(http: httpx2.AsyncClient, agent: str) -> None:
    body = json.dumps({"agent_id": agent, "input": "x" * (10 * 1024 * 1024)}).encode()

    async def chunks() -> Any:
        for at in range(0, len(body), 1 << 20):
            yield body[at : at + (1 << 20)]

    declared = await http.post("/v0/executions", content=body)
    streamed = await http.post("/v0/executions", content=chunks())

    assert code_of(declared) == (400, "validation_error")
    assert code_of(streamed) == (400, "validation_error")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", f"/v0/executions/{UNKNOWN}", (404, "not_found")),
        ("GET", "/v0/executions/seven", (400, "validation_error")),
        ("GET", f"/v0/executions/{UNKNOWN}/events", (404, "not_found")),
        ("GET", f"/v0/executions/{UNKNOWN}/steps", (404, "not_found")),
        ("GET", f"/v0/executions/{UNKNOWN}/steps/x", (404, "not_found")),
        ("GET", f"/v0/executions/{UNKNOWN}/stream", (404, "not_found")),
        ("GET", f"/v0/executions/{UNKNOWN}/watch", (404, "not_found")),
        ("GET", f"/v0/executions/{UNKNOWN}/fork-points", (404, "not_found")),
        ("POST", f"/v0/executions/{UNKNOWN}/cancel", (404, "not_found")),
        ("GET", "/v0/executions?cursor=x", (400, "validation_error")),
        ("GET", "/v0/executions?limit=x", (400, "validation_error")),
        ("GET", "/v0/executions?status=x", (400, "validation_error")),
        ("GET", f"/v0/approvals/{UNKNOWN}", (404, "not_found")),
        ("POST", f"/v0/approvals/{UNKNOWN}/grant", (404, "not_found")),
        ("GET", "/v0/approvals?status=x", (400, "validation_error")),
        ("GET", "/v0/agents/nobody", (404, "not_found")),
        ("DELETE", "/v0/agents/nobody", (404, "not_found")),
        ("DELETE", f"/v0/api-keys/{UNKNOWN}", (404, "not_found")),
        ("GET", "/v0/nothing", (404, "not_found")),
        ("GET", "/v0/executions/", (404, "not_found")),
        ("PATCH", "/v0/executions", (405, "validation_error")),
        ("POST", f"/v0/executions/{UNKNOWN}/steps", (401, "unauthorized")),
    ],
)
async def test_what_does_not_exist_has_the_right_code(
    http: httpx2.AsyncClient, method: str, path: str, expected: tuple[int, str]
) -> None:
    assert code_of(await http.request(method, path)) == expected


async def test_an_unknown_agent_is_not_found(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v0/executions", json={"agent_id": "nobody"})

    assert code_of(answer) == (404, "not_found")


async def test_an_idempotency_key_returns_the_run_it_stands_for(
    http: httpx2.AsyncClient, agent: str
) -> None:
    body = {"agent_id": agent, "input": 1, "idempotency_key": "k"}
    answers = [await http.post("/v0/executions", json=body) for _ in range(2)]
    at_once = await asyncio.gather(
        *(
            http.post("/v0/executions", json={"agent_id": agent, "idempotency_key": "race"})
            for _ in range(8)
        )
    )

    assert len({answer.json()["id"] for answer in answers}) == 1
    assert {answer.status_code for answer in (*answers, *at_once)} == {201}
    assert len({answer.json()["id"] for answer in at_once}) == 1


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(
    server: Server, http: httpx2.AsyncClient, agent: str
) -> None:
    before = (await http.get(f"/v0/executions?agent_id={agent}")).json()
    host, port = server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v0/executions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()

    assert (await http.get(f"/v0/executions?agent_id={agent}")).json() == before
    assert (await http.get("/v0/health")).json() == {"status": "ok"}


async def test_number_literals_come_back_as_they_were_sent(
    http: httpx2.AsyncClient, agent: str
) -> None:
    literal = b'{"agent_id":"%s","input":{"a":1.50,"b":1E5,"c":1000000000000000000000000000000}}'
    created = await http.post("/v0/executions", content=literal % agent.encode())
    shown = await http.get(f"/v0/executions/{created.json()['id']}")

    assert '"input":{"a":1.50,"b":1E5,"c":1000000000000000000000000000000}' in shown.text


async def test_unset_fields_are_left_out_and_input_never_is(
    http: httpx2.AsyncClient, agent: str
) -> None:
    created = (await http.post("/v0/executions", json={"agent_id": agent})).json()

    assert created["input"] is None
    assert {name for name, value in created.items() if value is None} == {"input"}
    assert "output" not in created
