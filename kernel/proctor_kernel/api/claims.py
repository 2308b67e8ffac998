"""Deliveries that agents ask for themselves, waiting for one if there is none."""

import asyncio

from proctor.wire.calls import Lease
from proctor_kernel import world
from proctor_kernel.core.commands import AcknowledgeDispatch, Claimed
from proctor_kernel.service import Service
from proctor_kernel.store import statements
from proctor_kernel.webhooks import claim_of, taken_over
from proctor_kernel.wire_errors import errors_on_the_wire

_LOOK_SECONDS = 1.0
_BATCH = 10


async def next_delivery(
    service: Service, agent_id: str, wait_seconds: float
) -> tuple[str, Lease, str] | None:
    """Claim a run of an agent, and return its id, the lease and the input; None: none in time."""
    queued = asyncio.Event()
    stop = service.wakes.listen("queued", lambda text: queued.set() if text == agent_id else None)
    try:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_seconds
        while True:
            queued.clear()
            claimed = await _claim(service, agent_id)
            left = until - loop.time()
            if claimed is not None or left <= 0 or service.stopping.is_set():
                return claimed
            try:
                # A wake that was lost, or a retry that comes due, is found by looking.
                await asyncio.wait_for(queued.wait(), min(left, _LOOK_SECONDS))
            except TimeoutError:
                continue
    finally:
        stop()


async def _claim(service: Service, agent_id: str) -> tuple[str, Lease, str] | None:
    with errors_on_the_wire():
        due = await service.database.read(
            statements.DUE_DISPATCHES_OF_AGENT,
            agent_id=agent_id,
            now=world.now_micros(),
            row_limit=_BATCH,
        )
        agent = await service.agents.find(agent_id)
        for row in due:
            expected = Lease(row["dispatch_id"], row["attempt"])
            reply = await service.kernel.apply(
                row["execution_id"], claim_of(service.settings, agent, expected)
            )
            if isinstance(reply, Claimed):
                await service.kernel.apply(row["execution_id"], AcknowledgeDispatch(reply.lease))
                if row["status"] == "in_flight":
                    taken_over(row["execution_id"], agent_id, reply.lease)
                return row["execution_id"], reply.lease, reply.input
    return None
