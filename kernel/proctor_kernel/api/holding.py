"""What a running agent says of the resources it holds (protocol 1.3, 4.7)."""

from fastapi import APIRouter, Request, Response

from proctor_kernel import admit, views
from proctor_kernel.api.bodies import Body, JsonText, documented
from proctor_kernel.api.replies import NO_CONTENT, answer, parts
from proctor_kernel.api.signed import CheckpointsBody, DirectRoute, checkpoints, leased

router = APIRouter(tags=["agent"], route_class=DirectRoute)


class RegisterResourceBody(Body):
    """Something with a state of its own that the agent holds."""

    key: str
    driver_id: str
    configuration: JsonText = "null"
    coverage_reuse: bool = False
    every_steps: int = 0
    on_completion: bool | None = None


class BindingBody(Body):
    """Where a live resource is found again."""

    binding: JsonText = "null"


@router.post(
    "/v0/executions/{execution_id}/resources", openapi_extra=documented(RegisterResourceBody)
)
async def register_resource(request: Request, execution_id: str) -> Response:
    """Register a resource, or find it again."""
    agent_id, lease, body = await leased(request, RegisterResourceBody)
    service, _ = parts(request)
    command = admit.resource(
        lease,
        body.key,
        driver_id=body.driver_id,
        configuration_json=body.configuration,
        coverage_reuse=body.coverage_reuse,
        every_steps=body.every_steps,
        on_completion=body.on_completion,
    )
    registered = await service.attempts.register_resource(
        execution_id.lower(), command, owner=agent_id
    )
    return answer(views.resource(registered))


@router.post(
    "/v0/executions/{execution_id}/resources/checkpoints",
    status_code=204,
    openapi_extra=documented(CheckpointsBody),
)
async def publish_checkpoints(request: Request, execution_id: str) -> Response:
    """Report checkpoints that were made between calls."""
    agent_id, lease, body = await leased(request, CheckpointsBody)
    service, _ = parts(request)
    captures, failures = checkpoints(body)
    await service.attempts.publish_checkpoints(
        execution_id.lower(), lease, captures, failures, owner=agent_id
    )
    return NO_CONTENT


@router.post(
    "/v0/executions/{execution_id}/resources/{key}/binding",
    status_code=204,
    openapi_extra=documented(BindingBody),
)
async def bind_resource(request: Request, execution_id: str, key: str) -> Response:
    """Say where a live resource is found again."""
    agent_id, lease, body = await leased(request, BindingBody)
    service, _ = parts(request)
    await service.attempts.bind_resource(
        execution_id.lower(), lease, key, binding_json=body.binding, owner=agent_id
    )
    return NO_CONTENT
