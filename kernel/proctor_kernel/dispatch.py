"""Delivery in this process: an attempt begins, the agent's handler runs, until the run ends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from proctor.wire.calls import Delivery
from proctor_kernel.core.commands import ClaimDispatch, Claimed
from proctor_kernel.kernel import Kernel
from proctor_kernel.store.dialect import StoreError

Deliver = Callable[[Delivery], Awaitable[None]]
"""Runs one attempt of an agent; returns when its handler has come to an end."""

FRUITLESS_ATTEMPTS_MAX: Final = 50
"""Attempts in a row without a recorded step before a run fails as `dispatch_exhausted`.

Many, since a restart for any reason is one; a body that waits for hours outlives some deployments.
"""

_BACKOFF_SECONDS: Final = 0.1
_BACKOFF_SECONDS_MAX: Final = 30.0

_logger = logging.getLogger(__name__)


class Dispatcher:
    """Drives each run to its end in a task of its own."""

    def __init__(self, kernel: Kernel, agents: Mapping[str, Deliver]) -> None:
        self._kernel = kernel
        self._agents = agents
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, execution_id: str, agent_id: str) -> None:
        """Begin to drive a run of an agent that is here; runs under way are left alone."""
        if execution_id in self._tasks:
            return
        task = asyncio.create_task(
            self._drive(execution_id, self._agents[agent_id]), name=f"run {execution_id}"
        )
        self._tasks[execution_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(execution_id, None))

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
        delay = _BACKOFF_SECONDS
        while True:
            try:
                reply = await self._kernel.apply(
                    execution_id, ClaimDispatch(FRUITLESS_ATTEMPTS_MAX)
                )
                if not isinstance(reply, Claimed):
                    return
                await deliver(Delivery(execution_id, reply.agent_id, reply.lease, reply.input))
                if (await self._kernel.load(execution_id)).is_terminal:
                    return
                _logger.warning(
                    "execution %s: attempt %d ended without an outcome",
                    execution_id,
                    reply.lease.attempt,
                )
            except StoreError as error:
                _logger.error("execution %s: %s", execution_id, error)
            except Exception:
                # The outermost loop of a run: one that ended here would be stuck for ever.
                _logger.exception("execution %s: delivery failed", execution_id)
            await asyncio.sleep(delay)
            delay = min(delay * 2, _BACKOFF_SECONDS_MAX)


async def _interrupt(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
