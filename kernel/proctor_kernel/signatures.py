"""How the kernel and agents sign what they send each other (protocol 2.2 and 2.4). Pure."""

import hashlib
import hmac
from typing import Final

CLOCK_SECONDS_MAX: Final = 300
"""How far the clock of an agent may be from ours."""


def of_request(
    secret: str,
    *,
    method: str,
    target: str,
    timestamp: str,
    dispatch_id: str,
    dispatch_attempt: str,
    body: bytes,
) -> str:
    """Return the signature of an agent's request. `target` is as it was on the wire."""
    head = "\n".join(
        ("rebuno-request-v1", method, target, timestamp, dispatch_id, dispatch_attempt, "")
    )
    return "v1=" + _hex(secret, head.encode("utf-8", "surrogateescape") + body)


def of_webhook(secret: str, body: bytes) -> str:
    """Return the signature of a delivery to an agent."""
    return "sha256=" + _hex(secret, body)


def same(left: str, right: str) -> bool:
    """Compare two signatures in constant time."""
    return hmac.compare_digest(left.encode(), right.encode())


def _hex(secret: str, message: bytes) -> str:
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
