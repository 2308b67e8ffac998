"""Agents of a test that ask a server for their runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
from tests.support.http_port import HttpPort

from proctor import Agent

SECRET = "secret of an agent in tests"


@asynccontextmanager
async def at_work(url: str, agent: Agent, headers: dict[str, str]) -> AsyncIterator[None]:
    """Register `agent` and work on its runs, one at a time, for the time of a block."""
    async with httpx2.AsyncClient(base_url=url, headers=headers) as http:
        registered = await http.post("/v0/agents", json={"id": agent.id, "secret": SECRET})
        assert registered.status_code == 201
    port = HttpPort([url], agent.id, SECRET)

    stopping = asyncio.Event()

    async def work() -> None:
        while not stopping.is_set():
            delivery = await port.claim(0.3)
            if delivery is not None:
                await agent.deliver(port, delivery)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        # A claim that is cut off may have taken a run already, which nobody would work on then.
        stopping.set()
        await asyncio.wait({working}, timeout=1)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await port.aclose()
