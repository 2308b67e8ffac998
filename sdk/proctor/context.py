"""The run that the current code belongs to, and the one path that every call of it takes.

`Execution.call`: encode, submit, handshake, body, settle. Tools, steps and MCP tools differ
only in what they do with a refusal.

What is recorded when a body does not return: it raised, the step failed; the caller gave up on
this call (a timeout of its own), the step failed as `cancelled`; the attempt itself is being
stopped, nothing, so that the next attempt treats it by its idempotency.

`under_way` says what becomes of the calls of an attempt that has to stop.
"""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

from proctor import encode
from proctor.errors import (
    CONTROL_FLOW,
    Blocked,
    PolicyError,
    RateLimited,
    Terminated,
    ToolError,
    from_wire,
)
from proctor.handshake import (
    Ended,
    Limited,
    Proceed,
    Refused,
    Replayed,
    ReplayedFailure,
    Suspended,
    failure_message,
    shake,
)
from proctor.transport import AgentPort
from proctor.under_way import UnderWay
from proctor.wire.calls import Lease, StepReply, StepSubmission, WireError
from proctor.wire.words import Answer, ErrorCode, Idempotency, StepKind

SUBMIT_TRIES_MAX: Final = 5
"""How often one call is sent when the kernel cannot record; always under one request id."""

_RETRY_SECONDS: Final = 0.05

_GIVEN_UP: Final = {
    "reason": "cancelled",
    "message": "the caller stopped waiting; the body may have taken effect",
}

Body = Callable[[], Awaitable[Any]]


