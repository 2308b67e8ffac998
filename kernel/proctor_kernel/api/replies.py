"""Answers of the routes, and the parts of the service that they ask."""

from typing import Any, Final

from fastapi import Request, Response

from proctor_kernel import views
from proctor_kernel.api.callers import Callers
from proctor_kernel.service import Service

NO_CONTENT: Final = Response(status_code=204)


def answer(view: Any, status: int = 200, *, is_secret: bool = False) -> Response:
    """Return a view as JSON; `is_secret`: nobody on the way may keep it."""
    return Response(
        views.to_json(view),
        status_code=status,
        media_type="application/json; charset=utf-8",
        headers={"Cache-Control": "no-store"} if is_secret else None,
    )


def parts(request: Request) -> tuple[Service, Callers]:
    """Return the service behind a request, and what recognises its callers."""
    state = request.app.state
    return state.service, state.callers
