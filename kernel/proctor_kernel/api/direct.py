"""The routes that agents ask for every call, answered without what other routes need.

A framework finds out for every request what its handler takes and wraps it in half a dozen layers;
for these that was measured to cost more than deciding and recording. The handlers and the errors
are the same, and the documentation comes from the ordinary routes behind this.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from starlette.types import Receive, Scope, Send

from proctor.wire.calls import WireError
from proctor_kernel.api import agent, errors

Handler = Callable[..., Awaitable[Response]]

_SETTLING: Final[dict[str, Handler]] = {
    "complete": agent.complete_step,
    "fail": agent.fail_step,
}
_STEPS: Final = re.compile(r"/v0/executions/([^/]+)/steps(?:/([^/]+)/(complete|fail))?")


class Direct:
    """Answers submits and outcomes of steps itself, and hands everything else on."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        match = None
        if scope["type"] == "http" and scope["method"] == "POST":
            match = _STEPS.fullmatch(scope["path"])
        if match is None:
            await self._app(scope, receive, send)
            return
        execution_id, step_id, how = match.groups()
        handler: Handler = agent.submit_step if how is None else _SETTLING[how]
        given: dict[str, Any] = {"execution_id": execution_id}
        if step_id is not None:
            given["step_id"] = step_id
        scope["app"] = self._app
        scope["path_params"] = given
        scope["route"] = _ROUTES[how]
        try:
            answer = await handler(Request(scope, receive), **given)
        except WireError as error:
            answer = errors.response_of(error)
        except Exception as error:
            answer = errors.unexpected(scope["method"], scope["path"], error)
        await answer(scope, receive, send)


class _Route:
    def __init__(self, path: str) -> None:
        self.path = path


_BASE: Final = "/v0/executions/{execution_id}/steps"
_ROUTES: Final = {
    None: _Route(_BASE),
    "complete": _Route(f"{_BASE}/{{step_id}}/complete"),
    "fail": _Route(f"{_BASE}/{{step_id}}/fail"),
}
