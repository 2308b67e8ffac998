"""The exporters of a kernel: which sinks it ships to, with which masks, for as long as it runs."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Final

from proctor_kernel import world
from proctor_kernel.audit import sinks
from proctor_kernel.audit.follow import Follower, Progress
from proctor_kernel.audit.leaving import Projector
from proctor_kernel.audit.redact import Redactor
from proctor_kernel.audit.sinks import SinkSpec
from proctor_kernel.store.database import Database
from proctor_policy.ruleset import RuleSet

DRAIN_SECONDS: Final = 5.0
"""How long a kernel that closes goes on shipping; what is left leaves when one runs again."""

_PURPOSE: Final = b"proctor: hashes of masked values"


class MasksUnknown(Exception):
    """The rules did not load yet, so nobody knows what must not leave."""


def mask_key(secret: str) -> bytes:
    """Return the key of the hashes of masked values, from a secret that is for this or for more."""
    return hmac.digest(secret.encode(), _PURPOSE, hashlib.sha256)


def redactor(rules: RuleSet, key: bytes) -> Redactor:
    """Return what masks events by the rules in force.

    Raises:
        MasksUnknown: there are none.
    """
    if not rules.files:
        raise MasksUnknown("the rules did not load, so it is not known what must be masked")
    return Redactor(rules.masks, key)


class Exporters:
    """Ships the log to every sink that was asked for."""

    def __init__(
        self,
        specs: Sequence[SinkSpec],
        *,
        database: Database,
        rules: Callable[[], RuleSet],
        key: bytes,
        from_now: bool = False,
        told: Callable[[str, Progress], None] = lambda sink, progress: None,
    ) -> None:
        """`rules`: those in force, which say what is masked. `told`: see `Follower`.

        Raises:
            SinkUnknown: a sink cannot be opened.
        """
        holder = world.new_id()
        self._followers = [
            Follower(
                name=spec.name,
                sink=sinks.opened(spec),
                database=database,
                projector=Projector(database, lambda: redactor(rules(), key)),
                holder=holder,
                now_micros=world.now_micros,
                from_now=from_now,
                told=told,
            )
            for spec in specs
        ]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to ship, until `aclose`."""
        self._tasks = [asyncio.create_task(each.run()) for each in self._followers]

    async def aclose(self) -> None:
        """Ship what is left, for a few seconds at most, and let other processes go on."""
        for follower in self._followers:
            follower.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
