"""What the owner of runs does with them: create, watch, read, cancel."""

import asyncio
from collections.abc import Awaitable, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from proctor import encode
from proctor.errors import from_wire
from proctor.transport import ClientPort
from proctor.wire.calls import WireError
from proctor.wire.messages import Approval, Event, Execution, PolicyStatus, Step

EVENTS_PAGE_MAX = 1000
"""Most events that one call returns (protocol 1.2)."""

T = TypeVar("T")


class Client:
    """Creates runs and reads what became of them.

    Every method raises `NotFoundError` for what does not exist.
    """

    def __init__(self, port: ClientPort) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        """Use the client for a block."""
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Leave the block."""

    async def create(
        self,
        agent_id: str,
        input: Any = None,
        *,
        session: str | None = None,
        idempotency_key: str | None = None,
    ) -> Execution:
        """Start a run of an agent; it is durable when this returns.

        Runs of one `session` take turns, and what one has read counts for the next. A known
        `idempotency_key` returns the run that it stands for.

        Raises:
            TypeError: `input` is not JSON.
        """
        input_json = encode.to_json(input, f"the input of agent {agent_id!r}")
        return await _mapped(
            self._port.create_execution(
                agent_id, input_json=input_json, session=session, idempotency_key=idempotency_key
            )
        )

    async def get(self, execution_id: str) -> Execution:
        """Read a run as it stands."""
        return await _mapped(self._port.get_execution(execution_id))

    async def wait(  # a deadline belongs to waiting
        self,
        execution_id: str,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Execution:
        """Return a run once it has ended. `timeout` in seconds; None waits for ever.

        Raises:
            TimeoutError: it has not ended by then; the run goes on.
        """
        try:
            async with asyncio.timeout(timeout):
                return await _mapped(self._port.wait_execution(execution_id))
        except TimeoutError:
            status = (await self.get(execution_id)).status
            raise TimeoutError(
                f"execution {execution_id} is still {status} after {timeout} seconds"
            ) from None

    async def events(self, execution_id: str, after_seq: int = 0, limit: int = 100) -> list[Event]:
        """Read the log of a run: up to `limit` (at most 1000) events above `after_seq`."""
        if not 1 <= limit <= EVENTS_PAGE_MAX:
            raise ValueError(f"limit must be from 1 to {EVENTS_PAGE_MAX}, not {limit}")
        return list(
            await _mapped(self._port.list_events(execution_id, after_seq=after_seq, limit=limit))
        )

    async def list_steps(self, execution_id: str) -> list[Step]:
        """Read every step of a run, in the order in which they were first proposed."""
        return list(await _mapped(self._port.list_steps(execution_id)))

    async def get_step(self, execution_id: str, step_id: str) -> Step:
        """Read one step of a run."""
        return await _mapped(self._port.get_step(execution_id, step_id))

    async def policy_status(self) -> PolicyStatus:
        """Tell which rules decide, and what is wrong with the folder they come from."""
        return await _mapped(self._port.policy_status())

    async def list_approvals(self, status: str = "pending") -> list[Approval]:
        """Read the calls that wait for people, the oldest first; "" reads decided ones too."""
        return list(await _mapped(self._port.list_approvals(status=status)))

    async def get_approval(self, approval_id: str) -> Approval:
        """Read one approval."""
        return await _mapped(self._port.get_approval(approval_id))

    async def grant_approval(
        self,
        approval_id: str,
        *,
        by: str,
        groups: Sequence[str] = (),
        rationale: str = "",
    ) -> None:
        """Agree to a call that waits, as `by`, who is in `groups`.

        An embedded kernel believes whoever it is embedded by: check who asks before you call this.

        Raises:
            ForbiddenError: the rule asks other people.
            ConflictError: it is decided, or it has expired.
        """
        await _mapped(
            self._port.grant_approval(approval_id, by=by, groups=groups, rationale=rationale)
        )

    async def deny_approval(
        self,
        approval_id: str,
        *,
        by: str,
        groups: Sequence[str] = (),
        rationale: str = "",
    ) -> None:
        """Say no to a call that waits; the model is told `rationale`. Raises as a grant does."""
        await _mapped(
            self._port.deny_approval(approval_id, by=by, groups=groups, rationale=rationale)
        )

    async def cancel(self, execution_id: str) -> None:
        """End a run and interrupt its handler.

        Raises:
            ConflictError: it has ended already.
        """
        await _mapped(self._port.cancel_execution(execution_id))


async def _mapped(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except WireError as error:
        raise from_wire(error) from None
