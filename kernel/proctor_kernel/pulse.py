"""A process that measures itself: how late its event loop is, and what its rules folder is at."""

import asyncio
from collections.abc import Callable
from typing import Final

from proctor_kernel import metrics
from proctor_policy.watch import Status

BEAT_SECONDS: Final = 0.5

_MICROS_PER_SECOND: Final = 1_000_000


class Pulse:
    """Measures again and again; each process of a service has one."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.rules()
            due = loop.time() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            metrics.LOOP_LAG.observe(max(0.0, loop.time() - due))

    def rules(self) -> None:
        """Say what the rules folder is at."""
        status = self._status()
        metrics.RELOADS.set(status.reloads)
        metrics.RELOAD_FAILURES.set(status.failures)
        metrics.RULES_FAILING.set(1 if status.problems else 0)
        since = status.failing_since_micros if status.problems else None
        metrics.FAILING_SINCE.set(0 if since is None else since / _MICROS_PER_SECOND)
