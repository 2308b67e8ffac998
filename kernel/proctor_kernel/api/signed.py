"""Requests that agents sign: who signed, under which attempt, and the body (protocol 1.1, 1.3)."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import Field

from proctor.wire.calls import Capture, CaptureFailure, Lease, WireError
from proctor.wire.words import ErrorCode
from proctor_kernel import admit
from proctor_kernel.api.bodies import Body, T, parse, read
from proctor_kernel.api.callers import lease_of, uuid_of
from proctor_kernel.api.replies import parts


class DirectRoute(APIRoute):
    """Calls the handler with the path's parameters, which is all that these handlers take.

    What FastAPI does to find out what a handler takes was measured to cost more than deciding.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            answered: Response = await endpoint(request, **request.path_params)
            return answered

        return handle


class CaptureBody(Body):
    """A checkpoint that a driver has made."""

    key: str
    generation: Annotated[int, Field(ge=0, lt=2**63)]
    checkpoint_ref: str


class CaptureFailureBody(Body):
    """A checkpoint that a driver could not make."""

    key: str
    generation: Annotated[int, Field(ge=0, lt=2**63)]
    error: str


class CheckpointsBody(Body):
    """Checkpoints, and those that could not be made."""

    captures: list[CaptureBody] | None = None
    capture_failures: list[CaptureFailureBody] | None = None


async def signed(request: Request, model: type[T]) -> tuple[str, T]:
    """Return the agent that signed a request and its body, in the order of protocol 1.1."""
    service, callers = parts(request)
    try:
        raw = await read(request, service.settings)
    except WireError as error:
        # Whoever signed cannot be told from a body that was not read.
        raise WireError(ErrorCode.UNAUTHORIZED, error.message) from None
    agent_id = await callers.agent(request, raw)
    for name, value in request.path_params.items():
        if name == "execution_id":
            uuid_of(name, value)
    return agent_id, parse(model, raw)


async def leased(request: Request, model: type[T]) -> tuple[str, Lease, T]:
    """Return the agent that signed a request, the attempt that it acts under, and the body."""
    agent_id, body = await signed(request, model)
    return agent_id, lease_of(request), body


def checkpoints(
    body: CheckpointsBody,
) -> tuple[tuple[Capture, ...], tuple[CaptureFailure, ...]]:
    """Return the checkpoints of a body in storable form."""
    return (
        tuple(
            Capture(
                admit.name("key", each.key),
                each.generation,
                admit.name("checkpoint_ref", each.checkpoint_ref),
            )
            for each in body.captures or ()
        ),
        tuple(
            CaptureFailure(
                admit.name("key", each.key), each.generation, admit.name("error", each.error)
            )
            for each in body.capture_failures or ()
        ),
    )
