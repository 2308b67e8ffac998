"""The exporters of a kernel: which sinks it ships to, with which masks, for as long as it runs."""

import hashlib
import hmac
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from proctor_kernel import world
from proctor_kernel.audit import sinks
from proctor_kernel.audit.follow import Follower, Progress
from proctor_kernel.audit.leaving import Projector
from proctor_kernel.audit.redact import Redactor
from proctor_kernel.audit.sinks import SinkSpec
from proctor_kernel.store.database import Database
from proctor_policy.ruleset import RuleSet

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


def loops(
    specs: Sequence[SinkSpec],
    *,
    database: Database,
    rules: Callable[[], RuleSet],
    key: bytes,
    from_now: bool,
    told: Callable[[str, Progress], None],
) -> list[Coroutine[Any, Any, None]]:
    """Return a loop for each sink, which ships until it is cancelled.

    Raises:
        SinkUnknown: one cannot be opened.
    """
    holder = world.new_id()
    return [
        Follower(
            name=spec.name,
            sink=sinks.opened(spec),
            database=database,
            projector=Projector(database, lambda: redactor(rules(), key)),
            holder=holder,
            now_micros=world.now_micros,
            from_now=from_now,
            told=told,
        ).run()
        for spec in specs
    ]
