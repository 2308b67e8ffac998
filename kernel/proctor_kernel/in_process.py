"""The kernel inside an agent's process: SQLite, rules from a folder, no server, no network."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from proctor.wire.calls import Delivery, WireError
from proctor.wire.messages import (
    Approval,
    Event,
    Execution,
    ExecutionPage,
    ForkPoints,
    PolicyStatus,
    Step,
)
from proctor.wire.words import (
    EVENTS_PAGE_MAX,
    ApprovalStatus,
    ErrorCode,
    ExecutionStatus,
    Reason,
)
from proctor_kernel import bundles, world
from proctor_kernel.ask import Ask
from proctor_kernel.attempts import Attempts
from proctor_kernel.audit import signing
from proctor_kernel.audit.checkpointing import CHECKPOINT_SECONDS, Checkpointer
from proctor_kernel.audit.signing import Signer
from proctor_kernel.core import events
from proctor_kernel.core.commands import Deny, Grant
from proctor_kernel.core.state import State
from proctor_kernel.drive import Driver
from proctor_kernel.files import alone
from proctor_kernel.kernel import Kernel
from proctor_kernel.log_lines import about
from proctor_kernel.queries import Queries
from proctor_kernel.rules import InvalidRules, policy_status, watched
from proctor_kernel.runs import Runs
from proctor_kernel.store.buckets import Buckets
from proctor_kernel.store.database import StoreError
from proctor_kernel.store.log import Log
from proctor_kernel.store.sqlite import SQLite, Synchronous
from proctor_kernel.sweep import Sweep
from proctor_kernel.views import fork_points, to_python
from proctor_kernel.wakes import Wakes
from proctor_kernel.wire_errors import errors_on_the_wire
from proctor_policy.load import load
from proctor_policy.problem import RulesInvalid
from proctor_policy.watch import Watcher

_logger = logging.getLogger(__name__)

__all__ = ["InProcessKernel", "RulesInvalid", "StoreError", "open_kernel"]

Run = Callable[[Attempts, Delivery], Awaitable[None]]
"""Runs one attempt of an agent, which asks the kernel through its first argument."""


class InProcessKernel:
    """The kernel as clients of this process see it: the SDK's `ClientPort`."""

    def __init__(
        self,
        *,
        database: SQLite,
        rules: Watcher,
        deliver: Mapping[str, Run],
        signer: Signer | None,
        now_micros: Callable[[], int],
    ) -> None:
        self._agents = frozenset(deliver)
        self._queries = Queries(database)
        self._rules = rules
        self._buckets = Buckets(database)
        self._wakes = Wakes()
        self._waiting: dict[str, asyncio.Event] = {}
        self._following: set[asyncio.Task[None]] = set()
        self._kernel = Kernel(
            log=Log(database),
            ask=Ask(
                rules=lambda: rules.rules,
                take=lambda tokens, holder, now: self._buckets.take(tokens, holder=holder, now=now),
                now_micros=now_micros,
            ),
            happened=self._happened,
            is_alone=True,
        )
        self._runs = Runs(
            kernel=self._kernel,
            database=database,
            queries=self._queries,
            has_agent=self._has_agent,
            now_micros=now_micros,
        )
        self._sweep = Sweep(
            database=database, kernel=self._kernel, runs=self._runs, now_micros=now_micros
        )
        attempts = Attempts(kernel=self._kernel, database=database, now_micros=now_micros)
        self._driver = Driver(
            self._kernel,
            {agent_id: partial(run, attempts) for agent_id, run in deliver.items()},
            now_micros,
        )
        self._checkpointer = None
        if signer is not None:
            self._checkpointer = Checkpointer(
                database=database,
                signer=signer,
                now_micros=world.now_micros,
                seconds=CHECKPOINT_SECONDS,
            )
        self._loops: list[asyncio.Task[None]] = []

    async def resume(self) -> None:
        """Take up the runs that were under way when the last process ended."""
        for execution_id, agent_id in await self._queries.running():
            if agent_id in self._agents:
                self._driver.start(execution_id, agent_id)
            else:
                _logger.warning(
                    "execution %s waits: its agent %r is not embedded here",
                    execution_id,
                    agent_id,
                    extra=about(execution_id, agent_id=agent_id),
                )
        self._loops.append(asyncio.create_task(self._sweep.run(), name="sweep"))
        if self._checkpointer is not None:
            self._loops.append(asyncio.create_task(self._checkpointer.run(), name="checkpoints"))

    async def close(self) -> None:
        """Interrupt the handlers; their runs go on at the next start."""
        stopping = [*self._following, *self._loops]
        for task in stopping:
            task.cancel()
        await asyncio.gather(*stopping, return_exceptions=True)
        await self._driver.close()
        if self._checkpointer is not None:
            await self._checkpointer.sign_off()

    async def time_moved(self) -> None:
        """Do at once what is due after `now_micros` has jumped."""
        await self._sweep.once()
        self._driver.look()

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
        """Start a run of an agent that is embedded here."""
        self._check_embedded(agent_id)
        execution_id = await self._runs.create(
            agent_id,
            input_json=input_json,
            session=session,
            parent_execution_id=parent_execution_id,
            idempotency_key=idempotency_key,
            on_behalf_of=on_behalf_of,
        )
        return await self.get_execution(execution_id)

    async def get_execution(self, execution_id: str) -> Execution:
        """Read one run as it stands."""
        with errors_on_the_wire():
            view = await self._queries.execution(execution_id)
        return Execution.model_validate(to_python(view))

    async def list_executions(
        self, *, agent_id: str, session: str, status: str, cursor: str, limit: int
    ) -> ExecutionPage:
        """Read a page of runs."""
        _check_status(status, ExecutionStatus)
        with errors_on_the_wire():
            page = await self._queries.executions(
                agent_id=agent_id, session=session, status=status, cursor=cursor, limit=limit
            )
        return ExecutionPage.model_validate(to_python(page))

    async def wait_execution(self, execution_id: str) -> Execution:
        """Return a run once it has ended."""
        execution = await self.get_execution(execution_id)
        if not execution.status.is_terminal:
            await self._waiting.setdefault(execution_id, asyncio.Event()).wait()
            execution = await self.get_execution(execution_id)
        return execution

    async def list_events(
        self, execution_id: str, *, after_seq: int, limit: int
    ) -> Sequence[Event]:
        """Read a page of a run's log."""
        with errors_on_the_wire():
            found = await self._queries.events(execution_id, after_seq=after_seq, limit=limit)
        return [Event.model_validate(to_python(view)) for view in found]

    async def watch_execution(
        self, execution_id: str, *, after_seq: int
    ) -> AsyncGenerator[Event, None]:
        """Follow a run's log to its end."""
        changed = asyncio.Event()
        stop = self._wakes.listen(
            "run", lambda told: changed.set() if told == execution_id else None
        )
        try:
            while True:
                changed.clear()
                # Read before the events, so that its end has been shown when it has ended.
                execution = await self.get_execution(execution_id)
                page = await self.list_events(
                    execution_id, after_seq=after_seq, limit=EVENTS_PAGE_MAX
                )
                for event in page:
                    after_seq = event.event_seq
                    yield event
                if len(page) == EVENTS_PAGE_MAX:
                    continue
                if execution.status.is_terminal:
                    return
                await changed.wait()
        finally:
            stop()

    async def list_steps(self, execution_id: str) -> Sequence[Step]:
        """Read every step of a run."""
        with errors_on_the_wire():
            found = await self._queries.steps(execution_id)
        return [Step.model_validate(to_python(view)) for view in found]

    async def get_step(self, execution_id: str, step_id: str) -> Step:
        """Read one step."""
        with errors_on_the_wire():
            view = await self._queries.step(execution_id, step_id)
        return Step.model_validate(to_python(view))

    async def previous_state(self, execution_id: str) -> Any:
        """Read what the run before this one left for it."""
        with errors_on_the_wire():
            return to_python(await self._queries.previous(execution_id))["state"]

    async def fork_execution(
        self, execution_id: str, *, at_seq: int, session: str | None, policy_bundle: str | None
    ) -> Execution:
        """Start a run as a copy of another up to an event."""
        self._check_embedded((await self.get_execution(execution_id)).agent_id)
        if policy_bundle:
            bundles.check(policy_bundle, self._rules.rules)
        fork_id = await self._runs.fork(
            execution_id,
            at_seq=at_seq,
            session=session,
            bundle=policy_bundle or None,
            created_by=None,
        )
        with errors_on_the_wire():
            view = await self._queries.execution(fork_id, with_restoration=True)
        return Execution.model_validate(to_python(view))

    async def fork_points(self, execution_id: str) -> ForkPoints:
        """Read where a run can be forked."""
        with errors_on_the_wire():
            state = await self._kernel.load(execution_id)
        if state.status is None:
            raise WireError(ErrorCode.NOT_FOUND, f"no execution {execution_id!r}")
        return ForkPoints.model_validate(fork_points(state))

    async def policy_status(self) -> PolicyStatus:
        """Tell which rule set is in force, and what is wrong with the folder."""
        return policy_status(self._rules.status)

    async def list_approvals(self, *, status: str, after: str = "") -> Sequence[Approval]:
        """Read a page of the approvals of a status."""
        _check_status(status, ApprovalStatus)
        with errors_on_the_wire():
            found = await self._queries.approvals(status=status, after=after)
        return [Approval.model_validate(to_python(view)) for view in found]

    async def watch_approvals(self) -> AsyncGenerator[Approval, None]:
        """Give what is pending, then what changes."""
        told: asyncio.Queue[str] = asyncio.Queue()
        stop = self._wakes.listen("approval", told.put_nowait)
        try:
            page = await self.list_approvals(status=ApprovalStatus.PENDING)
            while page:
                for approval in page:
                    yield approval
                page = await self.list_approvals(status=ApprovalStatus.PENDING, after=page[-1].id)
            while True:
                yield await self.get_approval(await told.get())
        finally:
            stop()

    async def get_approval(self, approval_id: str) -> Approval:
        """Read one approval."""
        with errors_on_the_wire():
            view = await self._queries.approval(approval_id)
        return Approval.model_validate(to_python(view))

    async def grant_approval(
        self, approval_id: str, *, by: str, groups: Sequence[str], rationale: str
    ) -> None:
        """Agree to a call that waits."""
        _check_named(by)
        await self._runs.decide_approval(approval_id, Grant(by, tuple(groups), rationale))

    async def deny_approval(
        self, approval_id: str, *, by: str, groups: Sequence[str], rationale: str
    ) -> None:
        """Say no to a call that waits."""
        _check_named(by)
        await self._runs.decide_approval(approval_id, Deny(by, tuple(groups), rationale))

    async def cancel_execution(self, execution_id: str) -> None:
        """End a run and interrupt its handler."""
        await self._runs.cancel(execution_id, Reason.CLIENT_CANCELLED)
        await self._driver.stop(execution_id)

    def _check_embedded(self, agent_id: str) -> None:
        if agent_id not in self._agents:
            known = ", ".join(sorted(map(repr, self._agents))) or "none"
            raise WireError(
                ErrorCode.NOT_FOUND, f"no agent {agent_id!r} is embedded here; there are: {known}"
            )

    async def _has_agent(self, agent_id: str) -> bool:
        return agent_id in self._agents

    def _happened(self, state: State, happened: Sequence[events.Event]) -> None:
        for event in happened:
            match event:
                case events.DispatchQueued() if state.agent_id in self._agents:
                    self._driver.start(state.execution_id, state.agent_id)
                case events.ApprovalRequested(approval_id=approval_id, expires_at=expires_at):
                    self._sweep.at(expires_at)
                    self._wakes.tell("approval", approval_id)
                case (
                    events.ApprovalGranted(approval_id=approval_id)
                    | events.ApprovalDenied(approval_id=approval_id)
                    | events.ApprovalExpired(approval_id=approval_id)
                ):
                    self._wakes.tell("approval", approval_id)
                case _:
                    pass
        self._wakes.tell("run", state.execution_id)
        if state.is_terminal:
            waiting = self._waiting.pop(state.execution_id, None)
            if waiting is not None:
                waiting.set()
            if state.session is not None or state.spawned_by is not None:
                follow = asyncio.create_task(self._runs.follow_up(state))
                self._following.add(follow)
                follow.add_done_callback(self._following.discard)


