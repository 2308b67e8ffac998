"""Server-sent events: pieces of streamed answers, the log as it grows, approvals (protocol 1.2)."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode, ExecutionStatus, Scope
from proctor_kernel import views
from proctor_kernel.api.callers import uuid_of
from proctor_kernel.api.replies import parts
from proctor_kernel.service import Service
from proctor_kernel.wire_errors import errors_on_the_wire

router = APIRouter(tags=["client"])

KEEP_ALIVE_SECONDS: Final = 15.0
BUFFER_MAX: Final = 64
"""Pieces that one listener may be behind; more are dropped (protocol 1.2)."""

_LOOK_SECONDS: Final = 2.0
_PAGE: Final = 500
_KEEP_ALIVE: Final = ": keep-alive\n\n"
_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}
T = TypeVar("T")

_SSE: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Frames as they come."}
}


@router.get("/v0/executions/{execution_id}/stream", responses=_SSE, response_model=None)
async def stream_deltas(request: Request, execution_id: str) -> StreamingResponse:
    """Follow the pieces of streamed answers of a run, from now on."""
    service, callers = parts(request)
    await callers.client(request, Scope.EXECUTIONS_READ)
    execution_id = uuid_of("execution_id", execution_id)
    with errors_on_the_wire():
        await service.queries.execution_row(execution_id)
    return _streaming(_deltas(service, execution_id))


@router.get("/v0/executions/{execution_id}/watch", responses=_SSE, response_model=None)
async def watch_execution(
    request: Request, execution_id: str, after_seq: int = 0
) -> StreamingResponse:
    """Follow the log of a run to its end; the last frame is `event: end` with the run."""
    service, callers = parts(request)
    await callers.client(request, Scope.EXECUTIONS_READ)
    execution_id = uuid_of("execution_id", execution_id)
    if not 0 <= after_seq < 2**31:
        raise WireError(ErrorCode.VALIDATION_ERROR, "after_seq: out of range")
    with errors_on_the_wire():
        await service.queries.execution_row(execution_id)
    return _streaming(_log(service, execution_id, after_seq))


@router.get("/v0/approvals/stream", responses=_SSE, response_model=None)
async def stream_approvals(request: Request) -> StreamingResponse:
    """Follow approvals as they are requested and decided, from now on."""
    service, callers = parts(request)
    await callers.client(request, Scope.APPROVALS_READ)
    return _streaming(_approvals(service))


async def _before_it_stops(
    service: Service, waited_for: Coroutine[Any, Any, T], seconds: float
) -> T | None:
    """Return what is waited for, or None when the server stops first; raises TimeoutError."""
    waiting = asyncio.ensure_future(waited_for)
    stopping = asyncio.ensure_future(service.stopping.wait())
    try:
        await asyncio.wait(
            (waiting, stopping), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if waiting.done():
            return waiting.result()
        if stopping.done():
            return None
        raise TimeoutError
    finally:
        waiting.cancel()
        stopping.cancel()


def _streaming(frames: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(frames, media_type="text/event-stream", headers=_HEADERS)


async def _deltas(service: Service, execution_id: str) -> AsyncIterator[str]:
    queue: asyncio.Queue[str] = asyncio.Queue(BUFFER_MAX)

    def take(text: str) -> None:
        of, _, frame = text.partition(" ")
        if of == execution_id and not queue.full():
            queue.put_nowait(frame)

    stop = service.wakes.listen("delta", take)
    try:
        yield ": ok\n\n"
        while True:
            try:
                frame = await _before_it_stops(service, queue.get(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield _KEEP_ALIVE
                continue
            if frame is None:
                return
            yield f"data: {frame}\n\n"
    finally:
        stop()


async def _log(service: Service, execution_id: str, after_seq: int) -> AsyncIterator[str]:
    changed = asyncio.Event()
    stop = service.wakes.listen("run", lambda text: changed.set() if text == execution_id else None)
    quiet = 0.0
    try:
        yield ": ok\n\n"
        while True:
            changed.clear()
            row = await service.queries.execution_row(execution_id)
            page = await service.queries.events(execution_id, after_seq=after_seq, limit=_PAGE)
            for event in page:
                after_seq = event["event_seq"]
                yield f"id: {after_seq}\ndata: {views.to_json(event)}\n\n"
            if len(page) == _PAGE:
                continue
            # Read before the events, so that its end has been shown when it says it has ended.
            if ExecutionStatus(row["status"]).is_terminal:
                yield f"event: end\ndata: {views.to_json(views.execution(row))}\n\n"
                return
            quiet = 0.0 if page else quiet
            try:
                # A change that nobody told of is found by looking.
                if not await _before_it_stops(service, changed.wait(), _LOOK_SECONDS):
                    return
            except TimeoutError:
                quiet += _LOOK_SECONDS
                if quiet >= KEEP_ALIVE_SECONDS:
                    quiet = 0.0
                    yield _KEEP_ALIVE
    finally:
        stop()


async def _approvals(service: Service) -> AsyncIterator[str]:
    queue: asyncio.Queue[str] = asyncio.Queue()
    stop = service.wakes.listen("approval", queue.put_nowait)
    try:
        yield ": ok\n\n"
        while True:
            try:
                approval_id = await _before_it_stops(service, queue.get(), KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield _KEEP_ALIVE
                continue
            if approval_id is None:
                return
            approval = await service.queries.approval(approval_id)
            yield f"data: {views.to_json(approval)}\n\n"
    finally:
        stop()
