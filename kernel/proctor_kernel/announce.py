"""New and decided approvals, told to a webhook, so that nobody has to poll for them.

At least once: what could not be told is told again, also by another process. A receiver knows a
repeat by its `Proctor-Delivery`.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Callable
from typing import Final

import httpx2

from proctor_kernel import metrics, views
from proctor_kernel.log_lines import about
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Database, Row, StoreError

_LOOK_SECONDS: Final = 2.0
_GRACE_SECONDS: Final = 3.0
_TELLING_SECONDS_MAX: Final = 24 * 3600
_BATCH: Final = 50
_MICROS_PER_SECOND: Final = 1_000_000

_logger = logging.getLogger(__name__)


class Announcer:
    """Tells one address of approvals. The signature covers time and body."""

    def __init__(
        self,
        *,
        database: Database,
        url: str,
        secret: str,
        now_micros: Callable[[], int],
    ) -> None:
        self._database = database
        self._url = url
        self._secret = secret
        self._now_micros = now_micros
        self._told_here = asyncio.Event()
        self._http = httpx2.AsyncClient(timeout=10, follow_redirects=False, trust_env=False)

    def wake(self, _: str) -> None:
        """Look at once: an approval was requested or decided here."""
        self._told_here.set()

    async def run(self) -> None:
        """Tell what has not been told, until cancelled."""
        try:
            while True:
                woken = self._told_here.is_set()
                self._told_here.clear()
                try:
                    await self._look(0.0 if woken else _GRACE_SECONDS)
                except StoreError as error:
                    _logger.warning("announcing approvals: %s", error)
                try:
                    await asyncio.wait_for(self._told_here.wait(), _LOOK_SECONDS)
                except TimeoutError:
                    continue
        finally:
            await self._http.aclose()

    async def _look(self, grace: float) -> None:
        now = self._now_micros()
        found = await self._database.read(
            statements.UNANNOUNCED_APPROVALS,
            before=now - int(grace * _MICROS_PER_SECOND),
            since=now - _TELLING_SECONDS_MAX * _MICROS_PER_SECOND,
            row_limit=_BATCH,
        )
        for row in found:
            with metrics.ANNOUNCEMENT_SECONDS.time():
                error = await self._tell(row)
            metrics.ANNOUNCEMENTS.labels("success" if error is None else "rejected").inc()
            if error is not None:
                _logger.warning(
                    "approval not announced: %s",
                    error,
                    extra=about(
                        row["execution_id"],
                        step_id=row["step_id"],
                        agent_id=row["agent_id"],
                        approval_id=row["approval_id"],
                    ),
                )
                return
            told = {"approval_id": row["approval_id"], "status": row["status"]}
            writing = self._database.write([Change(statements.ANNOUNCEMENTS, [told], replace=True)])
            if writing is not None:
                await writing

    async def _tell(self, row: Row) -> str | None:
        body = views.to_json(views.approval(row)).encode()
        timestamp = str(self._now_micros() // _MICROS_PER_SECOND)
        signed = hmac.new(
            self._secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256
        ).hexdigest()
        headers = {
            "Content-Type": "application/json",
            "Proctor-Delivery": f"{row['approval_id']}:{row['status']}",
            "Proctor-Timestamp": timestamp,
            "Proctor-Signature": f"v1={signed}",
        }
        try:
            response = await self._http.post(self._url, content=body, headers=headers)
        except (httpx2.HTTPError, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return None if response.is_success else f"answered {response.status_code}"
