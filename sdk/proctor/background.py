"""An event loop in a thread of its own, for callers that do not await.

It works where a loop is running already, as in a notebook: nothing here touches that one.
"""

import asyncio
import functools
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Concatenate, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class BackgroundLoop:
    """A running event loop; it ends when it is closed, collected, or the process ends."""

    def __init__(self, close: Callable[[], Awaitable[None]] | None = None) -> None:
        """`close` is the last thing that runs in it; it must not refer to this object."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(loop,), name="proctor", daemon=True)
        thread.start()
        self._loop = loop
        self._end = weakref.finalize(self, _end, loop, thread, close)

    def run(self, ask: Callable[[], Awaitable[R]]) -> R:
        """Run what `ask` returns and return what comes out; an interrupt here cancels it there.

        Raises:
            RuntimeError: it was closed.
        """
        if not self._end.alive:
            raise RuntimeError("this was closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(_asked(ask), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and its thread; what still runs is cancelled. Twice is as good as once."""
        self._end()


class Blocking(Generic[A]):
    """Does what an asynchronous object does, and returns when it is done."""

    def __init__(self, of: A, loop: BackgroundLoop) -> None:
        self._of = of
        self._loop = loop


def blocking(
    method: Callable[Concatenate[A, P], Awaitable[R]],
) -> Callable[Concatenate[Blocking[A], P], R]:
    """Return a coroutine method as one that blocks; signature and docstring stay."""

    @functools.wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(lambda: method(self._of, *args, **kwargs))

    return call


def iterating(
    method: Callable[Concatenate[A, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Blocking[A], P], Generator[R, None, None]]:
    """Return an asynchronous generator method as one for `for`."""

    @functools.wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Generator[R, None, None]:
        items = method(self._of, *args, **kwargs)
        try:
            while True:
                try:
                    item = self._loop.run(lambda: anext(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            self._loop.run(items.aclose)

    return call


async def _asked(ask: Callable[[], Awaitable[R]]) -> R:
    return await ask()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _end(
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    close: Callable[[], Awaitable[None]] | None,
) -> None:
    winding_up = asyncio.run_coroutine_threadsafe(_wind_up(close), loop)
    winding_up.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    # Garbage may be collected in any thread, and this one cannot wait for itself.
    if threading.current_thread() is not thread:
        thread.join()
        winding_up.result()


async def _wind_up(close: Callable[[], Awaitable[None]] | None) -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if close is not None:
        await close()
