"""What OpenAPI says of answers: the wire's own models, the errors, and who may ask."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from proctor.wire.messages import (
    Approval,
    Event,
    Execution,
    ExecutionPage,
    ForkPoints,
    PolicyStatus,
    Step,
)
from proctor_kernel.api.bodies import NESTED

Responses = dict[int | str, dict[str, Any]]


class ErrorEnvelope(BaseModel):
    """Every error (protocol 0.1)."""

    code: str
    message: str
    details: str | None = None


class Previous(BaseModel):
    """What the run before left."""

    state: Any


class AgentView(BaseModel):
    """An agent."""

    id: str
    registered_at: str
    webhook_url: str | None = None
    lease_timeout_seconds: int | None = None
    description: str | None = None
    input_schema: Any = None
    output_schema: Any = None
    policy_bundle: str | None = None


class ApiKeyView(BaseModel):
    """An API key, without its token."""

    id: str
    name: str
    scopes: list[str]
    groups: list[str]
    created_at: str
    revoked_at: str | None = None


class NewApiKeyView(ApiKeyView):
    """An API key with its token, which is shown once."""

    token: str


class SigningKeyView(BaseModel):
    """What checkpoints are signed with, and the last of them."""

    key_id: str
    public_key: str
    checkpoint: int
    checkpoint_hash: str


def _of(model: Any, status: int = 200) -> Responses:
    return {status: {"model": model}}


EXECUTION: Final = _of(Execution)
CREATED: Final = _of(Execution, 201)
EXECUTIONS: Final = _of(ExecutionPage)
PREVIOUS: Final = _of(Previous)
EVENTS: Final = _of(list[Event])
STEPS: Final = _of(list[Step])
STEP: Final = _of(Step)
FORK_POINTS: Final = _of(ForkPoints)
AGENT: Final = _of(AgentView)
AGENTS: Final = _of(list[AgentView])
APPROVAL: Final = _of(Approval)
APPROVALS: Final = _of(list[Approval])
POLICY: Final = _of(PolicyStatus)
API_KEYS: Final = _of(list[ApiKeyView])
SIGNING_KEY: Final = _of(SigningKeyView)
NEW_API_KEY: Final = _of(NewApiKeyView)

_ERRORS: Final = {
    "400": "Malformed: nothing changed.",
    "401": "Nobody known asks.",
    "403": "Whoever asks may not.",
    "404": "There is no such thing.",
    "409": "It does not fit the state: nothing changed.",
    "503": "The database is gone for now; try again.",
}
_OPEN: Final = ("/v0/health", "/v0/ready", "/metrics")


def install(app: FastAPI) -> None:
    """Give `app` an OpenAPI document with errors and authentication on every route."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(
                get_openapi(
                    title=app.title,
                    version=app.version,
                    description=app.description,
                    routes=app.routes,
                )
            )
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way


def _completed(schema: dict[str, Any]) -> dict[str, Any]:
    components = schema.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["ErrorEnvelope"] = ErrorEnvelope.model_json_schema()
    schemas |= NESTED
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "agent": {"type": "apiKey", "in": "header", "name": "Rebuno-Signature"},
    }
    envelope = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorEnvelope"}}}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            # FastAPI's own form of errors is never sent.
            responses.pop("422", None)
            if path in _OPEN:
                continue
            for status, description in _ERRORS.items():
                responses.setdefault(status, {"description": description, "content": envelope})
            tags = operation.get("tags", [])
            operation["security"] = [{"agent": []}] if "agent" in tags else [{"bearer": []}]
            if "agent" in tags:
                operation.setdefault("parameters", []).extend(_SIGNED)
    return schema


_SIGNED: Final = [
    {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}
    for name in (
        "Rebuno-Agent-Id",
        "Rebuno-Timestamp",
        "Rebuno-Dispatch-Id",
        "Rebuno-Dispatch-Attempt",
    )
]
