"""Every error that leaves over HTTP: `{code, message, details}`, from one table (protocol 0.1)."""

import json
import logging
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode

STATUS: Final[dict[ErrorCode, int]] = {
    ErrorCode.VALIDATION_ERROR: 400,
    ErrorCode.UNAUTHORIZED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.CONFLICT: 409,
    ErrorCode.EXECUTION_TERMINAL: 409,
    ErrorCode.LEASE_SUPERSEDED: 409,
    ErrorCode.POLICY_DENIED: 403,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.INTERNAL_ERROR: 500,
}

RETRY_AFTER_SECONDS: Final = 1
"""What a client is told when the database is gone."""

_logger = logging.getLogger(__name__)


def response_of(error: WireError, status: int | None = None) -> Response:
    """Return the envelope of an error."""
    envelope = {"code": str(error.code), "message": error.message}
    if error.details:
        envelope["details"] = error.details
    headers = {}
    if error.code is ErrorCode.UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if error.code is ErrorCode.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        json.dumps(envelope),
        status_code=STATUS[error.code] if status is None else status,
        headers=headers,
        media_type="application/json",
    )


def unexpected(method: str, path: str, error: Exception) -> Response:
    """Return the answer to a request on which something broke."""
    # What it was is in the log and not in the answer.
    _logger.error("%s %s failed", method, path, exc_info=error)
    return response_of(WireError(ErrorCode.INTERNAL_ERROR, "internal error"))


def install(app: FastAPI) -> None:
    """Make every error of `app` an envelope."""

    async def on_wire_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, WireError)
        return response_of(error)

    async def on_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        problems = [
            f"{'.'.join(str(part) for part in each['loc'][1:])}: {each['msg']}"
            for each in error.errors()
        ]
        return response_of(WireError(ErrorCode.VALIDATION_ERROR, "; ".join(problems)))

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = ErrorCode.NOT_FOUND if error.status_code == 404 else ErrorCode.VALIDATION_ERROR
        answer = response_of(
            WireError(code, f"{error.detail}: {request.method} {request.url.path}"),
            error.status_code,
        )
        answer.headers.update(error.headers or {})
        return answer

    async def on_anything_else(request: Request, error: Exception) -> Response:
        return unexpected(request.method, request.url.path, error)

    app.add_exception_handler(WireError, on_wire_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_anything_else)
