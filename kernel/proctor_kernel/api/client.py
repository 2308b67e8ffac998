"""What the owners of runs ask (protocol 1.2)."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field

from proctor.wire.calls import WireError
from proctor.wire.words import (
    EVENTS_PAGE_MAX,
    EXECUTIONS_PAGE_MAX,
    ErrorCode,
    ExecutionStatus,
    Reason,
    Scope,
)
from proctor_kernel import views
from proctor_kernel.api.bodies import Body, JsonText, documented, parse, read
from proctor_kernel.api.callers import Caller, uuid_of
from proctor_kernel.api.documents import (
    CREATED,
    EVENTS,
    EXECUTION,
    EXECUTIONS,
    FORK_POINTS,
    PREVIOUS,
    STEP,
    STEPS,
)
from proctor_kernel.api.replies import NO_CONTENT, answer, parts
from proctor_kernel.views import View
from proctor_kernel.wire_errors import errors_on_the_wire

router = APIRouter(tags=["client"])

EVENTS_DEFAULT = 100


class SpawnedByBody(Body):
    """The step that waits for the run."""

    execution_id: str
    step_id: str


class CreateBody(Body):
    """A run to start."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"agent_id": "researcher", "input": {"question": "cedar"}}]
        },
    )

    agent_id: str
    input: JsonText = "null"
    session: str | None = None
    parent_execution_id: str | None = None
    idempotency_key: str | None = None
    spawned_by: SpawnedByBody | None = None
    on_behalf_of: str | None = None
    agent_version: str | None = Field(default=None, description="accepted and not used")


class ForkBody(Body):
    """Where the copy ends, and the rules that it gets."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"at_seq": 12}]})

    at_seq: Annotated[int, Field(lt=2**31)]
    session: str | None = None
    policy_bundle: str | None = None


@router.post(
    "/v0/executions", status_code=201, openapi_extra=documented(CreateBody), responses=CREATED
)
async def create_execution(request: Request) -> Response:
    """Start a run; a known idempotency key returns the run it stands for."""
    caller = await _client(request, Scope.EXECUTIONS_WRITE)
    service, _ = parts(request)
    body = parse(CreateBody, await read(request, service.settings))
    spawned_by = None
    if body.spawned_by is not None:
        spawned_by = (
            uuid_of("spawned_by.execution_id", body.spawned_by.execution_id),
            body.spawned_by.step_id,
        )
    parent_id = body.parent_execution_id
    execution_id = await service.runs.create(
        body.agent_id,
        input_json=body.input,
        session=body.session,
        parent_execution_id=None if not parent_id else uuid_of("parent_execution_id", parent_id),
        idempotency_key=body.idempotency_key,
        spawned_by=spawned_by,
        created_by=caller.name,
        on_behalf_of=body.on_behalf_of,
    )
    with errors_on_the_wire():
        return answer(await service.queries.execution(execution_id), 201)


@router.get("/v0/executions", responses=EXECUTIONS)
async def list_executions(
    request: Request,
    agent_id: str = "",
    session: str = "",
    status: str = "",
    cursor: str = "",
    limit: int = 50,
) -> Response:
    """Read a page of runs, the newest first."""
    await _client(request, Scope.EXECUTIONS_READ)
    service, _ = parts(request)
    if status and status not in set(ExecutionStatus):
        raise WireError(
            ErrorCode.VALIDATION_ERROR,
            f"status: {status!r} is none of: {', '.join(ExecutionStatus)}",
        )
    with errors_on_the_wire():
        return answer(
            await service.queries.executions(
                agent_id=_storable(agent_id),
                session=_storable(session),
                status=status,
                cursor=uuid_of("cursor", cursor) if cursor else "",
                limit=min(max(limit, 1), EXECUTIONS_PAGE_MAX),
            )
        )


@router.get("/v0/executions/{execution_id}", responses=EXECUTION)
async def get_execution(request: Request, execution_id: str) -> Response:
    """Read one run."""
    agent_id = await _either(request)
    execution_id = uuid_of("execution_id", execution_id)
    return answer(await _owned(request, execution_id, agent_id))


@router.get("/v0/executions/{execution_id}/previous", responses=PREVIOUS)
async def get_previous(request: Request, execution_id: str) -> Response:
    """Read what the run before this one left for it."""
    agent_id = await _either(request)
    execution_id = uuid_of("execution_id", execution_id)
    await _owned(request, execution_id, agent_id)
    service, _ = parts(request)
    with errors_on_the_wire():
        return answer(await service.queries.previous(execution_id))


@router.get("/v0/executions/{execution_id}/events", responses=EVENTS)
async def list_events(
    request: Request,
    execution_id: str,
    after_seq: Annotated[str, Query(description="events after this one; 0 by default")] = "0",
    limit: Annotated[str, Query(description="100 by default, 1000 at most")] = "",
) -> Response:
    """Read a page of a run's log."""
    await _client(request, Scope.EXECUTIONS_READ)
    execution_id = uuid_of("execution_id", execution_id)
    service, _ = parts(request)
    wanted = _number(limit)
    with errors_on_the_wire():
        return answer(
            await service.queries.events(
                execution_id,
                after_seq=_number(after_seq),
                limit=min(wanted, EVENTS_PAGE_MAX) if wanted > 0 else EVENTS_DEFAULT,
            )
        )


