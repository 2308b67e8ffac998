"""Agents, rules, approvals and keys (protocol 1.4)."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import ConfigDict, Field

from proctor.wire.calls import WireError
from proctor.wire.words import ApprovalStatus, ErrorCode, Scope
from proctor_kernel.api import documents
from proctor_kernel.api.bodies import Body, documented, parse, read
from proctor_kernel.api.callers import Caller, uuid_of
from proctor_kernel.api.replies import NO_CONTENT, answer, parts
from proctor_kernel.core.commands import Deny, Grant
from proctor_kernel.core.identity import storable
from proctor_kernel.rules import policy_status
from proctor_kernel.wire_errors import errors_on_the_wire

router = APIRouter(tags=["admin"])

RATIONALE_CHARACTERS_MAX = 4000


class AgentBody(Body):
    """An agent; without an address it asks for its runs itself."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "id": "researcher",
                    "secret": "a long secret",
                    "webhook_url": "https://agents.example.com/webhook",
                }
            ]
        },
    )

    id: str
    secret: str
    webhook_url: str | None = None
    lease_timeout_seconds: Annotated[float, Field(ge=0, lt=10**7)] | None = None


class BundleBody(Body):
    """Cedar text, or a Rebuno bundle; empty drops what there is."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"bundle": '@id("read") permit (principal, action == Action::"read", resource);'}
            ]
        },
    )

    bundle: str


class DecisionBody(Body):
    """What a person says. Who they are comes from their credentials."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"rationale": "checked with the customer"}]}
    )

    decided_by: str | None = Field(
        default=None, description="believed only by a development server without tokens"
    )
    rationale: Annotated[str, Field(max_length=RATIONALE_CHARACTERS_MAX)] = ""


class KeyBody(Body):
    """A key to make."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"name": "ops", "scopes": ["executions:read"], "groups": ["finance"]}]
        },
    )

    name: str
    scopes: list[str]
    groups: list[str] = Field(default_factory=list)


@router.post(
    "/v0/agents",
    status_code=201,
    openapi_extra=documented(AgentBody),
    responses={201: {"model": documents.AgentView}},
)
async def register_agent(request: Request) -> Response:
    """Register an agent, or replace its address and secret; rules that came for it stay."""
    await _client(request, Scope.AGENTS_WRITE)
    service, _ = parts(request)
    body = parse(AgentBody, await read(request, service.settings))
    with errors_on_the_wire():
        await service.agents.register(
            body.id,
            secret=body.secret,
            webhook_url=body.webhook_url,
            lease_seconds=body.lease_timeout_seconds,
        )
        return answer(await service.queries.agent(body.id), 201)


@router.get("/v0/agents", responses=documents.AGENTS)
async def list_agents(request: Request) -> Response:
    """Read every agent, by id."""
    await _client(request, Scope.AGENTS_READ)
    service, _ = parts(request)
    with errors_on_the_wire():
        return answer(await service.queries.agents())


@router.get("/v0/agents/{agent_id}", responses=documents.AGENT)
async def get_agent(request: Request, agent_id: str) -> Response:
    """Read one agent."""
    await _client(request, Scope.AGENTS_READ)
    service, _ = parts(request)
    with errors_on_the_wire():
        return answer(await service.queries.agent(storable(agent_id)))


@router.delete("/v0/agents/{agent_id}", status_code=204)
async def remove_agent(request: Request, agent_id: str) -> Response:
    """Forget an agent that never had a run."""
    await _client(request, Scope.AGENTS_WRITE)
    service, _ = parts(request)
    with errors_on_the_wire():
        await service.agents.remove(storable(agent_id))
    return NO_CONTENT


@router.get("/v0/policy", responses=documents.POLICY)
async def get_policy(request: Request) -> Response:
    """Read which rules decide, and what is wrong with their folder."""
    await _client(request)
    service, _ = parts(request)
    status = policy_status(service.rules.status)
    return answer(status.model_dump(mode="json", exclude_none=True))


@router.post("/v0/policies/{agent_id}", status_code=204, openapi_extra=documented(BundleBody))
async def set_policy(request: Request, agent_id: str) -> Response:
    """Put rules in force that must allow an agent's calls too: they can only tighten."""
    caller = await _client(request, Scope.POLICIES_WRITE)
    service, _ = parts(request)
    body = parse(BundleBody, await read(request, service.settings))
    with errors_on_the_wire():
        await service.agents.set_bundle(storable(agent_id), storable(body.bundle), by=caller.name)
    return NO_CONTENT


@router.get("/v0/approvals", responses=documents.APPROVALS)
async def list_approvals(
    request: Request, status: str = ApprovalStatus.PENDING, after: str = ""
) -> Response:
    """Read a page of approvals, the oldest first; an empty status is any."""
    await _client(request, Scope.APPROVALS_READ)
    service, _ = parts(request)
    if status and status not in set(ApprovalStatus):
        raise WireError(
            ErrorCode.VALIDATION_ERROR,
            f"status: {status!r} is none of: {', '.join(ApprovalStatus)}",
        )
    with errors_on_the_wire():
        return answer(
            await service.queries.approvals(
                status=status, after=uuid_of("after", after) if after else ""
            )
        )


