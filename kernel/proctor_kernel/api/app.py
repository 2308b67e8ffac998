"""The HTTP application of a service."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from types import FrameType
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from proctor_kernel import world
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
from proctor_kernel.api.observed import Observed
from proctor_kernel.log_lines import about
from proctor_kernel.otlp_metrics import destination, pushing
from proctor_kernel.service import Service, open_service
from proctor_kernel.settings import Settings

_logger = logging.getLogger(__name__)


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
            async with pushing(service.exposition):
                _say_started(settings, service)
                yield
            _logger.info("stopped")

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
    return Observed(Direct(app))


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


def _say_started(settings: Settings, service: Service) -> None:
    """Say what is in force, without what is secret: keys, tokens, and where webhooks go."""
    status = service.rules.status
    _logger.info(
        "started",
        extra=about(
            version=version("proctor"),
            process=os.getpid(),
            workers=settings.workers,
            database=service.database.name,
            rules=settings.rules,
            ruleset=status.hash[:12],
            policies=len(service.rules.rules.policies),
            problems=len(status.problems),
            config=settings.config,
            is_dev=settings.is_dev,
            has_bootstrap_token=settings.bootstrap_token is not None,
            oidc_issuer=None if settings.oidc is None else settings.oidc.issuer,
            invalid_rules=settings.invalid_rules,
            reload_requires_tests=settings.reload_requires_tests,
            lease_seconds=settings.lease_seconds,
            attempts_max=settings.attempts_max,
            approval_seconds=settings.approval_seconds,
            announces_approvals=settings.approvals_webhook is not None,
            deadline_seconds=settings.deadline_seconds,
            retention_seconds=settings.retention_seconds,
            webhook_hosts=",".join(settings.webhook_hosts) or None,
            allow_private_webhooks=settings.allow_private_webhooks,
            log_level=settings.log_level,
            pushes_metrics=destination(os.environ) is not None,
        ),
    )
