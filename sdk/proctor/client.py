"""What the owner of runs does with them: create, watch, read, decide, cancel."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from proctor import encode
from proctor.errors import ProctorError, from_wire
from proctor.transport import ClientPort
from proctor.wire.calls import WireError
from proctor.wire.messages import (
    Approval,
    Event,
    Execution,
    ForkPoints,
    PolicyStatus,
    Step,
)
from proctor.wire.words import (
    API_KEY_VARIABLE,
    APPROVALS_PAGE_MAX,
    EVENTS_PAGE_MAX,
    EXECUTIONS_PAGE_MAX,
    SERVER_URL_DEFAULT,
    SERVER_URL_VARIABLE,
    ApprovalStatus,
)

_LAST_LOOK_SECONDS: Final = 1.0
"""How long a wait whose time is up asks where the run stands."""

T = TypeVar("T")


class Client:
    """Creates runs and reads what became of them, at a server or in an embedded kernel.

    Every method raises `NotFoundError` for what does not exist. At a server also:
    `UnauthorizedError`, `ForbiddenError` (the key lacks a scope), `NetworkError` (it cannot be
    reached), `UnavailableError` (its database cannot).
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        retry_for: float = 60.0,
    ) -> None:
        """Be a client of a server; nothing is sent yet.

        Without `base_url`, `PROCTOR_URL` says where it is, else it is `proctor dev` on this
        machine; without `api_key`, `PROCTOR_API_KEY` says who asks. `timeout`: seconds for one
        request. `retry_for`: seconds for which a server that has answered before may be away.
        So long reads, creates, waits and streams go on trying; whatever must not be done twice
        (grant, deny, cancel, fork) is asked once.

        Raises:
            ValueError: `base_url` is no address, or `api_key` no key.
        """
        from proctor.http_client_port import HttpClientPort

        port = HttpClientPort(
            base_url or os.environ.get(SERVER_URL_VARIABLE) or SERVER_URL_DEFAULT,
            api_key or os.environ.get(API_KEY_VARIABLE),
            timeout_seconds=timeout,
            retry_seconds=retry_for,
        )
        self._port: ClientPort = port
        self._close: Callable[[], Awaitable[None]] | None = port.aclose

    @classmethod
    def over(cls, port: ClientPort) -> Self:
        """Return a client of `port`, which whoever made it closes."""
        made = cls.__new__(cls)
        made._port = port
        made._close = None
        return made

    async def __aenter__(self) -> Self:
        """Use the client for a block."""
        return self

    async def __aexit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Close the connections to the server."""
        if self._close is not None:
            await self._close()

    async def create(
        self,
        agent_id: str,
        input: Any = None,
        *,
        session: str | None = None,
        parent_execution_id: str | None = None,
        idempotency_key: str | None = None,
        on_behalf_of: str | None = None,
    ) -> Execution:
        """Start a run of an agent; it is durable when this returns.

        Runs of one `session` take turns, and what one has read counts for the next. With
        `parent_execution_id` it follows a run that has completed. A known `idempotency_key`
        returns the run that it stands for. `on_behalf_of` is the user whom it is for.

        Raises:
            TypeError: `input` is not JSON.
            ConflictError: the parent has not completed, or is of another agent.
        """
        input_json = encode.to_json(input, f"the input of agent {agent_id!r}")
        return await _mapped(
            self._port.create_execution(
                agent_id,
                input_json=input_json,
                session=session,
                parent_execution_id=parent_execution_id,
                idempotency_key=idempotency_key,
                on_behalf_of=on_behalf_of,
            )
        )

    async def get(self, execution_id: str) -> Execution:
        """Read a run as it stands."""
        return await _mapped(self._port.get_execution(execution_id))

    async def list_executions(
        self,
        *,
        agent_id: str = "",
        session: str = "",
        status: str = "",
        limit: int | None = None,
    ) -> AsyncGenerator[Execution, None]:
        """Give runs, the newest first, up to `limit`; pages are read as they are needed.

        async for run in client.list_executions(agent_id="researcher", status="failed"): ...
        """
        left = limit
        cursor: str | None = ""
        while cursor is not None and left != 0:
            size = EXECUTIONS_PAGE_MAX if left is None else min(left, EXECUTIONS_PAGE_MAX)
            page = await _mapped(
                self._port.list_executions(
                    agent_id=agent_id, session=session, status=status, cursor=cursor, limit=size
                )
            )
            for execution in page.executions:
                yield execution
            left = None if left is None else left - len(page.executions)
            cursor = page.next_cursor

    async def wait(  # a deadline belongs to waiting
        self,
        execution_id: str,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Execution:
        """Return a run once it has ended. `timeout` in seconds; None waits for ever.

        A server that is restarted meanwhile, or a connection that breaks, does not end it.

        Raises:
            TimeoutError: it has not ended by then; the run goes on.
        """
        try:
            async with asyncio.timeout(timeout):
                return await _mapped(self._port.wait_execution(execution_id))
        except TimeoutError:
            stands = await self._last_look(execution_id)
            raise TimeoutError(
                f"execution {execution_id} {stands} after {timeout} seconds; it goes on"
            ) from None

    async def events(self, execution_id: str, after_seq: int = 0, limit: int = 100) -> list[Event]:
        """Read the log of a run: up to `limit` (at most 1000) events above `after_seq`."""
        if not 1 <= limit <= EVENTS_PAGE_MAX:
            raise ValueError(f"limit must be from 1 to {EVENTS_PAGE_MAX}, not {limit}")
        return list(
            await _mapped(self._port.list_events(execution_id, after_seq=after_seq, limit=limit))
        )

    async def watch(self, execution_id: str, after_seq: int = 0) -> AsyncGenerator[Event, None]:
        """Give the log of a run above `after_seq`, event by event as it grows, to the run's end.

        Each event comes once and in order, also when the connection breaks in between.
        """
        following = self._port.watch_execution(execution_id, after_seq=after_seq)
        async with aclosing(_each_mapped(following)) as events:
            async for event in events:
                yield event

    async def list_steps(self, execution_id: str) -> list[Step]:
        """Read every step of a run, in the order in which they were first proposed."""
        return list(await _mapped(self._port.list_steps(execution_id)))

    async def get_step(self, execution_id: str, step_id: str) -> Step:
        """Read one step of a run."""
        return await _mapped(self._port.get_step(execution_id, step_id))

    async def previous(self, execution_id: str) -> Any:
        """Read what the run before this one left for it: its state, else its output, else None."""
        return await _mapped(self._port.previous_state(execution_id))

    async def fork(
        self,
        execution_id: str,
        at_seq: int,
        *,
        session: str | None = None,
        policy_bundle: str | None = None,
    ) -> Execution:
        """Start a run as a copy of this one up to event `at_seq`.

        What was settled by then replays; all that comes after runs live. `policy_bundle`: rules
        (Cedar text) that must allow its calls too.

        Raises:
            ValidationError: there is no such event, or the bundle does not load.
            ConflictError: the session has runs already.
        """
        return await _mapped(
            self._port.fork_execution(
                execution_id, at_seq=at_seq, session=session, policy_bundle=policy_bundle
            )
        )

    async def fork_points(self, execution_id: str) -> ForkPoints:
        """Read where a run can be forked, and which checkpoints there are."""
        return await _mapped(self._port.fork_points(execution_id))

    async def cancel(self, execution_id: str) -> None:
        """End a run and interrupt its handler.

        Raises:
            ConflictError: it has ended already.
        """
        await _mapped(self._port.cancel_execution(execution_id))

    async def policy_status(self) -> PolicyStatus:
        """Tell which rules decide, and what is wrong with the folder they come from."""
        return await _mapped(self._port.policy_status())

    async def list_approvals(self, status: str = "pending") -> list[Approval]:
        """Read the calls that wait for people, the oldest first; "" reads decided ones too."""
        found: list[Approval] = []
        while True:
            after = found[-1].id if found else ""
            page = await _mapped(self._port.list_approvals(status=status, after=after))
            found += page
            if len(page) < APPROVALS_PAGE_MAX:
                return found

    async def watch_approvals(self) -> AsyncGenerator[Approval, None]:
        """Give the calls that wait for people, then each that is asked for, voted on or decided.

        It never ends by itself. What is decided while the connection is broken is not told.
        """
        pending: dict[str, Approval] = {}
        async with aclosing(_each_mapped(self._port.watch_approvals())) as changes:
            async for approval in changes:
                if pending.get(approval.id) == approval:
                    continue
                if approval.status is ApprovalStatus.PENDING:
                    pending[approval.id] = approval
                else:
                    pending.pop(approval.id, None)
                yield approval

    async def get_approval(self, approval_id: str) -> Approval:
        """Read one approval."""
        return await _mapped(self._port.get_approval(approval_id))

    async def grant_approval(
        self,
        approval_id: str,
        *,
        by: str = "",
        groups: Sequence[str] = (),
        rationale: str = "",
    ) -> None:
        """Agree to a call that waits, as `by`, who is in `groups`.

        A server takes who that is from the API key; `by` is for one that asks for no keys
        (`proctor dev`). An embedded kernel believes whoever it is embedded by: check who asks
        before you call this.

        Raises:
            ForbiddenError: the rule asks other people.
            ConflictError: it is decided, or it has expired.
            ValidationError: it is not said who decides, or it is said beside an API key.
        """
        await _mapped(
            self._port.grant_approval(approval_id, by=by, groups=groups, rationale=rationale)
        )

    async def deny_approval(
        self,
        approval_id: str,
        *,
        by: str = "",
        groups: Sequence[str] = (),
        rationale: str = "",
    ) -> None:
        """Say no to a call that waits; the model is told `rationale`. Raises as a grant does."""
        await _mapped(
            self._port.deny_approval(approval_id, by=by, groups=groups, rationale=rationale)
        )

    async def _last_look(self, execution_id: str) -> str:
        try:
            async with asyncio.timeout(_LAST_LOOK_SECONDS):
                return f"is still {(await self.get(execution_id)).status}"
        except (TimeoutError, ProctorError):
            return "has not ended"


async def _mapped(asked: Awaitable[T]) -> T:
    try:
        return await asked
    except WireError as error:
        raise from_wire(error) from None


async def _each_mapped(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    try:
        async with aclosing(items):
            async for item in items:
                yield item
    except WireError as error:
        raise from_wire(error) from None
