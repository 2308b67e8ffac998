"""What a running agent asks: signed, and under a lease (protocol 1.3)."""

import time  # how long a request took, not when
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from proctor.wire.calls import (
    StepReply,
    StepSubmission,
    WireError,
)
from proctor.wire.words import ErrorCode, Idempotency, StepKind
from proctor_kernel import metrics, views
from proctor_kernel.api.bodies import Body, Empty, JsonText, documented
from proctor_kernel.api.claims import next_delivery
from proctor_kernel.api.replies import NO_CONTENT, answer, parts
from proctor_kernel.api.signed import CheckpointsBody, DirectRoute, checkpoints, leased, signed
from proctor_kernel.views import Raw, View
from proctor_kernel.webhooks import lease_seconds

router = APIRouter(tags=["agent"], route_class=DirectRoute)

_WAIT_SECONDS_MAX = 30.0


class SubmitBody(Body):
    """A call that asks whether it may run."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"kind": "tool_call", "target": "search", "args": {"query": "cedar"}}]
        },
    )

    kind: str
    target: str
    args: JsonText = "null"
    idempotency: str = Idempotency.SAFE_TO_RETRY
    resources: list[str] | None = None
    request_id: str | None = None
    """Makes a submit that is sent again the same submit."""


class CompleteStepBody(CheckpointsBody):
    """What a body returned."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"result": ["a", "b"]}]}
    )

    result: JsonText = "null"


class FailStepBody(CheckpointsBody):
    """What a body raised."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"error": {"message": "no such file"}}]}
    )

    error: JsonText


class DeltaBody(Body):
    """A piece of a streamed answer."""

    seq: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    data: str


class CompleteBody(Body):
    """What a handler returned."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"output": {"answer": 42}}]}
    )

    output: JsonText = "null"
    state: JsonText = "null"


class FailBody(Body):
    """Why a handler failed."""

    error: str


class MetadataBody(Body):
    """What an agent says of itself."""

    description: str | None = None
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None


