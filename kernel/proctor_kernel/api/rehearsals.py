"""`POST /v0/policies/{agent_id}/test`: rules tried on cases, or on what was recorded."""

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode, Scope
from proctor_kernel import rehearse, views, world
from proctor_kernel.api.bodies import Body, documented, parse, read
from proctor_kernel.api.callers import uuid_of
from proctor_kernel.api.replies import answer, parts
from proctor_kernel.bundles import BundleRefused
from proctor_kernel.core.identity import storable
from proctor_kernel.rehearse import Case
from proctor_kernel.service import Service
from proctor_kernel.store import statements
from proctor_kernel.wire_errors import errors_on_the_wire

router = APIRouter(tags=["admin"])


class CaseBody(Body):
    """A call, and what is expected of it."""

    name: str = ""
    agent_id: str | None = None
    kind: str = "tool_call"
    target: str
    args: object = None
    expect: str | None = None
    expect_rule: str | None = None


class RecordedBody(Body):
    """Recorded runs of the agent, the newest first."""

    session: str | None = None
    since: datetime | None = None
    limit: Annotated[int, Field(ge=1, le=rehearse.EXECUTIONS_MAX)] = rehearse.EXECUTIONS_DEFAULT


class TestBody(Body):
    """Rules, and what they are tried on; without a bundle those that are stored."""

    bundle: str | None = None
    cases: list[CaseBody] | None = None
    execution_id: str | None = None
    executions: RecordedBody | None = None


@router.post("/v0/policies/{agent_id}/test", openapi_extra=documented(TestBody))
async def test_policy(request: Request, agent_id: str) -> Response:
    """Say what rules would decide, beside the files; stores nothing."""
    service, callers = parts(request)
    await callers.client(request, Scope.POLICIES_WRITE, Scope.EXECUTIONS_READ)
    body = parse(TestBody, await read(request, service.settings))
    agent_id = storable(agent_id)
    with errors_on_the_wire():
        bundle = body.bundle
        if bundle is None:
            stored = await service.database.read(statements.BUNDLE_OF_AGENT, agent_id=agent_id)
            if not stored:
                raise WireError(
                    ErrorCode.VALIDATION_ERROR, f"no rules are stored for {agent_id!r}; send some"
                )
            bundle = stored[0]["bundle"]
        cases = await _cases(service, agent_id, body)
    try:
        report = rehearse.rehearsed(bundle, service.rules.rules, cases, world.now_micros())
    except BundleRefused as refused:
        raise WireError(
            ErrorCode.VALIDATION_ERROR, "the bundle does not load", str(refused)
        ) from None
    return answer(report.view())


async def _cases(service: Service, agent_id: str, body: TestBody) -> list[Case]:
    if body.execution_id is not None:
        execution_id = uuid_of("execution_id", body.execution_id)
        row = await service.queries.execution_row(execution_id)
        return await _recorded(service, [(execution_id, row["agent_id"])])
    if body.executions is not None:
        found = await service.database.read(
            statements.EXECUTIONS_PAGE,
            agent_id=agent_id,
            session=storable(body.executions.session or ""),
            status="",
            before="~",
            row_limit=body.executions.limit,
        )
        since = _micros(body.executions.since)
        return await _recorded(
            service, [(row["id"], agent_id) for row in found if row["created_at"] >= since]
        )
    for case in body.cases or ():
        if case.kind not in rehearse.KINDS:
            raise WireError(ErrorCode.VALIDATION_ERROR, f"kind: {case.kind!r} is none")
    return [
        Case(
            case.agent_id or agent_id,
            case.kind,
            case.target,
            views.to_json(case.args),
            case.name,
            case.expect,
            case.expect_rule,
        )
        for case in body.cases or ()
    ]


async def _recorded(service: Service, runs: list[tuple[str, str]]) -> list[Case]:
    return [
        rehearse.of_step(row, agent_id)
        for execution_id, agent_id in runs
        for row in await service.database.read(
            statements.STEPS_OF_EXECUTION, execution_id=execution_id
        )
    ]


def _micros(moment: datetime | None) -> int:
    if moment is None:
        return 0
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1_000_000)
