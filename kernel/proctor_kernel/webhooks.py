"""Deliveries to agents over HTTP: claimed, sent, acknowledged, tried again (protocol 6).

The write that makes a delivery due wakes the process that wrote it; every process also looks now
and then for what is overdue, so that nothing waits for one that died. A claim is a command on the
run: of two processes that try, the log says who was first.
"""

import asyncio
import json
import logging
import random  # noqa: TID251  # jitter decides nothing
import socket
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from proctor.wire.calls import Lease
from proctor_kernel import metrics, signatures
from proctor_kernel.agents import Agents, Registered
from proctor_kernel.core import identity
from proctor_kernel.core.commands import (
    AcknowledgeDispatch,
    ClaimDispatch,
    Claimed,
    FailDispatch,
)
from proctor_kernel.kernel import Kernel
from proctor_kernel.log_lines import about
from proctor_kernel.settings import Settings, TargetRefused, check_address, check_target
from proctor_kernel.store import statements
from proctor_kernel.store.database import Database, Row, StoreError
from proctor_kernel.store.log import LostRace

LOOK_SECONDS: Final = 1.0
"""How often a process looks for deliveries that nobody took up."""

GRACE_SECONDS: Final = 1.0
"""How long a delivery may be overdue before others than whoever wrote it take it up."""

_BATCH: Final = 100
_ERROR_CHARACTERS_MAX: Final = 500
_MICROS_PER_SECOND: Final = 1_000_000

_logger = logging.getLogger(__name__)


