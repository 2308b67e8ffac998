"""What the owners of runs may ask, and what one run does to others (protocol 1.2, 4.4 to 4.6).

Runs of a session take turns; a run that ends gives the turn on, tells the step that waits for it,
and ends the runs that it waited for. Whatever a crash interrupts here, `sweep` does again.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode, ExecutionStatus, Reason
from proctor_kernel import admit, world
from proctor_kernel.core import events, forks, resources
from proctor_kernel.core.commands import (
    CancelExecution,
    CreateExecution,
    DecideApproval,
    Deny,
    Done,
    Expire,
    ForkExecution,
    Grant,
    Raised,
    Returned,
    SettleSubagent,
    Spawned,
    SpawnExecution,
    StartExecution,
)
from proctor_kernel.core.identity import NULL, Json, quoted
from proctor_kernel.core.state import State
from proctor_kernel.kernel import Kernel
from proctor_kernel.queries import Queries
from proctor_kernel.store import rows, statements
from proctor_kernel.store.database import Database
from proctor_kernel.store.log import LostRace, row_of
from proctor_kernel.wire_errors import errors_on_the_wire

_TURNS_MAX: Final = 8
"""How often the next run of a session is looked for anew because others were at it too."""


class Runs:
    """Creates, forks, cancels runs, decides approvals, and hands on what follows."""

    def __init__(
        self,
        *,
        kernel: Kernel,
        database: Database,
        queries: Queries,
        has_agent: Callable[[str], Awaitable[bool]],
        now_micros: Callable[[], int],
        deadline_micros: int | None = None,
    ) -> None:
        self._kernel = kernel
        self._database = database
        self._queries = queries
        self._has_agent = has_agent
        self._now_micros = now_micros
        self._deadline_micros = deadline_micros

    async def create(
        self,
        agent_id: str,
        *,
        input_json: str,
        session: str | None = None,
        parent_execution_id: str | None = None,
        idempotency_key: str | None = None,
        spawned_by: tuple[str, str] | None = None,
        created_by: str | None = None,
        on_behalf_of: str | None = None,
    ) -> str:
        """Create a run, and return its id; a known idempotency key returns the run it stands for.

        Raises:
            WireError: `not_found`, `validation_error`, `conflict` as protocol 1.2 has them.
        """
        document = admit.document("input", input_json)
        session = admit.label("session", session)
        key = admit.label("idempotency_key", idempotency_key)
        if spawned_by is not None and key is None:
            key = spawned_by[1]
        if on_behalf_of is not None:
            on_behalf_of = admit.label("on_behalf_of", on_behalf_of)
        with errors_on_the_wire():
            if not await self._has_agent(agent_id):
                raise WireError(ErrorCode.NOT_FOUND, f"no agent {agent_id!r}")
            known = await self._by_key(agent_id, key)
            if known is not None:
                return known
            inherited: tuple[events.Event, ...] = ()
            if parent_execution_id is not None:
                inherited = await self._from_parent(agent_id, parent_execution_id, session)
            execution_id = world.new_id()
            if spawned_by is not None:
                execution_id = await self._spawn(spawned_by, execution_id, session)
            command = CreateExecution(
                admit.name("agent_id", agent_id),
                document,
                session=session,
                parent_execution_id=parent_execution_id,
                idempotency_key=key,
                spawned_by=spawned_by,
                created_by=created_by,
                on_behalf_of=on_behalf_of,
                deadline_at=self._deadline(),
                inherited=inherited,
            )
            try:
                reply = await self._kernel.apply(execution_id, command, races_max=2)
            except LostRace:
                known = await self._by_key(agent_id, key)
                if known is None:
                    raise
                return known
            # A subagent that was created before, its answer lost, is there already.
            if not isinstance(reply, Done) and spawned_by is None:
                raise admit.rejection(reply)
            if session is not None:
                await self.admit_next(session)
        return execution_id

    async def fork(
        self,
        source_id: str,
        *,
        at_seq: int,
        session: str | None,
        bundle: str | None,
        created_by: str | None,
    ) -> str:
        """Create a run that begins as a copy of another up to `at_seq`; returns its id."""
        session = admit.label("session", session)
        with errors_on_the_wire():
            source = await self._existing(source_id)
            if session is not None and await self._database.read(
                statements.IS_SESSION_KNOWN, session=session
            ):
                raise WireError(ErrorCode.CONFLICT, f"the session {session!r} is there already")
            if not 1 <= at_seq <= source.seq:
                raise WireError(
                    ErrorCode.VALIDATION_ERROR,
                    f"at_seq: must be from 1 to {source.seq}, the latest event",
                )
            fork_id = world.new_id()
            found = await self._database.read(statements.LOG_OF_EXECUTION, execution_id=source_id)
            records = [rows.record(row_of(row)) for row in found]
            command = ForkExecution(
                events.ExecutionCreated(
                    source.agent_id,
                    source.input,
                    session=session,
                    parent_execution_id=source.parent_execution_id,
                    created_by=created_by,
                    on_behalf_of=source.on_behalf_of,
                    deadline_at=self._deadline(),
                    bundle=bundle or source.bundle,
                ),
                events.ExecutionForked(
                    source_id,
                    at_seq,
                    policy_override=bundle is not None,
                    restoration=forks.restoration(source, at_seq),
                ),
                forks.copied(source, records, at_seq=at_seq, fork_id=fork_id),
                session,
            )
            admit.done(await self._kernel.apply(fork_id, command))
            if session is not None:
                await self.admit_next(session)
        return fork_id

    async def cancel(self, execution_id: str, reason: Reason) -> None:
        """End a run from outside."""
        with errors_on_the_wire():
            admit.done(await self._kernel.apply(execution_id, CancelExecution(reason)))

    async def decide_approval(self, approval_id: str, resolution: Grant | Deny | Expire) -> None:
        """Record what a person says of a call, or that time is up."""
        with errors_on_the_wire():
            row = await self._queries.approval_row(approval_id)
            command = DecideApproval(approval_id, resolution)
            admit.done(await self._kernel.apply(row["execution_id"], command))

    async def follow_up(self, state: State) -> None:
        """Do what the end of a run means for others."""
        if state.session is not None:
            await self.admit_next(state.session)
        if state.spawned_by is not None:
            await self.settle_subagent(state)
        if any(step.child is not None for step in state.steps.values()):
            for row in await self._database.read(
                statements.LIVE_SUBAGENTS_OF, execution_id=state.execution_id
            ):
                await self._kernel.apply(row["id"], CancelExecution(Reason.PARENT_AGENT_TERMINAL))

    async def settle_subagent(self, child: State) -> None:
        """Tell the step that waits for a run what became of it (protocol 4.4)."""
        if child.spawned_by is None:
            return
        parent_id, step_id = child.spawned_by
        if child.status is ExecutionStatus.COMPLETED:
            outcome: Returned | Raised = Returned(child.output or NULL)
        else:
            failed = child.status is ExecutionStatus.FAILED
            reason = Reason.SUBAGENT_FAILED if failed else Reason.SUBAGENT_CANCELLED
            outcome = Raised(
                Json(
                    f'{{"reason":"{reason}","execution_id":"{child.execution_id}",'
                    f'"failure_reason":{quoted(child.failure_reason)}}}'
                )
            )
        await self._kernel.apply(parent_id, SettleSubagent(step_id, child.execution_id, outcome))

    async def admit_next(self, session: str) -> None:
        """Start the oldest run that waits in a session, if it is nobody's turn."""
        for _ in range(_TURNS_MAX):
            if await self._database.read(statements.TURN_OF_SESSION, session=session):
                return
            waiting = await self._database.read(
                statements.NEXT_OF_SESSION, session=session, now=self._now_micros()
            )
            if not waiting:
                return
            try:
                reply = await self._kernel.apply(
                    waiting[0]["id"],
                    await self._start(session, waiting[0]["id"]),
                    races_max=1,
                )
            except LostRace:
                continue
            if isinstance(reply, Done):
                return

    async def _start(self, session: str, execution_id: str) -> StartExecution:
        state = await self._kernel.load(execution_id)
        last = await self._database.read(statements.LAST_OF_SESSION, session=session)
        carried = None if not last or last[0]["tally"] is None else Json(last[0]["tally"])
        parent_id = None
        inherited: tuple[events.Event, ...] = ()
        if state.parent_execution_id is None and state.forked_from is None:
            completed = await self._database.read(
                statements.LAST_COMPLETED_OF_SESSION, session=session, agent_id=state.agent_id
            )
            parent_id = completed[0]["id"] if completed else None
        if state.forked_from is None and (parent_id or state.parent_execution_id):
            parent = await self._kernel.load(parent_id or state.parent_execution_id or "")
            inherited = resources.inherited(parent.resources)
        return StartExecution(parent_id, carried, inherited)

    async def _by_key(self, agent_id: str, key: str | None) -> str | None:
        if key is None:
            return None
        found = await self._database.read(statements.BY_IDEMPOTENCY_KEY, agent_id=agent_id, key=key)
        return str(found[0]["execution_id"]) if found else None

    async def _from_parent(
        self, agent_id: str, parent_id: str, session: str | None
    ) -> tuple[events.Event, ...]:
        parent = await self._existing(parent_id)
        if parent.agent_id != agent_id:
            raise WireError(ErrorCode.CONFLICT, "the parent belongs to another agent")
        if parent.status is not ExecutionStatus.COMPLETED:
            raise WireError(ErrorCode.CONFLICT, f"the parent is {parent.status}, not completed")
        if session is not None and await self._database.read(
            statements.IS_SESSION_KNOWN, session=session
        ):
            raise WireError(ErrorCode.CONFLICT, f"the session {session!r} has runs already")
        return resources.inherited(parent.resources)

    async def _spawn(
        self, spawned_by: tuple[str, str], execution_id: str, session: str | None
    ) -> str:
        parent_id, step_id = spawned_by
        reply = await self._kernel.apply(parent_id, SpawnExecution(step_id, execution_id, session))
        if not isinstance(reply, Spawned):
            raise admit.rejection(reply)
        return reply.execution_id

    async def _existing(self, execution_id: str) -> State:
        state = await self._kernel.load(execution_id)
        if state.status is None:
            raise WireError(ErrorCode.NOT_FOUND, f"no execution {execution_id!r}")
        return state

    def _deadline(self) -> int | None:
        if self._deadline_micros is None:
            return None
        return self._now_micros() + self._deadline_micros
