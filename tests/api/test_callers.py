"""Who may do what: keys, scopes, signatures, tokens of an issuer, and approvers."""

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.support.http_port import HttpPort
from tests.support.issuer import Issuer, issuing
from tests.support.server import TOKEN, Server, running

from proctor import Agent, tool
from proctor_kernel import signatures


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def key(http: httpx2.AsyncClient, *scopes: str, groups: tuple[str, ...] = ()) -> Any:
    answer = await http.post(
        "/v0/api-keys",
        json={"name": f"k-{uuid.uuid4().hex[:6]}", "scopes": list(scopes), "groups": list(groups)},
    )
    assert answer.status_code == 201, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "bearer " + TOKEN, TOKEN, "Bearer", "Basic x"]
)
async def test_nobody_is_believed_without_a_token(server: Server, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as http:
        answer = await http.get("/v0/executions")

    assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")


async def test_a_key_may_do_what_its_scopes_say_until_it_is_rotated_or_revoked(
    http: httpx2.AsyncClient,
) -> None:
    made = await key(http, "executions:read")
    read = await http.get("/v0/executions", headers=bearer(made["token"]))
    write = await http.post("/v0/executions", json={"agent_id": "x"}, headers=bearer(made["token"]))
    listed = (await http.get("/v0/api-keys")).json()
    rotated = (await http.post(f"/v0/api-keys/{made['id']}/rotate")).json()
    old = await http.get("/v0/executions", headers=bearer(made["token"]))
    new = await http.get("/v0/executions", headers=bearer(rotated["token"]))
    revoked = [await http.delete(f"/v0/api-keys/{made['id']}") for _ in range(2)]
    gone = await http.get("/v0/executions", headers=bearer(rotated["token"]))
    again = await http.post(f"/v0/api-keys/{made['id']}/rotate")

    assert read.status_code == 200
    assert (write.status_code, write.json()["code"]) == (403, "forbidden")
    assert made["token"] not in json.dumps(listed)
    assert (old.status_code, new.status_code, gone.status_code) == (401, 200, 401)
    assert [each.status_code for each in revoked] == [204, 204]
    assert again.status_code == 409


async def test_a_key_gives_no_scopes_that_it_does_not_have(http: httpx2.AsyncClient) -> None:
    made = await key(http, "api_keys:manage")
    wider = await http.post(
        "/v0/api-keys",
        json={"name": "x", "scopes": ["executions:write"]},
        headers=bearer(made["token"]),
    )
    unknown = await http.post("/v0/api-keys", json={"name": "x", "scopes": ["everything"]})

    assert wider.status_code == 403
    assert unknown.status_code == 400


def signed(
    method: str, path: str, body: bytes, *, agent: str, secret: str, at: int | None = None
) -> dict[str, str]:
    timestamp = str(int(time.time()) if at is None else at)
    return {
        "Rebuno-Agent-Id": agent,
        "Rebuno-Timestamp": timestamp,
        "Rebuno-Signature": signatures.of_request(
            secret,
            method=method,
            target=path,
            timestamp=timestamp,
            dispatch_id="",
            dispatch_attempt="",
            body=body,
        ),
    }


async def test_a_signature_covers_method_path_time_and_body(http: httpx2.AsyncClient) -> None:
    name = f"signer-{uuid.uuid4().hex[:6]}"
    await http.post("/v0/agents", json={"id": name, "secret": "s3cret"})
    path, body = f"/v0/agents/{name}/metadata", b'{"description":"d"}'
    good = signed("PUT", path, body, agent=name, secret="s3cret")
    accepted = await http.put(path, content=body, headers=good)
    shown = (await http.get(f"/v0/agents/{name}")).json()
    refused = [
        await http.put(path, content=b'{"description":"e"}', headers=good),
        await http.put(path + "?x=1", content=body, headers=good),
        await http.put(path, content=body, headers={**good, "Rebuno-Timestamp": "17"}),
        await http.put(path, content=body, headers={**good, "Rebuno-Agent-Id": "other"}),
        await http.put(
            path, content=body, headers=signed("PUT", path, body, agent=name, secret="no")
        ),
        await http.put(
            path,
            content=body,
            headers=signed(
                "PUT", path, body, agent=name, secret="s3cret", at=int(time.time()) - 301
            ),
        ),
        await http.put(
            path,
            content=body,
            headers=signed(
                "PUT", path, body, agent=name, secret="s3cret", at=int(time.time()) + 400
            ),
        ),
    ]

    assert accepted.status_code == 204
    assert shown["description"] == "d"
    assert [each.status_code for each in refused] == [401] * len(refused)


async def test_a_request_that_was_recorded_and_is_sent_later_is_refused(
    http: httpx2.AsyncClient,
) -> None:
    name = f"signer-{uuid.uuid4().hex[:6]}"
    await http.post("/v0/agents", json={"id": name, "secret": "s3cret"})
    path, body = f"/v0/agents/{name}/metadata", b"{}"
    headers = signed("PUT", path, body, agent=name, secret="s3cret")
    first = await http.put(path, content=body, headers=headers)
    began = time.monotonic()
    while True:
        again = await http.put(path, content=body, headers=headers)
        if again.status_code != 204 or time.monotonic() - began > 15:
            break

    assert first.status_code == 204
    assert (again.status_code, again.json()["message"]) == (401, "the request was sent before")


async def test_only_whom_a_rule_asks_may_approve_as_their_credentials_say(
    server: Server, http: httpx2.AsyncClient
) -> None:
    name = f"payer-{uuid.uuid4().hex[:6]}"
    await http.post("/v0/agents", json={"id": name, "secret": "s"})
    agent = Agent(name)

    @tool
    def pay(amount: int) -> str:
        return f"paid {amount}"

    @agent.handler
    async def work(input: Any) -> Any:
        return await pay(7)

    run = (await http.post("/v0/executions", json={"agent_id": name})).json()
    port = HttpPort([server.url], name, "s")
    delivery = await port.claim(5)
    assert delivery is not None
    await agent.deliver(port, delivery)
    blocked = (await http.get(f"/v0/executions/{run['id']}")).json()["status"]
    (approval,) = [
        each for each in (await http.get("/v0/approvals")).json() if each["agent_id"] == name
    ]
    outsider = await key(http, "approvals:write")
    insider = await key(http, "approvals:write", groups=("finance",))
    url = f"/v0/approvals/{approval['id']}/grant"
    claimed = await http.post(
        url, json={"decided_by": "finance"}, headers=bearer(outsider["token"])
    )
    granted = await http.post(url, json={}, headers=bearer(insider["token"]))
    delivery = await port.claim(5)
    assert delivery is not None
    await agent.deliver(port, delivery)
    await port.aclose()
    ended = (await http.get(f"/v0/executions/{run['id']}")).json()
    decided = (await http.get(f"/v0/approvals/{approval['id']}")).json()

    assert blocked == "blocked"
    assert (approval["target"], approval["args"]) == ("pay", {"amount": 7})
    assert claimed.status_code == 403
    assert granted.status_code == 204
    assert (ended["status"], ended["output"]) == ("completed", "paid 7")
    assert decided["decided_by"] == insider["name"]


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as running_issuer:
        yield running_issuer


@pytest.fixture(scope="module")
def with_oidc(
    issuer: Issuer, rules: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("oidc")
    with running(
        "serve",
        folder=folder,
        database=str(folder / "p.db"),
        rules=rules,
        options=("--oidc-issuer", issuer.url, "--oidc-audience", "proctor"),
    ) as started:
        yield started


async def test_a_token_of_the_issuer_is_believed_for_what_its_claims_say(
    issuer: Issuer, with_oidc: Server
) -> None:
    now = int(time.time())
    claims = {
        "iss": issuer.url,
        "aud": "proctor",
        "sub": "alice",
        "exp": now + 60,
        "scope": "openid executions:read",
        "groups": ["finance"],
    }
    other = ec.generate_private_key(ec.SECP256R1())
    believed = issuer.token(claims)
    doubtful = [
        issuer.token({**claims, "aud": "other"}),
        issuer.token({**claims, "iss": "https://elsewhere.example"}),
        issuer.token({**claims, "exp": now - 120}),
        jwt.encode(claims, other, algorithm="ES256", headers={"kid": issuer.kid}),
        jwt.encode(claims, "shared secret of more than thirty-two bytes", algorithm="HS256"),
        jwt.encode(claims, "", algorithm="none"),
    ]
    async with httpx2.AsyncClient(base_url=with_oidc.url) as http:
        read = await http.get("/v0/executions", headers=bearer(believed))
        write = await http.post("/v0/executions", json={"agent_id": "x"}, headers=bearer(believed))
        refused = [await http.get("/v0/executions", headers=bearer(each)) for each in doubtful]

    assert read.status_code == 200
    assert write.status_code == 403
    assert "alice" in write.json()["message"]
    assert [each.status_code for each in refused] == [401] * len(doubtful)
