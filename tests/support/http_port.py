"""An agent's way to a service over HTTP: signed, over several addresses, again until it is told."""

import asyncio
import itertools
import json
import time
from typing import Any

import httpx2

from proctor.wire.calls import Delivery, Lease, StepReply, StepSubmission, WireError
from proctor.wire.words import Answer, ErrorCode
from proctor_kernel import signatures
from proctor_kernel.api.bodies import split

TRIES_MAX = 200


class HttpPort:
    """The SDK's `AgentPort` on the protocol's routes."""

    def __init__(self, urls: list[str], agent_id: str, secret: str) -> None:
        self._urls = itertools.cycle(urls)
        self._agent_id = agent_id
        self._secret = secret
        self._http = httpx2.AsyncClient(timeout=10)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def claim(self, wait_seconds: float) -> Delivery | None:
        answer = await self._post(
            f"/v0/agents/{self._agent_id}/dispatches/claim", {"wait_seconds": wait_seconds}, None
        )
        if answer is None:
            return None
        given = {name: json.loads(text) for name, text in answer.items() if name != "input"}
        return Delivery(
            given["execution_id"],
            self._agent_id,
            Lease(given["dispatch_id"], given["dispatch_attempt"]),
            answer["input"],
        )

    async def submit_step(
        self, execution_id: str, lease: Lease, submission: StepSubmission
    ) -> StepReply:
        body = (
            f'{{"kind":"{submission.kind}","target":{json.dumps(submission.target)},'
            f'"args":{submission.args_json},"idempotency":"{submission.idempotency}",'
            f'"request_id":{json.dumps(submission.request_id)}}}'
        )
        return _reply(await self._post(f"/v0/executions/{execution_id}/steps", body, lease))

    async def complete_step(
        self, execution_id: str, lease: Lease, step_id: str, *, result_json: str
    ) -> StepReply:
        path = f"/v0/executions/{execution_id}/steps/{step_id}/complete"
        return _reply(await self._post(path, f'{{"result":{result_json}}}', lease))

    async def fail_step(
        self, execution_id: str, lease: Lease, step_id: str, *, error_json: str
    ) -> StepReply:
        path = f"/v0/executions/{execution_id}/steps/{step_id}/fail"
        return _reply(await self._post(path, f'{{"error":{error_json}}}', lease))

    async def complete_execution(
        self, execution_id: str, lease: Lease, *, output_json: str
    ) -> None:
        path = f"/v0/executions/{execution_id}/complete"
        await self._post(path, f'{{"output":{output_json}}}', lease)

    async def fail_execution(self, execution_id: str, lease: Lease, *, reason: str) -> None:
        await self._post(f"/v0/executions/{execution_id}/fail", {"error": reason}, lease)

    async def suspend(self, execution_id: str, lease: Lease) -> bool:
        answer = await self._post(f"/v0/executions/{execution_id}/suspend", {}, lease)
        return answer is not None and answer["suspended"] == "true"

    async def stream_delta(
        self, execution_id: str, lease: Lease, step_id: str, seq: int, text: str
    ) -> None:
        path = f"/v0/executions/{execution_id}/steps/{step_id}/stream"
        await self._post(path, {"seq": seq, "data": text}, lease)

    async def _post(
        self, path: str, body: str | dict[str, Any], lease: Lease | None
    ) -> dict[str, str] | None:
        raw = (body if isinstance(body, str) else json.dumps(body)).encode()
        for _ in range(TRIES_MAX):
            try:
                response = await self._http.post(
                    next(self._urls) + path, content=raw, headers=self._signed(path, raw, lease)
                )
            except httpx2.HTTPError:
                await asyncio.sleep(0.05)
                continue
            if response.status_code == 503:
                await asyncio.sleep(0.05)
                continue
            if response.status_code == 204:
                return None
            if response.status_code >= 300:
                error = response.json()
                raise WireError(ErrorCode(error["code"]), error["message"])
            return split(response.text)
        raise WireError(ErrorCode.UNAVAILABLE, "no replica answers")

    def _signed(self, path: str, raw: bytes, lease: Lease | None) -> dict[str, str]:
        timestamp = str(int(time.time()))
        dispatch_id = "" if lease is None else lease.dispatch_id
        attempt = "" if lease is None else str(lease.attempt)
        headers = {
            "Rebuno-Agent-Id": self._agent_id,
            "Rebuno-Timestamp": timestamp,
            "Rebuno-Signature": signatures.of_request(
                self._secret,
                method="POST",
                target=path,
                timestamp=timestamp,
                dispatch_id=dispatch_id,
                dispatch_attempt=attempt,
                body=raw,
            ),
        }
        if lease is not None:
            headers |= {
                "Rebuno-Dispatch-Id": dispatch_id,
                "Rebuno-Dispatch-Attempt": attempt,
            }
        return headers


def _reply(answer: dict[str, str] | None) -> StepReply:
    assert answer is not None
    plain = {name: json.loads(answer[name]) for name in answer if name not in ("result", "error")}
    return StepReply(
        Answer(plain["decision"]),
        plain.get("step_id"),
        result_json=answer.get("result"),
        error_json=answer.get("error"),
        reason=plain.get("reason", ""),
        rule_id=plain.get("rule_id", ""),
        approval_id=plain.get("approval_id"),
    )
