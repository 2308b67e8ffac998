"""Delivery in this process: an attempt begins, the agent's handler runs, until the run ends.

A run that waits for somebody is let go of; the delivery that its going on queues starts it again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from proctor.wire.calls import Delivery
from proctor.wire.words import DispatchStatus
from proctor_kernel.core.commands import ClaimDispatch, Claimed
from proctor_kernel.core.state import Dispatch
from proctor_kernel.kernel import Kernel
from proctor_kernel.log_lines import about
from proctor_kernel.store.database import StoreError

Deliver = Callable[[Delivery], Awaitable[None]]
"""Runs one attempt of an agent; returns when its handler has come to an end."""

FRUITLESS_ATTEMPTS_MAX: Final = 50
"""Attempts in a row without a recorded step before a run fails as `dispatch_exhausted`.

Many, since a restart for any reason is one; a body that waits for hours outlives some deployments.
"""

_BACKOFF_SECONDS: Final = 0.1
_BACKOFF_SECONDS_MAX: Final = 30.0
_MICROS_PER_SECOND: Final = 1_000_000

_logger = logging.getLogger(__name__)


class Driver:
    """Drives each run to its end, or to where it waits, in a task of its own."""

    def __init__(
        self, kernel: Kernel, agents: Mapping[str, Deliver], now_micros: Callable[[], int]
    ) -> None:
        self._kernel = kernel
        self._agents = agents
        self._now_micros = now_micros
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._moved = asyncio.Event()

    def start(self, execution_id: str, agent_id: str) -> None:
        """Begin to drive a run of an agent that is here; one under way looks once more."""
        if execution_id in self._tasks:
            self._again.add(execution_id)
            return
        task = asyncio.create_task(
            self._drive(execution_id, self._agents[agent_id]), name=f"run {execution_id}"
        )
        self._tasks[execution_id] = task

    def look(self) -> None:
        """Look again what is due: the clock was moved."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def stop(self, execution_id: str) -> None:
        """Interrupt the handler of a run and wait until it is gone."""
        task = self._tasks.get(execution_id)
        # A handler that cancels its own run goes on to its end by itself.
        if task is not None and task is not asyncio.current_task():
            await _interrupt([task])

    async def close(self) -> None:
        """Interrupt every handler; what they had under way goes on at the next start."""
        await _interrupt(list(self._tasks.values()))

    async def _drive(self, execution_id: str, deliver: Deliver) -> None:
        try:
            while True:
                self._again.discard(execution_id)
                await self._until_it_rests(execution_id, deliver)
                if execution_id not in self._again:
                    return
        finally:
            # In one step with the look above: whoever starts it now starts it anew.
            self._tasks.pop(execution_id, None)

    async def _until_it_rests(self, execution_id: str, deliver: Deliver) -> None:
        delay = _BACKOFF_SECONDS
        while True:
            try:
                dispatch = (await self._kernel.load(execution_id)).dispatch
                if dispatch is None or dispatch.status is DispatchStatus.EXHAUSTED:
                    return
                await self._until_due(dispatch)
                reply = await self._kernel.apply(
                    execution_id, ClaimDispatch(FRUITLESS_ATTEMPTS_MAX)
                )
                if not isinstance(reply, Claimed):
                    return
                await deliver(Delivery(execution_id, reply.agent_id, reply.lease, reply.input))
                state = await self._kernel.load(execution_id)
                if state.is_terminal or state.dispatch is None:
                    return
                if state.dispatch.status is not DispatchStatus.IN_FLIGHT:
                    # It stopped to wait, or its going on is queued: both are looked at above.
                    continue
                _logger.warning(
                    "execution %s: attempt %d ended without an outcome",
                    execution_id,
                    reply.lease.attempt,
                    extra=about(execution_id, agent_id=reply.agent_id, lease=reply.lease),
                )
            except StoreError as error:
                _logger.error("execution %s: %s", execution_id, error, extra=about(execution_id))
            except Exception:
                # The outermost loop of a run: one that ended here would be stuck for ever.
                _logger.exception(
                    "execution %s: delivery failed", execution_id, extra=about(execution_id)
                )
            await asyncio.sleep(delay)
            delay = min(delay * 2, _BACKOFF_SECONDS_MAX)

    async def _until_due(self, dispatch: Dispatch) -> None:
        if dispatch.status is not DispatchStatus.PENDING or dispatch.due_at is None:
            return
        while (ahead := dispatch.due_at - self._now_micros()) > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), ahead / _MICROS_PER_SECOND)


async def _interrupt(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