def _check_status(status: str, known: type[StrEnum]) -> None:
    if status and status not in set(known):
        raise WireError(
            ErrorCode.VALIDATION_ERROR, f"status: {status!r} is none of: {', '.join(known)}"
        )


def _check_named(by: str) -> None:
    if not by:
        raise WireError(ErrorCode.VALIDATION_ERROR, 'who decides? say it: by="alice"')


@asynccontextmanager
async def open_kernel(
    *,
    database: str,
    rules: str,
    synchronous: Synchronous,
    reload_requires_tests: bool,
    invalid_rules: InvalidRules,
    published: Mapping[str, Any],
    deliver: Mapping[str, Run],
    now_micros: Callable[[], int] = world.now_micros,
) -> AsyncIterator[InProcessKernel]:
    """Open `database`, load `rules`, take up the runs under way, and close it all at the end.

    `deliver` maps each agent's id to what runs one attempt of it; `published` the tools of the
    agents to the JSON Schemas of their arguments. Rules that do not load are logged with file and
    line, and `invalid_rules` says what decides until they do. `reload_requires_tests`: an edit
    comes into force only when the tests beside the rules pass. `now_micros` tells the time.

    Raises:
        RulesInvalid: the rules do not load, and `invalid_rules` is "refuse".
        StoreError: the database cannot be used, or another process has it open.
        KeyUnusable: the key beside the database, which signs its checkpoints, cannot be used.
    """
    with alone(database):
        store = SQLite(database, synchronous)
        try:
            watcher = await watched(
                Path(rules),
                store,
                load=lambda folder: load(folder, published),
                invalid_rules=invalid_rules,
                requires_tests=reload_requires_tests,
            )
            key = signing.own(database)
            kernel = InProcessKernel(
                database=store,
                rules=watcher,
                deliver=deliver,
                now_micros=now_micros,
                signer=None if key is None else signing.load(key),
            )
            watching = asyncio.create_task(watcher.run(), name="watch rules")
            try:
                await kernel.resume()
                yield kernel
            finally:
                await kernel.close()
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        finally:
            store.close()
