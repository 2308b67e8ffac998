"""What time does: approvals and deadlines run out, and what a crash interrupted is done again.

Every kernel does all of it. Each piece is a command on one run, so the log says who was first, and
whoever comes second finds nothing to do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import Select

from proctor.wire.calls import WireError
from proctor.wire.words import Reason
from proctor_kernel.audit.signing import Signer
from proctor_kernel.core import checkpoints
from proctor_kernel.core.commands import CancelExecution, Expire
from proctor_kernel.kernel import Kernel
from proctor_kernel.runs import Runs
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Database, Row, StoreError
from proctor_kernel.store.log import LostRace
from proctor_kernel.store.rows import Values

SWEEP_SECONDS: Final = 1.0
"""How often everything is looked at; what this kernel knows of is done on the dot."""

_BATCH: Final = 100
_MICROS_PER_SECOND: Final = 1_000_000
_EVERY_POSITION: Final = 2**63 - 1

_logger = logging.getLogger(__name__)


class Sweep:
    """Does what is due, again and again."""

    def __init__(
        self,
        *,
        database: Database,
        kernel: Kernel,
        runs: Runs,
        now_micros: Callable[[], int],
        retention_micros: int | None = None,
        signer: Signer | None = None,
    ) -> None:
        """`retention_micros`: how long runs that ended are kept; None: for ever.

        `signer`: signs for what retention deletes, so that an auditor does not miss it.
        """
        self._signer = signer
        self._database = database
        self._kernel = kernel
        self._runs = runs
        self._now_micros = now_micros
        self._retention_micros = retention_micros
        self._woken = asyncio.Event()
        self._next: int | None = None

    def at(self, micros: int) -> None:
        """Look again at this time, if it is sooner than the next look."""
        if self._next is None or micros < self._next:
            self._next = micros
            self._woken.set()

    async def run(self) -> None:
        """Do what is due until cancelled."""
        while True:
            try:
                await self.once()
            except (StoreError, LostRace, WireError) as error:
                _logger.warning("sweep: %s", error)
            except Exception:
                # The outermost loop: if it ended, no approval would ever expire again.
                _logger.exception("sweep failed")
            await self._pause()

    async def once(self) -> None:
        """Do everything that is due now."""
        now = self._now_micros()
        await self._each(
            statements.OVERDUE_APPROVALS,
            lambda row: self._runs.decide_approval(row["approval_id"], Expire()),
            now=now,
        )
        await self._each(
            statements.OVERDUE_EXECUTIONS,
            lambda row: self._kernel.apply(row["id"], CancelExecution(Reason.DEADLINE_EXCEEDED)),
            now=now,
        )
        await self._each(statements.UNSETTLED_SUBAGENTS, self._settle)
        await self._each(
            statements.ORPHANED_SUBAGENTS,
            lambda row: self._kernel.apply(
                row["id"], CancelExecution(Reason.PARENT_AGENT_TERMINAL)
            ),
        )
        await self._each(
            statements.STALLED_SESSIONS, lambda row: self._runs.admit_next(row["session"])
        )
        if self._retention_micros is not None:
            await self._forget(now - self._retention_micros)

    async def _each(
        self,
        due: "Select[Any]",
        do: Callable[[Row], Awaitable[object]],
        **values: object,
    ) -> None:
        for row in await self._database.read(due, row_limit=_BATCH, **values):
            try:
                await do(row)
            except (WireError, LostRace) as error:
                # Somebody else was first, or it is not due any more: the next look will tell.
                _logger.debug("sweep: %s", error)

    async def _settle(self, row: Row) -> None:
        await self._runs.settle_subagent(await self._kernel.load(row["id"]))

    async def _forget(self, before: int) -> None:
        """Delete runs that ended long ago, as far as every exporter has shipped them."""
        (sinks,) = await self._database.read(statements.LEAST_SHIPPED)
        shipped = sinks["position"]
        expired = await self._database.read(
            statements.EXPIRED_EXECUTIONS,
            before=before,
            shipped_to=_EVERY_POSITION if shipped is None else shipped,
            row_limit=_BATCH,
        )
        for row in expired:
            async with self._database.exclusively(f"retention:{row['id']}") as block:
                for statement in statements.DELETE_EXECUTION:
                    await block.run(statement, of_execution=row["id"])
                forgotten = self._forgotten(row["id"])
                await block.put([Change(statements.FORGOTTEN, [forgotten], replace=True)])
        if expired:
            _logger.info("retention: forgot %d executions", len(expired))

    def _forgotten(self, execution_id: str) -> Values:
        now = self._now_micros()
        row: Values = {"execution_id": execution_id, "forgotten_at": now}
        if self._signer is None:
            return row | {"key_id": "", "signature": ""}
        signature = self._signer.sign("deletion", checkpoints.deletion(execution_id, now))
        return row | {"key_id": self._signer.key_id, "signature": signature}

    async def _pause(self) -> None:
        seconds = SWEEP_SECONDS
        if self._next is not None:
            ahead = (self._next - self._now_micros()) / _MICROS_PER_SECOND
            seconds = min(seconds, max(ahead, 0.0))
            if ahead <= SWEEP_SECONDS:
                self._next = None
        self._woken.clear()
        try:
            await asyncio.wait_for(self._woken.wait(), seconds)
        except TimeoutError:
            return
