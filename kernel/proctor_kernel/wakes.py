"""Who wants to know what: a write here wakes whoever waits for it, in every process.

Inside a process a callback; between processes the database's notices, sent in bundles beside the
writes, never as part of one. A notice that is lost only delays: everybody looks again by and by.
"""

import asyncio
import json
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Awaitable, Callable
from typing import Final

from proctor_kernel import world
from proctor_kernel.store.database import StoreUnavailable

Callback = Callable[[str], None]
Relay = Callable[[str], Awaitable[None]]
"""Tells the other processes; at most `_NOTICE_BYTES_MAX` bytes at once."""

_NOTICE_BYTES_MAX: Final = 7500
_PART_CHARACTERS: Final = 1500
_BUNDLE_SECONDS: Final = 0.005
_UNFINISHED_MAX: Final = 64

_logger = logging.getLogger(__name__)


class Wakes:
    """Topics, and who listens to them here; with a `relay`, elsewhere too."""

    def __init__(self, relay: Relay | None = None) -> None:
        self._relay = relay
        self._me = world.new_id()
        self._callbacks: defaultdict[str, list[Callback]] = defaultdict(list)
        # Ordered, each once: a run that changed ten times is told of once.
        self._outgoing: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._pending = asyncio.Event()
        self._parts: OrderedDict[str, dict[int, str]] = OrderedDict()

    def listen(self, topic: str, callback: Callback) -> Callable[[], None]:
        """Call `callback` with the text of each wake of a topic; returns what ends that."""
        self._callbacks[topic].append(callback)

        def stop() -> None:
            self._callbacks[topic].remove(callback)
            if not self._callbacks[topic]:
                del self._callbacks[topic]

        return stop

    def tell(self, topic: str, text: str = "") -> None:
        """Wake whoever listens to a topic, here at once and elsewhere soon."""
        self._call(topic, text)
        if self._relay is not None:
            self._outgoing[(topic, text)] = None
            self._pending.set()

    def heard(self, notice: str) -> None:
        """Take a notice of another process."""
        told = json.loads(notice)
        if told["from"] == self._me:
            return
        if "part" in told:
            parts = self._parts.setdefault(told["id"], {})
            parts[told["n"]] = told["part"]
            if len(self._parts) > _UNFINISHED_MAX:
                self._parts.popitem(last=False)
            if len(parts) < told["of"]:
                return
            self._parts.pop(told["id"], None)
            topic, text = json.loads("".join(parts[n] for n in range(told["of"])))
            self._call(topic, text)
            return
        for topic, text in told["told"]:
            self._call(topic, text)

    async def run(self) -> None:
        """Relay what is told here until cancelled."""
        assert self._relay is not None, "without a relay there is nothing to run"
        while True:
            await self._pending.wait()
            await asyncio.sleep(_BUNDLE_SECONDS)
            self._pending.clear()
            outgoing, self._outgoing = list(self._outgoing), OrderedDict()
            for notice in self._notices(outgoing):
                try:
                    await self._relay(notice)
                except StoreUnavailable as error:
                    _logger.warning("others are not told: %s", error)

    def _call(self, topic: str, text: str) -> None:
        for callback in list(self._callbacks.get(topic, ())):
            callback(text)

    def _notices(self, outgoing: list[tuple[str, str]]) -> list[str]:
        notices: list[str] = []
        bundle: list[str] = []
        size = 0
        for topic, text in outgoing:
            written = json.dumps([topic, text])
            is_long = len(written) > _NOTICE_BYTES_MAX - 200
            # What is told first is heard first, so a bundle ends before what does not fit in it.
            if bundle and (is_long or size + len(written) > _NOTICE_BYTES_MAX - 200):
                notices.append(self._bundled(bundle))
                bundle, size = [], 0
            if is_long:
                notices += self._parted(written)
                continue
            bundle.append(written)
            size += len(written) + 1
        if bundle:
            notices.append(self._bundled(bundle))
        return notices

    def _bundled(self, bundle: list[str]) -> str:
        return f'{{"from":"{self._me}","told":[{",".join(bundle)}]}}'

    def _parted(self, written: str) -> list[str]:
        name = world.new_id()
        parts = [
            written[at : at + _PART_CHARACTERS] for at in range(0, len(written), _PART_CHARACTERS)
        ]
        return [
            json.dumps({"from": self._me, "id": name, "n": n, "of": len(parts), "part": part})
            for n, part in enumerate(parts)
        ]
