"""One process at a time on a database file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from proctor_kernel.store.database import StoreError
from proctor_kernel.store.sqlite import IN_MEMORY, check_place


@contextmanager
def alone(database: str) -> Iterator[None]:
    """Keep other processes from driving the same runs; the system frees a dead one's lock."""
    if database == IN_MEMORY:
        yield
        return
    check_place(database)
    lock = FileLock(f"{Path(database).resolve()}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StoreError(
            f"{database}: another process has it open; use it in one process at a time"
        ) from None
    except OSError as error:
        raise StoreError(f"{database}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()