@router.get("/v0/executions/{execution_id}/steps", responses=STEPS)
async def list_steps(
    request: Request,
    execution_id: str,
    status: str = "",
    order: Annotated[str, Query(description="by id, or as they were first `proposed`")] = "",
) -> Response:
    """Read the steps of a run; with `status=terminal` only those with an outcome."""
    agent_id = await _either(request)
    execution_id = uuid_of("execution_id", execution_id)
    await _owned(request, execution_id, agent_id)
    service, _ = parts(request)
    with errors_on_the_wire():
        return answer(
            await service.queries.steps(
                execution_id, only_terminal=status == "terminal", by_id=order != "proposed"
            )
        )


@router.get("/v0/executions/{execution_id}/steps/{step_id}", responses=STEP)
async def get_step(request: Request, execution_id: str, step_id: str) -> Response:
    """Read one step of a run."""
    agent_id = await _either(request)
    execution_id = uuid_of("execution_id", execution_id)
    await _owned(request, execution_id, agent_id)
    service, _ = parts(request)
    with errors_on_the_wire():
        return answer(await service.queries.step(execution_id, _storable(step_id)))


@router.post("/v0/executions/{execution_id}/cancel", status_code=204)
async def cancel_execution(request: Request, execution_id: str) -> Response:
    """End a run."""
    await _client(request, Scope.EXECUTIONS_WRITE)
    service, _ = parts(request)
    await service.runs.cancel(uuid_of("execution_id", execution_id), Reason.CLIENT_CANCELLED)
    return NO_CONTENT


@router.post(
    "/v0/executions/{execution_id}/fork",
    status_code=201,
    openapi_extra=documented(ForkBody),
    responses=CREATED,
)
async def fork_execution(request: Request, execution_id: str) -> Response:
    """Start a run as a copy of this one up to an event; its rules can only be tighter."""
    caller = await _client(request, Scope.EXECUTIONS_WRITE)
    execution_id = uuid_of("execution_id", execution_id)
    service, _ = parts(request)
    body = parse(ForkBody, await read(request, service.settings))
    if body.policy_bundle:
        if Scope.POLICIES_WRITE not in caller.scopes:
            raise WireError(
                ErrorCode.FORBIDDEN,
                f"{caller.name} does not have the scope {Scope.POLICIES_WRITE}",
            )
        service.agents.check_bundle(body.policy_bundle)
    fork_id = await service.runs.fork(
        execution_id,
        at_seq=body.at_seq,
        session=body.session,
        bundle=body.policy_bundle or None,
        created_by=caller.name,
    )
    with errors_on_the_wire():
        return answer(await service.queries.execution(fork_id, with_restoration=True), 201)


@router.get("/v0/executions/{execution_id}/fork-points", responses=FORK_POINTS)
async def fork_points(request: Request, execution_id: str) -> Response:
    """Read where a run can be forked, and which checkpoints there are."""
    await _client(request, Scope.EXECUTIONS_READ)
    execution_id = uuid_of("execution_id", execution_id)
    service, _ = parts(request)
    with errors_on_the_wire():
        state = await service.kernel.load(execution_id)
    if state.status is None:
        raise WireError(ErrorCode.NOT_FOUND, f"no execution {execution_id!r}")
    return answer(views.fork_points(state))


async def _client(request: Request, *scopes: Scope) -> Caller:
    _, callers = parts(request)
    return await callers.client(request, *scopes)


async def _either(request: Request) -> str | None:
    _, callers = parts(request)
    return await callers.either(request)


async def _owned(request: Request, execution_id: str, agent_id: str | None) -> View:
    """Return one run; an agent sees its own only."""
    service, _ = parts(request)
    with errors_on_the_wire():
        view = await service.queries.execution(execution_id)
    if agent_id is not None and view["agent_id"] != agent_id:
        raise WireError(ErrorCode.FORBIDDEN, "the execution belongs to another agent")
    return view


def _number(text: str) -> int:
    """Read a number of events; what is none counts as 0 (protocol 1.2)."""
    given: Any = text
    try:
        return min(max(int(given), 0), 2**31 - 1)
    except ValueError:
        return 0


def _storable(text: str) -> str:
    # No row holds NUL, and PostgreSQL refuses to be asked for it.
    return text.replace("\x00", "\ufffd")