@router.get("/v0/approvals/{approval_id}", responses=documents.APPROVAL)
async def get_approval(request: Request, approval_id: str) -> Response:
    """Read one approval, with the call that it is about."""
    await _client(request, Scope.APPROVALS_READ)
    service, _ = parts(request)
    with errors_on_the_wire():
        return answer(await service.queries.approval(uuid_of("approval_id", approval_id)))


@router.post(
    "/v0/approvals/{approval_id}/grant",
    status_code=204,
    openapi_extra=documented(DecisionBody, required=False),
)
async def grant_approval(request: Request, approval_id: str) -> Response:
    """Agree to a call."""
    return await _decided(request, approval_id, Grant)


@router.post(
    "/v0/approvals/{approval_id}/deny",
    status_code=204,
    openapi_extra=documented(DecisionBody, required=False),
)
async def deny_approval(request: Request, approval_id: str) -> Response:
    """Say no to a call; the model is told the rationale."""
    return await _decided(request, approval_id, Deny)


@router.get("/v0/audit/key", responses=documents.SIGNING_KEY)
async def get_signing_key(request: Request) -> Response:
    """Read the public key that checkpoints of the log are signed with, and the last of them."""
    await _client(request)
    service, _ = parts(request)
    if service.signer is None:
        raise WireError(
            ErrorCode.NOT_FOUND, "this server signs no checkpoints; start it with --signing-key"
        )
    with errors_on_the_wire():
        number, digest = await service.queries.last_checkpoint()
    return answer(
        {
            "key_id": service.signer.key_id,
            "public_key": service.signer.public_pem,
            "checkpoint": number,
            "checkpoint_hash": digest,
        }
    )


@router.post(
    "/v0/api-keys",
    status_code=201,
    openapi_extra=documented(KeyBody),
    responses={201: {"model": documents.NewApiKeyView}},
)
async def create_key(request: Request) -> Response:
    """Make an API key; its token is in this answer and nowhere else."""
    caller = await _client(request, Scope.API_KEYS_MANAGE)
    service, _ = parts(request)
    body = parse(KeyBody, await read(request, service.settings))
    beyond = sorted(set(body.scopes) - caller.scopes)
    known = {str(scope) for scope in Scope}
    if beyond and known.issuperset(beyond):
        raise WireError(
            ErrorCode.FORBIDDEN,
            f"{caller.name} cannot give scopes that it does not have: {', '.join(beyond)}",
        )
    with errors_on_the_wire():
        made = await service.keys.create(body.name, body.scopes, body.groups)
    return answer(made, 201, is_secret=True)


@router.get("/v0/api-keys", responses=documents.API_KEYS)
async def list_keys(request: Request) -> Response:
    """Read every key, without the tokens."""
    await _client(request, Scope.API_KEYS_MANAGE)
    service, _ = parts(request)
    with errors_on_the_wire():
        return answer(await service.queries.api_keys())


@router.post("/v0/api-keys/{key_id}/rotate", responses=documents.NEW_API_KEY)
async def rotate_key(request: Request, key_id: str) -> Response:
    """Give a key another token; the old one is worthless at once."""
    await _client(request, Scope.API_KEYS_MANAGE)
    service, _ = parts(request)
    with errors_on_the_wire():
        made = await service.keys.rotate(uuid_of("key_id", key_id))
    return answer(made, is_secret=True)


@router.delete("/v0/api-keys/{key_id}", status_code=204)
async def revoke_key(request: Request, key_id: str) -> Response:
    """Make a key worthless."""
    await _client(request, Scope.API_KEYS_MANAGE)
    service, _ = parts(request)
    with errors_on_the_wire():
        await service.keys.revoke(uuid_of("key_id", key_id))
    return NO_CONTENT


async def _client(request: Request, *scopes: Scope) -> Caller:
    _, callers = parts(request)
    return await callers.client(request, *scopes)


async def _decided(
    request: Request, approval_id: str, resolution: type[Grant] | type[Deny]
) -> Response:
    caller = await _client(request, Scope.APPROVALS_WRITE)
    approval_id = uuid_of("approval_id", approval_id)
    service, _ = parts(request)
    body = parse(DecisionBody, await read(request, service.settings))
    await service.runs.decide_approval(
        approval_id, resolution(_name(caller, body), caller.groups, storable(body.rationale))
    )
    return NO_CONTENT


def _name(caller: Caller, body: DecisionBody) -> str:
    """Return who decides: from credentials; where none are asked for, the name that is given."""
    if caller.is_anonymous and body.decided_by:
        return storable(body.decided_by[:200])
    return caller.name
