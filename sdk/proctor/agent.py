"""An agent: an id and the handler that works on its runs."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, get_type_hints

from proctor import encode
from proctor.context import Activation, Execution
from proctor.errors import CONTROL_FLOW, Blocked, failure_reason, from_wire
from proctor.tools import Tool
from proctor.transport import AgentPort
from proctor.wire.calls import Delivery, WireError

Handler = TypeVar("Handler", bound=Callable[..., Any])


class InputInvalid(Exception):
    """The input of a run does not fit its handler."""


class Agent:
    """An agent by its id; `handler` gives it the function that works on its runs.

    The handler's signature says what it takes (protocol 10.2): one parameter annotated with a
    pydantic model is built from the input; one parameter without annotation, `Any` or `dict`
    gets the input as it is; otherwise each parameter takes the input's field of its name.

    `tools`: what the agent uses; their arguments are published, so that rules about them can be
    checked. Tools that are not named here are governed all the same.
    """

    def __init__(self, agent_id: str, *, tools: Sequence[Tool] = ()) -> None:
        if not agent_id:
            raise ValueError("an agent's id must not be empty")
        self.id = agent_id
        self.tools = tuple(tools)
        self._handler: Callable[..., Any] | None = None

    def handler(self, fn: Handler) -> Handler:
        """Make `fn` what works on the runs of this agent; usable as a decorator."""
        self.bind(fn)
        return fn

    def bind(self, fn: Callable[..., Any]) -> None:
        """Make `fn`, `async def` or `def`, what works on the runs of this agent."""
        if self._handler is not None:
            raise ValueError(f"agent {self.id!r} has a handler already")
        if not callable(fn):
            raise TypeError(f"the handler of agent {self.id!r} is not callable: {fn!r}")
        self._handler = fn

    @property
    def has_handler(self) -> bool:
        """True once there is something to work on runs."""
        return self._handler is not None

    async def deliver(self, port: AgentPort, delivery: Delivery) -> None:
        """Work on a run once: one attempt, from the top of the handler to its outcome.

        Posts the outcome, unless the attempt is over for another reason (protocol 10.1). When
        this is cancelled, the handler is stopped and nothing more is recorded for it.
        """
        here = Execution(
            id=delivery.execution_id,
            agent_id=delivery.agent_id,
            input=json.loads(delivery.input_json),
            lease=delivery.lease,
            port=port,
        )
        # A task of its own: only so can a call that is cut off tell whether the attempt is
        # being stopped, or whoever made the call has stopped waiting.
        attempt = asyncio.ensure_future(self._attempt(here))
        try:
            await asyncio.shield(attempt)
        except asyncio.CancelledError:
            here.stopping = True
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
            raise

    async def _attempt(self, here: Execution) -> None:
        with Activation(here):
            handler = asyncio.ensure_future(self._outcome(here))

        def stop() -> None:
            here.stopping = True
            handler.cancel()

        here.under_way.stop = stop
        try:
            await asyncio.wait([handler])
        except asyncio.CancelledError:
            handler.cancel()
            await asyncio.gather(handler, return_exceptions=True)
            raise
        finally:
            here.under_way.release()
        error = _raised(handler)
        if here.under_way.ended_by is None and isinstance(error, CONTROL_FLOW):
            here.under_way.over(error)
        match here.under_way.ended_by:
            case Blocked():
                await _stop_to_wait(here)
            case None if error is not None:
                await _post(here.port.fail_execution(here.id, here.lease, reason=_reason(error)))
            case None:
                await _post(
                    here.port.complete_execution(here.id, here.lease, output_json=handler.result())
                )
            case _:
                pass  # the run has ended, or another attempt has taken it over

    async def _outcome(self, here: Execution) -> str:
        handler = self._handler
        assert handler is not None, "embedding checks that there is a handler"
        args, kwargs = bind_input(handler, here.input)
        if inspect.iscoroutinefunction(handler):
            output = await handler(*args, **kwargs)
        else:
            output = await asyncio.to_thread(handler, *args, **kwargs)
            if inspect.isawaitable(output):
                output = await output
        return encode.to_json(output, f"what the handler of agent {self.id!r} returned")


def bind_input(handler: Callable[..., Any], value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments to call `handler` with for the input of a run (protocol 10.2).

    Raises:
        InputInvalid: a required field is missing, or the model does not accept the input.
    """
    parameters = list(inspect.signature(handler).parameters.values())
    if len(parameters) == 1:
        hint = _hints(handler).get(parameters[0].name, inspect.Parameter.empty)
        if hint in (inspect.Parameter.empty, Any, dict):
            return (value,), {}
        if isinstance(hint, type) and hasattr(hint, "model_validate"):
            try:
                return (hint.model_validate(value if isinstance(value, dict) else {}),), {}
            except ValueError as error:  # pydantic's ValidationError is one
                raise InputInvalid(str(error)) from error
    fields = value if isinstance(value, dict) else {}
    named = [each for each in parameters if each.kind not in _GATHERING]
    missing = [
        each.name
        for each in named
        if each.name not in fields and each.default is inspect.Parameter.empty
    ]
    if missing:
        raise InputInvalid(f"missing required input fields: {', '.join(missing)}")
    positional = []
    keyword = {}
    for each in named:
        if each.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(fields.get(each.name, each.default))
        elif each.name in fields:
            keyword[each.name] = fields[each.name]
    return tuple(positional), keyword


_GATHERING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _hints(handler: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(handler)
    except (NameError, TypeError):
        # An annotation that names what does not exist at run time says nothing about input.
        return dict(getattr(handler, "__annotations__", {}))


def _reason(error: BaseException) -> str:
    if isinstance(error, InputInvalid):
        return f"input_invalid: {error}"
    return failure_reason(error)


def _raised(handler: asyncio.Future[str]) -> BaseException | None:
    if handler.cancelled():
        return asyncio.CancelledError("the handler cancelled itself")
    return handler.exception()


async def _stop_to_wait(here: Execution) -> None:
    """Let calls under way come to their end, then tell the kernel that the attempt is over."""
    await here.under_way.quiet()
    await _post(here.port.suspend(here.id, here.lease))


async def _post(outcome: Awaitable[object]) -> None:
    try:
        await outcome
    except WireError as error:
        posted = from_wire(error)
        # The run was ended or taken over meanwhile: there is nothing left to report.
        if not isinstance(posted, CONTROL_FLOW):
            raise posted from error
