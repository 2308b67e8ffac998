"""What goes wrong in the store, as the error that a caller gets."""

from collections.abc import Iterator
from contextlib import contextmanager

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode
from proctor_kernel.store.database import StoreError, StoreUnavailable
from proctor_kernel.store.log import LostRace


@contextmanager
def errors_on_the_wire() -> Iterator[None]:
    """Turn what the store raises in a block into `WireError`."""
    try:
        yield
    except (StoreUnavailable, LostRace) as error:
        raise WireError(ErrorCode.UNAVAILABLE, str(error)) from error
    except StoreError as error:
        raise WireError(ErrorCode.INTERNAL_ERROR, str(error)) from error