class ClaimBody(Body):
    """How long to wait for a delivery."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"wait_seconds": 20}]}
    )

    wait_seconds: Annotated[float, Field(ge=0, le=_WAIT_SECONDS_MAX)] = 0.0


@router.post("/v0/executions/{execution_id}/steps", openapi_extra=documented(SubmitBody))
async def submit_step(request: Request, execution_id: str) -> Response:
    """Ask whether a body may run; the answer is durable (protocol 5)."""
    agent_id, lease, body = await leased(request, SubmitBody)
    try:
        kind = StepKind(body.kind)
    except ValueError:
        raise WireError(
            ErrorCode.VALIDATION_ERROR,
            f"kind: {body.kind!r} is none of: {', '.join(StepKind)}",
        ) from None
    submission = StepSubmission(
        kind,
        body.target,
        body.args,
        # Anything else is safe to retry (protocol 1.3).
        Idempotency.AT_MOST_ONCE
        if body.idempotency == Idempotency.AT_MOST_ONCE
        else Idempotency.SAFE_TO_RETRY,
        body.request_id,
        tuple(body.resources or ()),
    )
    service, _ = parts(request)
    reply = await service.attempts.submit_step(
        execution_id.lower(), lease, submission, owner=agent_id
    )
    (metrics.REPLAY_HIT if reply.decision == "replay" else metrics.REPLAY_MISS).inc()
    metrics.SUBMIT_SECONDS.observe(time.perf_counter() - request.scope["began"])
    return answer(_reply(reply))


@router.post(
    "/v0/executions/{execution_id}/steps/{step_id}/complete",
    openapi_extra=documented(CompleteStepBody),
)
async def complete_step(request: Request, execution_id: str, step_id: str) -> Response:
    """Record what a body returned."""
    agent_id, lease, body = await leased(request, CompleteStepBody)
    service, _ = parts(request)
    captures, failures = checkpoints(body)
    reply = await service.attempts.complete_step(
        execution_id.lower(),
        lease,
        step_id,
        result_json=body.result,
        captures=captures,
        capture_failures=failures,
        owner=agent_id,
    )
    metrics.COMPLETE_SECONDS.observe(time.perf_counter() - request.scope["began"])
    return answer(_reply(reply))


@router.post(
    "/v0/executions/{execution_id}/steps/{step_id}/fail", openapi_extra=documented(FailStepBody)
)
async def fail_step(request: Request, execution_id: str, step_id: str) -> Response:
    """Record what a body raised."""
    agent_id, lease, body = await leased(request, FailStepBody)
    service, _ = parts(request)
    captures, failures = checkpoints(body)
    reply = await service.attempts.fail_step(
        execution_id.lower(),
        lease,
        step_id,
        error_json=body.error,
        captures=captures,
        capture_failures=failures,
        owner=agent_id,
    )
    metrics.FAIL_SECONDS.observe(time.perf_counter() - request.scope["began"])
    return answer(_reply(reply))


@router.post(
    "/v0/executions/{execution_id}/steps/{step_id}/stream",
    status_code=204,
    openapi_extra=documented(DeltaBody),
)
async def stream_delta(request: Request, execution_id: str, step_id: str) -> Response:
    """Pass a piece of a streamed answer on to whoever listens."""
    agent_id, lease, body = await leased(request, DeltaBody)
    service, _ = parts(request)
    execution_id = execution_id.lower()
    await service.attempts.check_delta(execution_id, lease, step_id, body.data, owner=agent_id)
    frame = views.to_json({"step_id": step_id, "seq": body.seq, "data": body.data})
    service.wakes.tell("delta", f"{execution_id} {frame}")
    return NO_CONTENT


@router.post(
    "/v0/executions/{execution_id}/heartbeat",
    status_code=204,
    openapi_extra=documented(Empty, required=False),
)
async def heartbeat(request: Request, execution_id: str) -> Response:
    """Say that the attempt is still at work."""
    agent_id, lease, _ = await leased(request, Empty)
    service, _ = parts(request)
    await service.attempts.heartbeat(execution_id.lower(), lease, owner=agent_id)
    return NO_CONTENT


@router.post(
    "/v0/executions/{execution_id}/suspend", openapi_extra=documented(Empty, required=False)
)
async def suspend(request: Request, execution_id: str) -> Response:
    """Stop, if all that is under way waits."""
    agent_id, lease, _ = await leased(request, Empty)
    service, _ = parts(request)
    suspended = await service.attempts.suspend(execution_id.lower(), lease, owner=agent_id)
    return answer({"suspended": suspended})


@router.post(
    "/v0/executions/{execution_id}/complete",
    status_code=204,
    openapi_extra=documented(CompleteBody),
)
async def complete_execution(request: Request, execution_id: str) -> Response:
    """Record what the handler returned, and end the run."""
    agent_id, lease, body = await leased(request, CompleteBody)
    service, _ = parts(request)
    await service.attempts.complete_execution(
        execution_id.lower(),
        lease,
        output_json=body.output,
        state_json=body.state,
        owner=agent_id,
    )
    return NO_CONTENT


@router.post(
    "/v0/executions/{execution_id}/fail", status_code=204, openapi_extra=documented(FailBody)
)
async def fail_execution(request: Request, execution_id: str) -> Response:
    """End the run as failed."""
    agent_id, lease, body = await leased(request, FailBody)
    service, _ = parts(request)
    await service.attempts.fail_execution(
        execution_id.lower(), lease, reason=body.error, owner=agent_id
    )
    return NO_CONTENT


@router.put(
    "/v0/agents/{agent_id}/metadata", status_code=204, openapi_extra=documented(MetadataBody)
)
async def put_metadata(request: Request, agent_id: str) -> Response:
    """Keep what an agent says of itself."""
    signer, body = await signed(request, MetadataBody)
    _own(signer, agent_id)
    service, _ = parts(request)
    await service.agents.describe(
        agent_id,
        description=body.description,
        input_schema=body.input_schema,
        output_schema=body.output_schema,
    )
    return NO_CONTENT


@router.post(
    "/v0/agents/{agent_id}/dispatches/claim",
    openapi_extra=documented(ClaimBody, required=False),
    responses={204: {"description": "Nothing was due in time."}},
)
async def claim_dispatch(request: Request, agent_id: str) -> Response:
    """Wait for a delivery: for agents that cannot be reached."""
    signer, body = await signed(request, ClaimBody)
    _own(signer, agent_id)
    service, _ = parts(request)
    claimed = await next_delivery(service, agent_id, body.wait_seconds)
    if claimed is None:
        return NO_CONTENT
    execution_id, lease, input_json = claimed
    agent = await service.agents.find(agent_id)
    return answer(
        {
            "execution_id": execution_id,
            "dispatch_id": lease.dispatch_id,
            "dispatch_attempt": lease.attempt,
            "lease_timeout_seconds": lease_seconds(service.settings, agent),
            "input": Raw(input_json),
        }
    )


def _own(signer: str, agent_id: str) -> None:
    if signer != agent_id:
        raise WireError(ErrorCode.FORBIDDEN, f"signed by {signer!r}, not by {agent_id!r}")


def _reply(reply: StepReply) -> View:
    view: View = {"decision": str(reply.decision)}
    if reply.step_id is not None:
        view["step_id"] = reply.step_id
    if reply.result_json is not None:
        view["result"] = Raw(reply.result_json)
    if reply.error_json is not None:
        view["error"] = Raw(reply.error_json)
    if reply.approval_id is not None:
        view["approval_id"] = reply.approval_id
    if reply.reason:
        view["reason"] = reply.reason
    if reply.rule_id:
        view["rule_id"] = reply.rule_id
    if reply.resources:
        view["resources"] = [
            {"key": each.key, "generation": each.generation, "due": each.due}
            for each in reply.resources
        ]
    return view
