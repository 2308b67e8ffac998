"""What a running attempt may ask: the agent's side of the kernel (protocol 1.3).

It is the SDK's `AgentPort`; the HTTP routes call the same methods with the agent that signed.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from proctor.wire.calls import (
    Capture,
    CaptureFailure,
    Lease,
    StepReply,
    StepSubmission,
    WireError,
)
from proctor.wire.words import ErrorCode, StepStatus
from proctor_kernel import admit
from proctor_kernel.core import replies
from proctor_kernel.core.commands import (
    Command,
    PublishCheckpoints,
    Registered,
    RegisterResource,
    Rejected,
    Reply,
    Suspend,
    Suspended,
)
from proctor_kernel.core.state import Dispatch
from proctor_kernel.kernel import Kernel
from proctor_kernel.store import statements
from proctor_kernel.store.database import Database
from proctor_kernel.wire_errors import errors_on_the_wire

_RENEWED_MAX: Final = 10_000
"""Attempts whose last renewal is remembered; a forgotten one is renewed once more."""

DELTA_BYTES_MAX: Final = 7000
"""Bytes of one piece of a streamed answer (protocol 1.3)."""


class Attempts:
    """Submits, outcomes and leases of attempts."""

    def __init__(
        self, *, kernel: Kernel, database: Database, now_micros: Callable[[], int]
    ) -> None:
        self._kernel = kernel
        self._database = database
        self._now_micros = now_micros
        self._renewed: OrderedDict[Lease, int] = OrderedDict()

    async def submit_step(
        self,
        execution_id: str,
        lease: Lease,
        submission: StepSubmission,
        *,
        owner: str | None = None,
    ) -> StepReply:
        """Ask whether a body may run."""
        command = admit.submission(lease, submission)
        reply = admit.step_reply(await self._apply(execution_id, command, owner))
        await self._keep_alive(execution_id, lease)
        return reply

    async def complete_step(
        self,
        execution_id: str,
        lease: Lease,
        step_id: str,
        *,
        result_json: str,
        captures: tuple[Capture, ...] = (),
        capture_failures: tuple[CaptureFailure, ...] = (),
        owner: str | None = None,
    ) -> StepReply:
        """Record that a body returned."""
        command = admit.completion(lease, step_id, result_json, captures, capture_failures)
        return admit.step_reply(await self._apply(execution_id, command, owner))

    async def fail_step(
        self,
        execution_id: str,
        lease: Lease,
        step_id: str,
        *,
        error_json: str,
        captures: tuple[Capture, ...] = (),
        capture_failures: tuple[CaptureFailure, ...] = (),
        owner: str | None = None,
    ) -> StepReply:
        """Record that a body raised."""
        command = admit.failure(lease, step_id, error_json, captures, capture_failures)
        return admit.step_reply(await self._apply(execution_id, command, owner))

    async def complete_execution(
        self,
        execution_id: str,
        lease: Lease,
        *,
        output_json: str,
        state_json: str | None = None,
        owner: str | None = None,
    ) -> None:
        """Record a handler's return value and end the run."""
        command = admit.output(lease, output_json, state_json)
        admit.done(await self._apply(execution_id, command, owner))

    async def fail_execution(
        self, execution_id: str, lease: Lease, *, reason: str, owner: str | None = None
    ) -> None:
        """End a run as failed."""
        admit.done(await self._apply(execution_id, admit.giving_up(lease, reason), owner))

    async def suspend(self, execution_id: str, lease: Lease, *, owner: str | None = None) -> bool:
        """Stop, since all that is under way waits; False: nothing waits any more, go on."""
        reply = await self._apply(execution_id, Suspend(lease), owner)
        if not isinstance(reply, Suspended):
            raise admit.rejection(reply)
        return reply.suspended

    async def heartbeat(self, execution_id: str, lease: Lease, *, owner: str | None = None) -> None:
        """Say that the attempt is still at work."""
        with errors_on_the_wire():
            dispatch = await self._held(execution_id, lease, owner)
            if dispatch.lease_micros and not await self._renew(execution_id, lease, dispatch):
                raise admit.rejection(replies.superseded(lease))

    async def register_resource(
        self, execution_id: str, command: RegisterResource, *, owner: str | None = None
    ) -> Registered:
        """Register a resource, or find it again."""
        reply = await self._apply(execution_id, command, owner)
        if not isinstance(reply, Registered):
            raise admit.rejection(reply)
        return reply

    async def bind_resource(
        self,
        execution_id: str,
        lease: Lease,
        key: str,
        *,
        binding_json: str,
        owner: str | None = None,
    ) -> None:
        """Say where a live resource is found again."""
        command = admit.binding(lease, key, binding_json)
        admit.done(await self._apply(execution_id, command, owner))

    async def publish_checkpoints(
        self,
        execution_id: str,
        lease: Lease,
        captures: tuple[Capture, ...],
        capture_failures: tuple[CaptureFailure, ...],
        *,
        owner: str | None = None,
    ) -> None:
        """Report checkpoints that were made between calls."""
        command = PublishCheckpoints(lease, captures, capture_failures)
        admit.done(await self._apply(execution_id, command, owner))

    async def check_delta(
        self,
        execution_id: str,
        lease: Lease,
        step_id: str,
        text: str,
        *,
        owner: str | None = None,
    ) -> None:
        """Check that a piece of a streamed answer may be passed on to whoever listens."""
        if len(text.encode(errors="replace")) > DELTA_BYTES_MAX:
            raise WireError(
                ErrorCode.VALIDATION_ERROR, f"data: longer than {DELTA_BYTES_MAX} bytes"
            )
        with errors_on_the_wire():
            await self._held(execution_id, lease, owner)
            step = (await self._kernel.load(execution_id)).steps.get(step_id)
        if step is None:
            raise WireError(ErrorCode.NOT_FOUND, f"no step {step_id!r} in that execution")
        if step.status is not StepStatus.EXECUTING:
            raise WireError(ErrorCode.CONFLICT, f"step {step_id} is {step.status}")

    async def _apply(self, execution_id: str, command: Command, owner: str | None) -> Reply:
        with errors_on_the_wire():
            return await self._kernel.apply(execution_id, command, owner=owner)

    async def _held(self, execution_id: str, lease: Lease, owner: str | None) -> Dispatch:
        """Return the dispatch that `lease` is of; raises when it is not held any more."""
        state = await self._kernel.load(execution_id)
        barred: Rejected | None = replies.barred(state, lease)
        if state.status is not None and owner is not None and state.agent_id != owner:
            barred = Rejected(ErrorCode.FORBIDDEN, "the execution belongs to another agent")
        if barred is not None:
            raise admit.rejection(barred)
        assert state.dispatch is not None, "a lease is of a dispatch"
        return state.dispatch

    async def _keep_alive(self, execution_id: str, lease: Lease) -> None:
        """Renew the lease when a quarter of it is gone: an agent that asks is alive."""
        dispatch = self._kernel.dispatch_of(execution_id)
        if dispatch is None or not dispatch.lease_micros:
            return
        renewed_at = self._renewed.get(lease)
        if renewed_at is None:
            # The claim was its first.
            renewed_at = (dispatch.due_at or 0) - dispatch.lease_micros
        if self._now_micros() - renewed_at > dispatch.lease_micros // 4:
            with errors_on_the_wire():
                await self._renew(execution_id, lease, dispatch)

    async def _renew(self, execution_id: str, lease: Lease, dispatch: Dispatch) -> bool:
        now = self._now_micros()
        renewed = await self._database.run(
            statements.RENEW_LEASE,
            of_execution=execution_id,
            of_dispatch=lease.dispatch_id,
            of_attempt=lease.attempt,
            until=now + dispatch.lease_micros,
        )
        self._renewed[lease] = now
        self._renewed.move_to_end(lease)
        if len(self._renewed) > _RENEWED_MAX:
            self._renewed.popitem(last=False)
        return renewed == 1
