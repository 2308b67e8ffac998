"""Signs checkpoints while a kernel is at work: one query by index an interval, on no call's way.

Any replica may; the number is a primary key, so one wins and the others find it done.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from proctor_kernel.audit.signing import Signer
from proctor_kernel.core import checkpoints
from proctor_kernel.core.checkpoints import BEFORE_FIRST, Checkpoint, Forgotten, Head
from proctor_kernel.log_lines import about
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Conflict, Database, Removal, Row, StoreError

EVENTS_MAX: Final = 10_000
"""Events that one checkpoint looks through; what is left over comes in the next, at once."""

FORGOTTEN_MAX: Final = 1_000
"""Deleted runs that one checkpoint names."""

CHECKPOINT_SECONDS: Final = 60
"""Between two checkpoints, unless it is set."""

_SIGN_OFF_SECONDS_MAX: Final = 5.0
_MICROS_PER_SECOND: Final = 1_000_000

_logger = logging.getLogger(__name__)


class Checkpointer:
    """Signs what has ended since the last checkpoint, again and again."""

    def __init__(
        self,
        *,
        database: Database,
        signer: Signer,
        now_micros: Callable[[], int],
        seconds: float,
        events_max: int = EVENTS_MAX,
    ) -> None:
        """`seconds`: between two checkpoints, whoever of the replicas signs them."""
        self._events_max = events_max
        self._database = database
        self._signer = signer
        self._now_micros = now_micros
        self._seconds = seconds
        # Nothing ended up to here since the last checkpoint: not looked through again.
        self._looked_to = 0

    async def run(self) -> None:
        """Sign until cancelled."""
        while True:
            seconds = self._seconds
            try:
                seconds = await self._due_in()
                if seconds <= 0:
                    await self.catch_up()
                    seconds = self._seconds
            except StoreError as error:
                _logger.warning("no checkpoint: %s", error)
            except Exception:
                # The outermost loop: if it ended, nothing would be signed any more.
                _logger.exception("no checkpoint")
            await asyncio.sleep(max(seconds, 0.05))

    async def catch_up(self) -> None:
        """Sign all that has ended by now.

        Raises:
            StoreUnavailable: the database could not be asked; what is not signed yet is later.
        """
        while await self._once():
            pass

    async def sign_off(self) -> None:
        """Sign what has ended, before a kernel stops; whatever hinders it does not hinder that."""
        try:
            async with asyncio.timeout(_SIGN_OFF_SECONDS_MAX):
                await self.catch_up()
        except (StoreError, TimeoutError) as error:
            _logger.warning("no last checkpoint: %s", str(error) or "no answer in time")

    async def _due_in(self) -> float:
        last = await self._last()
        if last is None:
            return 0
        waited = self._now_micros() - int(last["signed_at"])
        # A clock that was set back must not put it off for long.
        return self._seconds - max(waited, 0) / _MICROS_PER_SECOND

    async def _once(self) -> bool:
        """Sign one checkpoint if there is anything to sign; True when there may be more."""
        last = await self._last()
        after = 0 if last is None else int(last["position"])
        looked_to = max(after, self._looked_to)
        upto, more = await self._reach(looked_to)
        found = await self._database.read(statements.ENDED_BETWEEN, after=looked_to, upto=upto)
        deleted = await self._database.read(
            statements.FORGOTTEN_UNDER, key_id=self._signer.key_id, row_limit=FORGOTTEN_MAX
        )
        # Whoever can write to the database can put rows there, and has no key.
        forgotten = [row for row in deleted if self._has_deleted(row)]
        if not found and not forgotten:
            self._looked_to = upto
            return more
        checkpoint = Checkpoint(
            number=1 if last is None else int(last["number"]) + 1,
            previous=BEFORE_FIRST if last is None else checkpoints.digest(last["body"]),
            at=self._now_micros(),
            after=after,
            upto=upto,
            key_id=self._signer.key_id,
            ended=tuple(Head(row["execution_id"], row["event_seq"], row["hash"]) for row in found),
            forgotten=tuple(
                Forgotten(row["execution_id"], row["forgotten_at"]) for row in forgotten
            ),
        )
        await self._write(checkpoint)
        return more or len(forgotten) == FORGOTTEN_MAX

    async def _last(self) -> Row | None:
        found = await self._database.read(statements.LAST_CHECKPOINT)
        return found[0] if found else None

    async def _reach(self, after: int) -> tuple[int, bool]:
        """Return up to where one checkpoint goes, and whether there is more beyond."""
        settled = await self._database.settled()
        ahead = await self._database.read(
            statements.POSITION_AHEAD, after=after, settled=settled, ahead=self._events_max - 1
        )
        if ahead:
            return int(ahead[0]["position"]), True
        return max(after, settled - 1), False

    def _has_deleted(self, row: Row) -> bool:
        text = checkpoints.deletion(row["execution_id"], row["forgotten_at"])
        return self._signer.has_signed("deletion", text, row["signature"])

    async def _write(self, checkpoint: Checkpoint) -> None:
        body = checkpoints.to_text(checkpoint)
        row = {
            "number": checkpoint.number,
            "position": checkpoint.upto,
            "signed_at": checkpoint.at,
            "body": body,
            "key_id": checkpoint.key_id,
            "signature": self._signer.sign("checkpoint", body),
        }
        named = [each.execution_id for each in checkpoint.forgotten]
        changes: list[Change | Removal] = [Change(statements.CHECKPOINTS, [row])]
        if named:
            changes.append(Removal(statements.FORGOTTEN, named))
        try:
            writing = self._database.write(changes)
            if writing is not None:
                await writing
        except Conflict:
            return  # another replica has signed this one; the next look begins behind it
        digest = checkpoints.digest(body)
        # Kept elsewhere, with the log of the service: what shows that the end was cut off.
        _logger.info(
            "checkpoint %d/%s: %d executions ended, %d forgotten",
            checkpoint.number,
            digest,
            len(checkpoint.ended),
            len(named),
            extra=about(checkpoint=checkpoint.number, checkpoint_hash=digest),
        )
