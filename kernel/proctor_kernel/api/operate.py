"""Is it up, is it ready, and what does it count (protocol 1.4)."""

import asyncio

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from proctor_kernel.api.replies import answer, parts
from proctor_kernel.store.database import SCHEMA_HEAD, StoreError
from proctor_kernel.store.migrate import REVISION

router = APIRouter(tags=["operate"])

_READY_SECONDS_MAX = 2.0


@router.get("/v0/health")
async def health() -> Response:
    """Say that the process is up; asks nobody else."""
    return answer({"status": "ok"})


@router.get("/v0/ready", responses={503: {"description": "Something is not ready."}})
async def ready(request: Request) -> Response:
    """Say whether runs can be taken, and name what is not ready."""
    service, _ = parts(request)
    checks: dict[str, str] = {"database": "ok", "migrations": "ok", "rules": "ok"}
    try:
        async with asyncio.timeout(_READY_SECONDS_MAX):
            await service.database.ping()
            (found,) = await service.database.read(REVISION)
            if found["version_num"] != SCHEMA_HEAD:
                checks["migrations"] = f"at {found['version_num']}, not at {SCHEMA_HEAD}"
    except (StoreError, TimeoutError) as error:
        checks["database"] = str(error) or "no answer in time"
    status = service.rules.status
    if not service.rules.rules.files:
        checks["rules"] = "; ".join(map(str, status.problems)) or "there are none"
    if all(each == "ok" for each in checks.values()):
        view: dict[str, object] = {"status": "ready"}
        if status.problems:
            # The last good rules decide, so runs are safe to take; but somebody should look.
            view["warnings"] = [str(problem) for problem in status.problems]
        return answer(view)
    return answer({"status": "unavailable", "checks": checks}, 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Give what is counted, over all processes of this machine's service."""
    service, _ = parts(request)
    await service.exposition.look()
    shown = CollectorRegistry(auto_describe=False)
    shown.register(service.exposition)
    # Aside: the files of several workers are read, and agents must not wait for that.
    text = await asyncio.to_thread(generate_latest, shown)
    return Response(text, media_type=CONTENT_TYPE_LATEST)
