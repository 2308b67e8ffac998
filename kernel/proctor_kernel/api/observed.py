"""Every request, counted and told: by its route, never by what was asked for."""

import logging
import re
import time  # how long a request took, not when
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proctor_kernel import metrics, world
from proctor_kernel.log_lines import REQUEST_ID, about

HEADER: Final = b"x-request-id"

_SENT: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_UUID: Final = re.compile(r"[0-9a-fA-F-]{36}")

_logger = logging.getLogger(__name__)


class Observed:
    """Counts requests, and gives each an id: its `X-Request-Id` where it sent a proper one.

    The answer has the id too, and so has every line that is written on the way to it. At debug
    level there is a line for each request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        # From here on a submit is counted as under way.
        scope["began"] = began
        request_id = _id(scope)
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message.setdefault("headers", [])
                message["headers"] = [*message["headers"], (HEADER, request_id.encode())]
            await send(message)

        before = REQUEST_ID.set(request_id)
        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.perf_counter() - began
            metrics.requested(route, status, seconds)
            if _logger.isEnabledFor(logging.DEBUG):
                _tell(scope, route, status, seconds)
            REQUEST_ID.reset(before)


def _id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == HEADER and _SENT.fullmatch(value):
            return str(value.decode())
    return world.new_id()


def _tell(scope: Scope, route: str, status: int, seconds: float) -> None:
    given: dict[str, Any] = scope.get("path_params") or {}
    execution_id = str(given.get("execution_id", ""))
    _logger.debug(
        "request",
        extra=about(
            # Whoever asks may have put anything there.
            execution_id.lower() if _UUID.fullmatch(execution_id) else None,
            method=scope["method"],
            route=route,
            status=status,
            seconds=round(seconds, 6),
            bytes=_length(scope),
        ),
    )


def _length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None
