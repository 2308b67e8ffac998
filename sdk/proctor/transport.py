"""The kernel as its callers see it: two ports, whatever carries the calls.

An agent talks to an `AgentPort`, a client to a `ClientPort`. The embedded kernel satisfies
both in this process; over HTTP, `http_client_port` is the second. User values cross as JSON
text (see `wire.calls`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from proctor.wire.calls import Lease, StepReply, StepSubmission

if TYPE_CHECKING:  # pydantic models: an agent does without them
    from proctor.wire.messages import (
        Approval,
        Event,
        Execution,
        ExecutionPage,
        ForkPoints,
        PolicyStatus,
        Step,
    )


class AgentPort(Protocol):
    """What a running handler may ask of the kernel (protocol 1.3).

    Every method raises `WireError`: `lease_superseded` when another attempt has taken the
    run over, `not_found`, `validation_error`, `conflict`, `unavailable` when the store could
    not record (nothing was acknowledged, and sending the same again is safe).
    """

    async def submit_step(
        self, execution_id: str, lease: Lease, submission: StepSubmission
    ) -> StepReply:
        """Ask whether a body may run; the answer is durable when this returns."""
        ...

    async def complete_step(
        self, execution_id: str, lease: Lease, step_id: str, *, result_json: str
    ) -> StepReply:
        """Record that the body returned. An outcome recorded before is answered as `replay`."""
        ...

    async def fail_step(
        self, execution_id: str, lease: Lease, step_id: str, *, error_json: str
    ) -> StepReply:
        """Record that the body raised. An outcome recorded before is answered as `replay`."""
        ...

    async def complete_execution(
        self, execution_id: str, lease: Lease, *, output_json: str
    ) -> None:
        """Record the handler's return value and end the run."""
        ...

    async def fail_execution(self, execution_id: str, lease: Lease, *, reason: str) -> None:
        """End the run as failed with `reason` (protocol 10.3)."""
        ...

    async def suspend(self, execution_id: str, lease: Lease) -> bool:
        """Stop, since all that is under way waits; False: nothing waits any more."""
        ...


class ClientPort(Protocol):
    """What the owner of a run may ask of the kernel (protocol 1.2).

    Raises `WireError` with `not_found` for an unknown agent, run or step, and `NetworkError`
    when there is a network and the kernel cannot be reached over it.
    """

    async def create_execution(
        self,
        agent_id: str,
        *,
        input_json: str,
        session: str | None = None,
        parent_execution_id: str | None = None,
        idempotency_key: str | None = None,
        on_behalf_of: str | None = None,
    ) -> Execution:
        """Start a run; it is durable when this returns."""
        ...

    async def get_execution(self, execution_id: str) -> Execution:
        """Read one run as it stands."""
        ...

    async def list_executions(
        self, *, agent_id: str, session: str, status: str, cursor: str, limit: int
    ) -> ExecutionPage:
        """Read a page of runs, the newest first; what is empty does not narrow."""
        ...

    async def wait_execution(self, execution_id: str) -> Execution:
        """Return the run once it is terminal, however long that takes."""
        ...

    async def list_events(
        self, execution_id: str, *, after_seq: int, limit: int
    ) -> Sequence[Event]:
        """Read up to `limit` log entries with a sequence number above `after_seq`, in order."""
        ...

    def watch_execution(self, execution_id: str, *, after_seq: int) -> AsyncGenerator[Event, None]:
        """Give every log entry above `after_seq`, in order and as it comes, to the run's end."""
        ...

    async def list_steps(self, execution_id: str) -> Sequence[Step]:
        """Read every step of a run."""
        ...

    async def get_step(self, execution_id: str, step_id: str) -> Step:
        """Read one step."""
        ...

    async def previous_state(self, execution_id: str) -> Any:
        """Read what the run before this one left for it."""
        ...

    async def fork_execution(
        self, execution_id: str, *, at_seq: int, session: str | None, policy_bundle: str | None
    ) -> Execution:
        """Start a run as a copy of this one up to an event; it is durable when this returns."""
        ...

    async def fork_points(self, execution_id: str) -> ForkPoints:
        """Read where a run can be forked, and which checkpoints there are."""
        ...

    async def cancel_execution(self, execution_id: str) -> None:
        """End the run; raises `conflict` when it has ended already."""
        ...

    async def policy_status(self) -> PolicyStatus:
        """Tell which rules decide, and what is wrong with their folder."""
        ...

    async def list_approvals(self, *, status: str, after: str) -> Sequence[Approval]:
        """Read a page of the approvals of a status (empty: of any), the oldest first."""
        ...

    def watch_approvals(self) -> AsyncGenerator[Approval, None]:
        """Give the approvals that are pending, then each as it is asked for, voted on, decided.

        What did not change may come again.
        """
        ...

    async def get_approval(self, approval_id: str) -> Approval:
        """Read one approval."""
        ...

    async def grant_approval(
        self, approval_id: str, *, by: str, groups: Sequence[str], rationale: str
    ) -> None:
        """Agree to a call that waits; raises `forbidden` for whoever is not asked."""
        ...

    async def deny_approval(
        self, approval_id: str, *, by: str, groups: Sequence[str], rationale: str
    ) -> None:
        """Say no to a call that waits; raises `forbidden` for whoever is not asked."""
        ...