class Webhooks:
    """Delivers runs to the agents that have an address."""

    def __init__(
        self,
        *,
        kernel: Kernel,
        agents: Agents,
        database: Database,
        settings: Settings,
        now_micros: Callable[[], int],
    ) -> None:
        self._kernel = kernel
        self._agents = agents
        self._database = database
        self._settings = settings
        self._now_micros = now_micros
        self._room = asyncio.Semaphore(settings.deliveries_max)
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_it: set[str] = set()
        self._http = httpx2.AsyncClient(
            timeout=settings.delivery_seconds,
            follow_redirects=False,
            trust_env=False,
            limits=httpx2.Limits(max_connections=settings.deliveries_max),
        )

    async def close(self) -> None:
        """Stop; deliveries under way are taken up elsewhere once their lease is over."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    def due(
        self,
        execution_id: str,
        agent_id: str,
        expected: Lease,
        at: int,
        *,
        takes_over: bool = False,
    ) -> None:
        """Deliver a run once `at` has come; `expected`: the dispatch and its last attempt.

        `takes_over`: that attempt fell silent.
        """
        ahead = (at - self._now_micros()) / _MICROS_PER_SECOND
        task = asyncio.create_task(
            self._deliver_at(
                max(ahead, 0.0), execution_id, agent_id, expected, takes_over=takes_over
            ),
            name=f"deliver {execution_id}",
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def run(self) -> None:
        """Look for what nobody took up, until cancelled."""
        grace = 0.0  # whatever was due before this process began is its own
        while True:
            try:
                await self._look(grace)
            except (StoreError, LostRace) as error:
                _logger.warning("looking for deliveries: %s", error)
            except Exception:
                # The outermost loop: if it ended, runs of a process that died would never go on.
                _logger.exception("looking for deliveries failed")
            grace = GRACE_SECONDS
            # Apart from each other, so that processes seldom try for the same ones.
            await asyncio.sleep(LOOK_SECONDS * random.uniform(0.75, 1.25))

    async def _look(self, grace: float) -> None:
        now = self._now_micros() - int(grace * _MICROS_PER_SECOND)
        found: list[Row] = await self._database.read(
            statements.DUE_DISPATCHES, now=now, row_limit=_BATCH
        )
        for row in found:
            if row["execution_id"] in self._at_it:
                continue
            agent = await self._agents.find(row["agent_id"])
            has_address = agent is not None and agent.webhook_url is not None
            if row["status"] == "in_flight" and not has_address:
                # Its agent asks for it itself; until then the run is nobody's.
                await self._take_back(row)
            elif has_address:
                expected = Lease(row["dispatch_id"], row["attempt"])
                self.due(
                    row["execution_id"],
                    row["agent_id"],
                    expected,
                    0,
                    takes_over=row["status"] == "in_flight",
                )

    async def _take_back(self, row: Row) -> None:
        """End a blocked run's attempt that fell silent; others are claimed by their agent."""
        state = await self._kernel.load(row["execution_id"])
        if state.status == "blocked":
            lease = Lease(row["dispatch_id"], row["attempt"])
            await self._kernel.apply(row["execution_id"], self._claim(None, lease))
            taken_over(row["execution_id"], row["agent_id"], lease)

    async def _deliver_at(
        self,
        seconds: float,
        execution_id: str,
        agent_id: str,
        expected: Lease,
        *,
        takes_over: bool,
    ) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        self._at_it.add(execution_id)
        try:
            async with self._room:
                await self._deliver(execution_id, agent_id, expected, takes_over=takes_over)
        except (StoreError, LostRace) as error:
            _logger.warning(
                "delivery: %s", error, extra=about(execution_id, agent_id=agent_id, lease=expected)
            )
        except Exception:
            # Whatever it was, the look for overdue deliveries comes back to it.
            _logger.exception(
                "delivery failed", extra=about(execution_id, agent_id=agent_id, lease=expected)
            )
        finally:
            self._at_it.discard(execution_id)

    async def _deliver(
        self, execution_id: str, agent_id: str, expected: Lease, *, takes_over: bool
    ) -> None:
        agent = await self._agents.find(agent_id)
        if agent is None or agent.webhook_url is None:
            return
        claimed = await self._kernel.apply(execution_id, self._claim(agent, expected))
        if not isinstance(claimed, Claimed):
            return
        lease = claimed.lease
        if takes_over:
            taken_over(execution_id, agent_id, lease)
        with metrics.DISPATCH_SECONDS.time():
            error = await self._post(agent, execution_id, lease)
        if error is None:
            metrics.DISPATCHES.labels("success").inc()
            await self._kernel.apply(execution_id, AcknowledgeDispatch(lease))
            return
        metrics.DISPATCHES.labels("rejected").inc()
        _logger.warning(
            "not delivered: %s",
            error,
            extra=about(execution_id, agent_id=agent_id, lease=lease),
        )
        await self._kernel.apply(
            execution_id,
            FailDispatch(lease, error, self._retry_at(lease), self._settings.attempts_max),
        )

    def _claim(self, agent: Registered | None, expected: Lease) -> ClaimDispatch:
        return claim_of(self._settings, agent, expected)

    async def _post(self, agent: Registered, execution_id: str, lease: Lease) -> str | None:
        """Send a delivery; returns what went wrong, or None."""
        assert agent.webhook_url is not None
        body = json.dumps(
            {
                "execution_id": execution_id,
                "dispatch_id": lease.dispatch_id,
                "dispatch_attempt": lease.attempt,
                "lease_timeout_seconds": lease_seconds(self._settings, agent),
            }
        ).encode()
        headers = {
            "Content-Type": "application/json",
            "Rebuno-Execution-Id": execution_id,
            "Rebuno-Signature": signatures.of_webhook(agent.secret, body),
            "traceparent": traceparent(execution_id, execution_id),
        }
        try:
            url, extensions = await self._target(agent.webhook_url, headers)
            response = await self._http.post(
                url, content=body, headers=headers, extensions=extensions
            )
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, TargetRefused) as error:
            return f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS_MAX]
        if not response.is_success:
            return f"the agent answered {response.status_code}"
        return None

    async def _target(self, url: str, headers: dict[str, str]) -> tuple[str, dict[str, Any]]:
        """Return where to connect: without consent, an address that was looked at."""
        settings = self._settings
        check_target(
            url, hosts=settings.webhook_hosts, allow_private=settings.allow_private_webhooks
        )
        if settings.allow_private_webhooks:
            return url, {}
        parts = urlsplit(url)
        host = str(parts.hostname)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for each in found:
            check_address(host, str(each[4][0]))
        # The address that was looked at is the one that is used: a name could change in between.
        address = str(found[0][4][0])
        shown = f"[{address}]" if ":" in address else address
        headers["Host"] = parts.netloc
        pinned = parts._replace(netloc=f"{shown}:{port}").geturl()
        return pinned, {"sni_hostname": host}

    def _retry_at(self, lease: Lease) -> int:
        settings = self._settings
        seconds = min(
            settings.backoff_seconds * 2 ** min(lease.attempt - 1, 16),
            settings.backoff_seconds_max,
        )
        jittered = seconds * random.uniform(1.0, 1.25)
        return self._now_micros() + int(jittered * _MICROS_PER_SECOND)


def claim_of(settings: Settings, agent: Registered | None, expected: Lease) -> ClaimDispatch:
    """Return the claim of a delivery, with the lease that its agent gets."""
    return ClaimDispatch(
        settings.attempts_max,
        int(lease_seconds(settings, agent) * _MICROS_PER_SECOND),
        expected,
    )


def taken_over(execution_id: str, agent_id: str, lease: Lease) -> None:
    """Count and tell that a run was taken from an attempt that fell silent."""
    metrics.RECLAIMED.inc()
    _logger.warning(
        "taken over: the attempt before fell silent",
        extra=about(execution_id, agent_id=agent_id, lease=lease),
    )


def lease_seconds(settings: Settings, agent: Registered | None) -> float:
    """Return how long an attempt of an agent may be silent."""
    if agent is None or agent.lease_seconds is None:
        return settings.lease_seconds
    return agent.lease_seconds


def traceparent(execution_id: str, span_of: str) -> str:
    """Return the W3C trace context under which an agent's own spans belong to the run."""
    return f"00-{identity.trace_id(execution_id)}-{identity.span_id(span_of)}-01"
