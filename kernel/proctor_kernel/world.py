"""The only file that reads a clock or draws an id."""

import time

import uuid_utils


def now_micros() -> int:
    """Return the time: microseconds since 1970, UTC."""
    return time.time_ns() // 1000


def new_id() -> str:
    """Return a new UUIDv7: unique, and later ones sort later."""
    return str(uuid_utils.uuid7())
