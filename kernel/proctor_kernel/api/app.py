"""The HTTP application of a service."""

import asyncio
import signal
import threading
import time  # how long a request took, not when
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proctor_kernel import metrics, world
from proctor_kernel.api import (
    admin,
    agent,
    client,
    documents,
    errors,
    holding,
    operate,
    rehearsals,
    stream,
)
from proctor_kernel.api.callers import Callers
from proctor_kernel.api.direct import Direct
from proctor_kernel.service import open_service
from proctor_kernel.settings import Settings


def application(settings: Settings) -> ASGIApp:
    """Return the application; its service is opened when it starts, and closed when it stops."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_service(settings) as service:
            app.state.service = service
            _when_asked_to_stop(service.stopping.set)
            app.state.callers = Callers(
                settings=settings,
                agents=service.agents,
                keys=service.keys,
                oidc=service.oidc,
                now_micros=world.now_micros,
            )
            yield

    app = FastAPI(
        title="Proctor",
        version="v0",
        description="Governance for AI agents: every call asks the rules first.",
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url="/v0/openapi.json",
        docs_url="/v0/docs",
        redoc_url=None,
        # Nothing on the hot path exports: what happened leaves by the log.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    errors.install(app)
    documents.install(app)
    # The agents' first, since they ask most; streams before /v0/approvals/{approval_id}.
    for router in (
        agent.router,
        holding.router,
        stream.router,
        client.router,
        rehearsals.router,
        admin.router,
        operate.router,
    ):
        app.include_router(router)
    return _Counted(Direct(app))


def _when_asked_to_stop(tell: Callable[[], None]) -> None:
    """Call `tell` when the process is asked to stop, before the server waits for its requests.

    Without it, streams would keep a stopping server waiting for as long as it waits at all.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)

        def stop(number: int, frame: FrameType | None, before: Any = before) -> None:
            loop.call_soon_threadsafe(tell)
            if callable(before):
                before(number, frame)

        signal.signal(number, stop)


class _Counted:
    """Counts requests by their route and status."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "none")
            metrics.REQUESTS.labels(route, str(status)).inc()
            metrics.REQUEST_SECONDS.labels(route).observe(time.perf_counter() - began)
