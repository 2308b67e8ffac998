"""Which calls of an attempt are under way, and how an attempt ends that has to stop.

A call that blocks does not raise into the handler. Agent frameworks turn what a tool raises into
text for the model, or cut off the calls beside it. The call is held instead: it does not return.
Other calls come to their end and are recorded, and then the handler is cancelled, which is what
every framework passes on as it is.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import Final, NoReturn

from proctor.errors import Blocked


class Call:
    """One call that is under way; `within` is the call whose body makes it."""

    __slots__ = ("token", "within")

    def __init__(self, within: "Call | None") -> None:
        self.within = within
        self.token: Token[Call | None] | None = None


class UnderWay:
    """The calls of one attempt, until `over` says that the attempt has to stop.

    `stop` cancels the handler. It is None for a handler that nobody can cancel: then control
    flow raises in the call itself.
    """

    __slots__ = ("_at_rest", "_live", "_released", "_stopped", "ended_by", "stop")

    def __init__(self) -> None:
        self.stop: Callable[[], None] | None = None
        self.ended_by: Exception | None = None
        """The control flow that ended the attempt, whatever the handler makes of it."""
        self._live: set[Call] = set()
        self._at_rest = asyncio.Event()
        self._released = asyncio.Event()
        self._stopped = False

    def begin(self) -> Call:
        """Note that a call begins; calls that its body makes are within it."""
        call = Call(_enclosing.get())
        call.token = _enclosing.set(call)
        self._live.add(call)
        return call

    def end(self, call: Call) -> None:
        """Note that a call has ended."""
        assert call.token is not None, "it has begun"
        _enclosing.reset(call.token)
        if call in self._live:
            self._live.remove(call)
            self._look()

    def over(self, ended_by: Exception) -> None:
        """Note that the attempt has to stop; what came first stays the reason."""
        self.ended_by = self.ended_by or ended_by

    def is_over_for(self, call: Call) -> bool:
        """Whether a call may neither be sent nor return any more.

        What a body calls belongs to the call that the body is of, which is not cut off.
        """
        return self.ended_by is not None and (call.within is None or call.within not in self._live)

    async def hold(self, call: Call) -> NoReturn:
        """Keep a call from returning, since the attempt is over; ends with the handler.

        Raises:
            Blocked, Terminated, LeaseSuperseded: nobody can stop the handler from here.
            CancelledError: the handler has ended.
        """
        assert self.ended_by is not None, "the attempt is over"
        held: Call | None = call
        while held is not None:
            self._live.discard(held)
            held = held.within
        # A handler that made this call has outlived being stopped, if it was.
        self._stopped = False
        self._look()
        if self.stop is None:
            raise self.ended_by
        await self._released.wait()
        raise asyncio.CancelledError

    def release(self) -> None:
        """Let go of the calls that are held: their handler has ended."""
        self._released.set()

    async def quiet(self) -> None:
        """Wait until no call is under way."""
        while self._live:
            self._at_rest.clear()
            await self._at_rest.wait()

    def _look(self) -> None:
        if not self._live:
            self._at_rest.set()
        waits = isinstance(self.ended_by, Blocked) and self._live
        if self.ended_by is None or waits or self._stopped or self.stop is None:
            return
        # Once: to cancel a handler again would cut off how it tidies up.
        self._stopped = True
        self.stop()


_enclosing: Final[ContextVar[Call | None]] = ContextVar("proctor_enclosing_call", default=None)
