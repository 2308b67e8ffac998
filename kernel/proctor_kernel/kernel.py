"""The one loop: everything that happens to a run goes through `Kernel.apply`."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from weakref import WeakValueDictionary

from proctor.wire.calls import StepReply
from proctor.wire.words import Answer, ErrorCode
from proctor_kernel.core.commands import (
    Answers,
    Command,
    Outcome,
    Question,
    Rejected,
    Reply,
)
from proctor_kernel.core.decide import decide, question
from proctor_kernel.core.events import Event
from proctor_kernel.core.state import Attempt, Dispatch, State
from proctor_kernel.store.log import Log, LostRace

RACES_MAX: Final = 16
"""How often a command is decided anew because another kernel appended first."""

HOT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Payload of the runs that are kept folded in memory."""

_RUN_OVERHEAD_BYTES: Final = 4096

Happened = Callable[[State, Sequence[Event]], None]
"""Told of every run that changed here, and by what, once that is durable."""


class Kernel:
    """Decides, records and answers commands, one run at a time each.

    `is_alone`: no other kernel is at work on these runs, and whoever asks is in this process. What
    attempts asked is then kept in memory; otherwise it is stored, and what is known of a run is
    looked up again before anything is refused.
    """

    def __init__(
        self,
        *,
        log: Log,
        ask: Callable[[Question | None], Awaitable[Answers]],
        happened: Happened,
        is_alone: bool,
        hot_bytes_max: int = HOT_BYTES_MAX,
    ) -> None:
        self._log = log
        self._ask = ask
        self._happened = happened
        self._is_alone = is_alone
        self._hot = HotRuns(hot_bytes_max)
        self._attempts: dict[str, Attempt] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def apply(
        self,
        execution_id: str,
        command: Command,
        *,
        owner: str | None = None,
        races_max: int = RACES_MAX,
    ) -> Reply:
        """Decide `command`, record what it causes, and return the reply once that is durable.

        Commands of one run take turns here; between kernels the log says who was first. `owner`:
        the agent that asks, which may touch its own runs only.

        Raises:
            StoreError: the log could not be read or written; nothing was acknowledged.
            LostRace: others were first `races_max` times in a row.
        """
        turn = self._turns.setdefault(execution_id, asyncio.Lock())
        async with turn:
            state = self._hot.get(execution_id)
            is_current = self._is_alone and state is not None
            if state is None:
                state, is_current = await self._load(State(execution_id)), True
            for _ in range(races_max):
                if owner is not None and state.status is not None and state.agent_id != owner:
                    return Rejected(ErrorCode.FORBIDDEN, "the execution belongs to another agent")
                answers = await self._ask(question(state, command))
                outcome = decide(state, command, answers)
                if not is_current and _relies_on_memory(outcome):
                    state, is_current = await self._load(state), True
                    answers = await self._ask(question(state, command))
                    outcome = decide(state, command, answers)
                try:
                    return await self._record(state, outcome, answers.now)
                except LostRace:
                    state, is_current = await self._load(state), True
        raise LostRace(f"execution {execution_id}: lost {races_max} races in a row")

    async def load(self, execution_id: str) -> State:
        """Return one run as its log has it now; `status` None when there is no such run."""
        known = self._hot.get(execution_id)
        if known is not None and self._is_alone:
            return known
        return await self._load(known or State(execution_id))

    def dispatch_of(self, execution_id: str) -> Dispatch | None:
        """Return the delivery of a run as far as this kernel remembers it, without asking."""
        state = self._hot.get(execution_id)
        return None if state is None else state.dispatch

    async def _record(self, state: State, outcome: Outcome, at: int) -> Reply:
        note = outcome.note
        if outcome.events:
            # Forgotten until the log has answered: a failed or interrupted append must not
            # leave a state behind that the log does not have.
            self._hot.forget(state.execution_id)
            kept = None if self._is_alone else note
            after = await self._log.append(state, outcome.events, at, kept)
            if self._is_alone and note is not None and after.attempt is not None:
                after = after.changed(attempt=after.attempt.asked(note))
            self._keep(after)
            self._happened(after, outcome.events)
        elif note is not None and state.attempt is not None:
            if self._is_alone:
                self._keep(state.changed(attempt=state.attempt.asked(note)))
            else:
                self._keep(await self._log.note(state, note))
        return outcome.reply

    async def _load(self, known: State) -> State:
        """Bring what is known of a run up to date with the log."""
        state = await self._log.load(known)
        if not self._is_alone:
            state = await self._log.with_notes(state)
        else:
            # The log tells less than was asked, so only memory of the whole attempt will do.
            attempt = self._attempts.get(state.execution_id)
            if attempt is None or state.attempt is None or attempt.key != state.attempt.key:
                state = state.changed(attempt=None)
            else:
                state = state.changed(attempt=state.attempt.merged(attempt))
        if state.status is not None:
            self._keep(state)
        return state

    def _keep(self, state: State) -> None:
        """Keep the state, and the memory of its attempt also beyond the state."""
        if self._is_alone:
            if state.attempt is None or state.is_terminal:
                self._attempts.pop(state.execution_id, None)
            else:
                self._attempts[state.execution_id] = state.attempt
        self._hot.keep(state)


def _relies_on_memory(outcome: Outcome) -> bool:
    """True when nothing is written that would fail if another kernel had been at work."""
    if outcome.events or outcome.note is not None:
        return False
    # A recorded outcome never changes; anything else may have.
    return not (isinstance(outcome.reply, StepReply) and outcome.reply.decision is Answer.REPLAY)


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
