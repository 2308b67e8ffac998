"""The attempts of a run under test: what they ask is noted, and one may be made to crash.

A crash is what `kill -9` does to the process of a handler: from one moment on nothing of the
attempt is recorded, and the kernel gives the run to its agent again.
"""

import asyncio
import inspect
import json
from dataclasses import dataclass, field
from typing import Any, cast

from proctor.agent import Agent
from proctor.testing.runs import Call
from proctor.transport import AgentPort
from proctor.wire.calls import Delivery, Lease, StepReply, StepSubmission
from proctor.wire.words import Answer


@dataclass(slots=True)
class Crash:
    """When an attempt is to be dropped, once."""

    after: int | None
    """Once so many steps have an outcome on record."""
    during: str | None
    """Once the body of this tool has run, and before its outcome is on record."""
    has_come: bool = False

    def __str__(self) -> str:
        if self.after is not None:
            return f"crash_after={self.after}"
        return f"crash_during={self.during!r}"


@dataclass(slots=True)
class Trace:
    """What is known of a run beside its record."""

    crash: Crash | None = None
    calls: list[Call] = field(default_factory=list)
    crashed: list[int] = field(default_factory=list)
    attempts: int = 0
    under_way: int = 0
    recorded: set[str] = field(default_factory=set)
    """Steps with an outcome on record."""
    targets: dict[str, str] = field(default_factory=dict)

    async def deliver(self, agent: Agent, port: AgentPort, delivery: Delivery) -> None:
        """Work on the run once, until the attempt ends or crashes."""
        self.attempts += 1
        self.under_way += 1
        watched = WatchedPort(port, self)
        # Only what has no declaration of its own is passed on as it is.
        working = asyncio.ensure_future(agent.deliver(cast("AgentPort", watched), delivery))
        crashing = asyncio.ensure_future(watched.crashed.wait())
        try:
            await asyncio.wait({working, crashing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.under_way -= 1
            for task in (working, crashing):
                task.cancel()
            await asyncio.gather(working, crashing, return_exceptions=True)
        if not working.cancelled():
            working.result()


class WatchedPort:
    """An agent's port that notes what passes; after the crash nothing passes any more."""

    def __init__(self, port: AgentPort, trace: Trace) -> None:
        self._port = port
        self._trace = trace
        self._attempt = trace.attempts
        self.crashed = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        passed_on = getattr(self._port, name)
        if not inspect.iscoroutinefunction(passed_on):
            return passed_on

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._until_crashed()
            return await passed_on(*args, **kwargs)

        return call

    async def submit_step(
        self, execution_id: str, lease: Lease, submission: StepSubmission
    ) -> StepReply:
        """Ask, and note the call with the answer."""
        await self._until_crashed()
        reply = await self._port.submit_step(execution_id, lease, submission)
        step_id = reply.step_id or ""
        self._trace.targets[step_id] = submission.target
        self._trace.calls.append(
            Call(
                self._attempt,
                submission.kind,
                submission.target,
                json.loads(submission.args_json),
                reply.decision,
                step_id,
                reply.reason,
            )
        )
        if reply.decision is Answer.DENIED:
            await self._was_recorded(step_id)
        return reply

    async def complete_step(
        self, execution_id: str, lease: Lease, step_id: str, **outcome: Any
    ) -> StepReply:
        """Record that a body returned."""
        await self._before_outcome(step_id)
        reply = await self._port.complete_step(execution_id, lease, step_id, **outcome)
        await self._was_recorded(step_id)
        return reply

    async def fail_step(
        self, execution_id: str, lease: Lease, step_id: str, **outcome: Any
    ) -> StepReply:
        """Record that a body raised."""
        await self._before_outcome(step_id)
        reply = await self._port.fail_step(execution_id, lease, step_id, **outcome)
        await self._was_recorded(step_id)
        return reply

    async def _before_outcome(self, step_id: str) -> None:
        crash = self._trace.crash
        if (
            crash is not None
            and not crash.has_come
            and crash.during == self._trace.targets[step_id]
        ):
            self._drop(crash)
        await self._until_crashed()

    async def _was_recorded(self, step_id: str) -> None:
        crash = self._trace.crash
        self._trace.recorded.add(step_id)
        if crash is not None and not crash.has_come and crash.after == len(self._trace.recorded):
            self._drop(crash)
        await self._until_crashed()

    def _drop(self, crash: Crash) -> None:
        crash.has_come = True
        self._trace.crashed.append(self._attempt)
        self.crashed.set()

    async def _until_crashed(self) -> None:
        """Go on, unless the attempt has crashed: then nothing does."""
        if self.crashed.is_set():
            await asyncio.Event().wait()
