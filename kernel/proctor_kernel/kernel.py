"""The one loop: everything that happens to a run goes through `Kernel.apply`."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from proctor_kernel.core.commands import Answers, Command, Question, Reply
from proctor_kernel.core.decide import decide, question
from proctor_kernel.core.state import Attempt, State
from proctor_kernel.store.log import Log, LostRace

RACES_MAX: Final = 16
"""How often a command is decided anew because another kernel appended first."""

HOT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Payload of the runs that are kept folded in memory."""

_RUN_OVERHEAD_BYTES: Final = 4096


class Kernel:
    """Decides, records and answers commands, one run at a time each."""

    def __init__(
        self,
        *,
        log: Log,
        ask: Callable[[Question | None], Answers],
        ended: Callable[[str], None],
        hot_bytes_max: int = HOT_BYTES_MAX,
    ) -> None:
        """`ended` is told the id of each run that comes to its end here."""
        self._log = log
        self._ask = ask
        self._ended = ended
        self._hot = HotRuns(hot_bytes_max)
        self._attempts: dict[str, Attempt] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def apply(self, execution_id: str, command: Command) -> Reply:
        """Decide `command`, record what it causes, and return the reply once that is durable.

        Commands of one run take turns here; between kernels the log says who was first.

        Raises:
            StoreError: the log could not be read or written; nothing was acknowledged.
        """
        turn = self._turns.setdefault(execution_id, asyncio.Lock())
        async with turn:
            for _ in range(RACES_MAX):
                state = await self._load(execution_id)
                answers = self._ask(question(state, command))
                outcome = decide(state, command, answers)
                if outcome.events:
                    # Forgotten until the log has answered: a failed or interrupted append
                    # must not leave a state behind that the log does not have.
                    self._hot.forget(execution_id)
                    try:
                        state = await self._log.append(state, outcome.events, answers.now)
                    except LostRace:
                        continue
                    if state.is_terminal:
                        self._ended(execution_id)
                self._remember(state, outcome.attempt)
                return outcome.reply
        raise LostRace(f"execution {execution_id}: lost {RACES_MAX} races in a row")

    async def load(self, execution_id: str) -> State:
        """Return one run as it stands; `status` None when there is no such run."""
        return await self._load(execution_id)

    async def _load(self, execution_id: str) -> State:
        state = self._hot.get(execution_id)
        if state is not None:
            return state
        state = await self._log.load(execution_id)
        attempt = self._attempts.get(execution_id)
        dispatch = state.dispatch
        if attempt is not None:
            if dispatch is not None and attempt.key == (dispatch.dispatch_id, dispatch.attempt):
                state = replace(state, attempt=attempt)
            else:  # another kernel has begun an attempt since
                del self._attempts[execution_id]
        if state.status is not None:
            self._hot.keep(state)
        return state

    def _remember(self, state: State, attempt: Attempt | None) -> None:
        """Keep the state, and the memory of its attempt also beyond the state."""
        if state.is_terminal:
            attempt = None
        if attempt is not state.attempt:
            state = replace(state, attempt=attempt)
        if attempt is None:
            self._attempts.pop(state.execution_id, None)
        else:
            self._attempts[state.execution_id] = attempt
        if state.status is not None:
            self._hot.keep(state)


class HotRuns:
    """The folded states of recently active runs, bounded by the size of their payloads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._states: OrderedDict[str, State] = OrderedDict()

    def get(self, execution_id: str) -> State | None:
        """Return the state of a run if it is kept, as the most recently used."""
        state = self._states.get(execution_id)
        if state is not None:
            self._states.move_to_end(execution_id)
        return state

    def keep(self, state: State) -> None:
        """Keep a state, and let go of the least recently used over the bound."""
        self.forget(state.execution_id)
        self._states[state.execution_id] = state
        self._bytes += _size(state)
        while self._bytes > self._bytes_max:
            _, dropped = self._states.popitem(last=False)
            self._bytes -= _size(dropped)

    def forget(self, execution_id: str) -> None:
        """Let go of a run, so that the log is read the next time."""
        state = self._states.pop(execution_id, None)
        if state is not None:
            self._bytes -= _size(state)


def _size(state: State) -> int:
    return state.payload_bytes + _RUN_OVERHEAD_BYTES