@dataclass(slots=True)
class Execution:
    """One attempt at a run, as its handler sees it."""

    id: str
    agent_id: str
    input: Any
    lease: Lease
    port: AgentPort = field(repr=False)
    stopping: bool = False
    """The attempt is being stopped from outside: nothing more is recorded for it."""
    under_way: UnderWay = field(default_factory=UnderWay, repr=False)

    async def call(
        self,
        kind: StepKind,
        target: str,
        args: Mapping[str, object],
        idempotency: Idempotency,
        body: Body,
    ) -> Any:
        """Run one governed call and return its value, live or replayed.

        A live value is returned as it reads back from JSON, so that a handler sees the same
        on a replay.

        Raises:
            TypeError: an argument is not JSON; nothing was submitted.
            PolicyError: the rules deny it. RateLimited: a limit is used up.
            ToolError: the body raised, or returned what is not JSON.
            CancelledError: the attempt is over, so its handler is stopped.
            Blocked, Terminated, LeaseSuperseded: it is over, and nothing can stop the handler.
        """
        submission = StepSubmission(
            kind, target, encode.args_to_json(args, target), idempotency, uuid.uuid4().hex
        )
        calls = self.under_way
        call = calls.begin()
        try:
            if calls.is_over_for(call):
                await calls.hold(call)
            try:
                value = await self._answered(submission, body)
            except Exception as error:
                waits = isinstance(error, CONTROL_FLOW) or calls.is_over_for(call)
                if calls.stop is None or not waits:
                    raise
            else:
                if calls.stop is None or not calls.is_over_for(call):
                    return value
            # Beside the `except`: what is held has nothing to say about why.
            await calls.hold(call)
        finally:
            calls.end(call)

    async def _answered(self, submission: StepSubmission, body: Body) -> Any:
        target = submission.target
        try:
            answer = shake(await self._submit(submission))
            match answer:
                case Proceed(step_id):
                    return await self._run(target, step_id, body)
                case Replayed(value):
                    return value
                case ReplayedFailure(step_id, message):
                    raise ToolError(message, tool_id=target, step_id=step_id)
                case Refused(reason, rule_id):
                    raise PolicyError(reason, rule_id=rule_id, call=body)
                case Limited(reason):
                    raise RateLimited(reason)
                case Suspended():
                    raise Blocked(f"execution {self.id} waits")
                case Ended():
                    raise Terminated(f"execution {self.id} has ended")
                case _:
                    assert_never(answer)
        except CONTROL_FLOW as error:
            self.under_way.over(error)
            raise

    async def _submit(self, submission: StepSubmission) -> StepReply:
        def send() -> Awaitable[StepReply]:
            return self.port.submit_step(self.id, self.lease, submission)

        try:
            return await self._until_recorded(send)
        except asyncio.CancelledError:
            # The caller stopped waiting for an answer that may be on record already. The
            # request id finds it again, so that no step is left executing without a body.
            if not self.stopping:
                await asyncio.shield(self._withdraw(send))
            raise

    async def _withdraw(self, send: Callable[[], Awaitable[StepReply]]) -> None:
        reply = await self._until_recorded(send)
        if reply.decision is Answer.PROCEED and reply.step_id:
            await self._fail(reply.step_id, _GIVEN_UP)

    async def _until_recorded(self, send: Callable[[], Awaitable[StepReply]]) -> StepReply:
        for tries in range(1, SUBMIT_TRIES_MAX + 1):
            try:
                return await send()
            except WireError as error:
                if error.code is not ErrorCode.UNAVAILABLE or tries == SUBMIT_TRIES_MAX:
                    raise from_wire(error) from error
            await asyncio.sleep(_RETRY_SECONDS * 2**tries)
        raise AssertionError("unreachable: the last try returns or raises")

    async def _run(self, target: str, step_id: str, body: Body) -> Any:
        try:
            value = await body()
        except asyncio.CancelledError:
            if not self.stopping:
                await asyncio.shield(self._fail(step_id, _GIVEN_UP))
            raise
        except CONTROL_FLOW:
            # The attempt is over, and with it what this step was doing.
            raise
        except Exception as error:
            await self._fail(step_id, {"message": str(error) or type(error).__name__})
            if isinstance(error, PolicyError | RateLimited):
                raise
            raise ToolError(
                str(error) or type(error).__name__, tool_id=target, step_id=step_id
            ) from error
        try:
            result_json = encode.to_json(value, f"the result of {target}")
        except TypeError as error:
            await self._fail(step_id, {"message": str(error)})
            raise ToolError(str(error), tool_id=target, step_id=step_id) from error
        reply = await self._complete(step_id, result_json)
        return self._settled(reply, target, json.loads(result_json))

    async def _complete(self, step_id: str, result_json: str) -> StepReply:
        def send() -> Awaitable[StepReply]:
            return self.port.complete_step(self.id, self.lease, step_id, result_json=result_json)

        try:
            return await self._until_recorded(send)
        except asyncio.CancelledError:
            # The body has returned: that is recorded, whoever has stopped waiting for it.
            if not self.stopping:
                await asyncio.shield(self._until_recorded(send))
            raise

    async def _fail(self, step_id: str, error: Mapping[str, str]) -> None:
        error_json = json.dumps(error)  # escapes what is not ASCII, unpaired surrogates too
        reply = await self._until_recorded(
            lambda: self.port.fail_step(self.id, self.lease, step_id, error_json=error_json)
        )
        if reply.decision is Answer.EXECUTION_TERMINAL:
            raise Terminated(f"execution {self.id} has ended")

    def _settled(self, reply: StepReply, target: str, value: Any) -> Any:
        """Return the value of a step that was settled; an outcome recorded before wins."""
        if reply.decision is Answer.EXECUTION_TERMINAL:
            raise Terminated(f"execution {self.id} has ended")
        if reply.decision is Answer.REPLAY:
            if reply.error_json is not None and reply.error_json != "null":
                raise ToolError(
                    failure_message(reply.error_json),
                    tool_id=target,
                    step_id=reply.step_id or "",
                )
            return json.loads(reply.result_json or "null")
        return value


_current: ContextVar[Execution | None] = ContextVar("proctor_execution", default=None)


def execution() -> Execution:
    """Return the run that this code belongs to.

    Raises:
        RuntimeError: called outside of a handler.
    """
    return current("execution()")


def current(what: str) -> Execution:
    """Return the run that this code belongs to; `what` names the caller in the error."""
    here = _current.get()
    if here is None:
        raise RuntimeError(
            f"{what} was called outside of a run, so no rule could be asked. Call it from an "
            "agent's handler, started by client.create(...)"
        )
    return here


class Activation:
    """Makes an execution the current one for a block of code and the tasks it starts."""

    def __init__(self, here: Execution) -> None:
        self._here = here

    def __enter__(self) -> Execution:
        self._token = _current.set(self._here)
        return self._here

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
