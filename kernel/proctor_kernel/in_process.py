"""The kernel inside an agent's process: SQLite, rules from a folder, no server, no network."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from proctor.wire.calls import Delivery, Lease, StepReply, StepSubmission, WireError
from proctor.wire.messages import Event, Execution, PolicyStatus, Step
from proctor.wire.words import ErrorCode, Reason
from proctor_kernel import admit, queries, world
from proctor_kernel.ask import Ask
from proctor_kernel.core.commands import CancelExecution, Command, CreateExecution, Reply
from proctor_kernel.dispatch import Dispatcher
from proctor_kernel.kernel import Kernel
from proctor_kernel.queries import Queries
from proctor_kernel.store import statements
from proctor_kernel.store.buckets import Buckets
from proctor_kernel.store.dialect import (
    IN_MEMORY,
    Change,
    SQLite,
    StoreError,
    StoreUnavailable,
    Synchronous,
    check_place,
)
from proctor_kernel.store.log import Log, LostRace
from proctor_policy.cases import failures
from proctor_policy.load import load, rebuild
from proctor_policy.problem import Problem, RulesInvalid
from proctor_policy.ruleset import RuleSet, deny_all
from proctor_policy.watch import Watcher

InvalidRules = Literal["deny", "last_good", "refuse"]
"""What decides when the rules do not load at the start."""

_logger = logging.getLogger(__name__)


class InProcessKernel:
    """The kernel as agents and clients of this process see it: both of the SDK's ports."""

    def __init__(
        self,
        *,
        database: SQLite,
        rules: Watcher,
        deliver: Mapping[str, Callable[["InProcessKernel", Delivery], Awaitable[None]]],
    ) -> None:
        self._agents = frozenset(deliver)
        self._queries = Queries(database)
        self._rules = rules
        buckets = Buckets(database)
        self._waiting: dict[str, asyncio.Event] = {}
        self._kernel = Kernel(
            log=Log(database),
            ask=Ask(
                rules=lambda: rules.rules,
                take=lambda tokens, holder, now: buckets.take(tokens, holder=holder, now=now),
                now_micros=world.now_micros,
            ),
            ended=self._wake,
        )
        self._dispatcher = Dispatcher(
            self._kernel, {agent_id: self._bound(run) for agent_id, run in deliver.items()}
        )

    def resume(self) -> None:
        """Take up the runs that were under way when the last process ended."""
        for execution_id, agent_id in self._queries.running():
            if agent_id in self._agents:
                self._dispatcher.start(execution_id, agent_id)
            else:
                _logger.warning(
                    "execution %s waits: its agent %r is not embedded here", execution_id, agent_id
                )

    async def close(self) -> None:
        """Interrupt the handlers; their runs go on at the next start."""
        await self._dispatcher.close()

    async def submit_step(
        self, execution_id: str, lease: Lease, submission: StepSubmission
    ) -> StepReply:
        """Ask whether a body may run."""
        command = admit.submission(lease, submission)
        return admit.step_reply(await self._apply(execution_id, command))

    async def complete_step(
        self, execution_id: str, lease: Lease, step_id: str, *, result_json: str
    ) -> StepReply:
        """Record that a body returned."""
        command = admit.completion(lease, step_id, result_json)
        return admit.step_reply(await self._apply(execution_id, command))

    async def fail_step(
        self, execution_id: str, lease: Lease, step_id: str, *, error_json: str
    ) -> StepReply:
        """Record that a body raised."""
        command = admit.failure(lease, step_id, error_json)
        return admit.step_reply(await self._apply(execution_id, command))

    async def complete_execution(
        self, execution_id: str, lease: Lease, *, output_json: str
    ) -> None:
        """Record a handler's return value and end the run."""
        admit.done(await self._apply(execution_id, admit.output(lease, output_json)))

    async def fail_execution(self, execution_id: str, lease: Lease, *, reason: str) -> None:
        """End a run as failed."""
        admit.done(await self._apply(execution_id, admit.giving_up(lease, reason)))

    async def create_execution(self, agent_id: str, *, input_json: str) -> Execution:
        """Start a run of an agent that is embedded here."""
        if agent_id not in self._agents:
            known = ", ".join(sorted(map(repr, self._agents))) or "none"
            raise WireError(
                ErrorCode.NOT_FOUND, f"no agent {agent_id!r} is embedded here; there are: {known}"
            )
        execution_id = world.new_id()
        command = CreateExecution(
            agent_id, admit.document("input", input_json), dispatch_id=world.new_id()
        )
        admit.done(await self._apply(execution_id, command))
        self._dispatcher.start(execution_id, agent_id)
        return await self.get_execution(execution_id)

    async def get_execution(self, execution_id: str) -> Execution:
        """Read one run as it stands."""
        with _errors_on_the_wire():
            return self._queries.execution(execution_id)

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
        with _errors_on_the_wire():
            return self._queries.events(execution_id, after_seq=after_seq, limit=limit)

    async def list_steps(self, execution_id: str) -> Sequence[Step]:
        """Read every step of a run."""
        with _errors_on_the_wire():
            return self._queries.steps(execution_id)

    async def get_step(self, execution_id: str, step_id: str) -> Step:
        """Read one step."""
        with _errors_on_the_wire():
            return self._queries.step(execution_id, step_id)

    async def policy_status(self) -> PolicyStatus:
        """Tell which rule set is in force, and what is wrong with the folder."""
        return queries.policy_status(self._rules.status)

    async def cancel_execution(self, execution_id: str) -> None:
        """End a run and interrupt its handler."""
        command = CancelExecution(Reason.CLIENT_CANCELLED)
        admit.done(await self._apply(execution_id, command))
        await self._dispatcher.stop(execution_id)

    async def _apply(self, execution_id: str, command: Command) -> Reply:
        with _errors_on_the_wire():
            return await self._kernel.apply(execution_id, command)

    def _bound(
        self, run: Callable[["InProcessKernel", Delivery], Awaitable[None]]
    ) -> Callable[[Delivery], Awaitable[None]]:
        return lambda delivery: run(self, delivery)

    def _wake(self, execution_id: str) -> None:
        waiting = self._waiting.pop(execution_id, None)
        if waiting is not None:
            waiting.set()


@asynccontextmanager
async def open_kernel(
    *,
    database: str,
    rules: str,
    synchronous: Synchronous,
    reload_requires_tests: bool,
    invalid_rules: InvalidRules,
    published: Mapping[str, Any],
    deliver: Mapping[str, Callable[[InProcessKernel, Delivery], Awaitable[None]]],
) -> AsyncIterator[InProcessKernel]:
    """Open `database`, load `rules`, take up the runs under way, and close it all at the end.

    `deliver` maps each agent's id to what runs one attempt of it; `published` the tools of the
    agents to the JSON Schemas of their arguments. Rules that do not load are logged with file and
    line, and `invalid_rules` says what decides until they do. `reload_requires_tests`: an edit
    comes into force only when the tests beside the rules pass.

    Raises:
        RulesInvalid: the rules do not load, and `invalid_rules` is "refuse".
        StoreError: the database cannot be used, or another process has it open.
    """
    with _alone(database):
        store = SQLite(database, synchronous)
        try:
            watcher = _watched(
                Path(rules),
                store,
                load=lambda folder: load(folder, published),
                invalid_rules=invalid_rules,
                requires_tests=reload_requires_tests,
            )
            kernel = InProcessKernel(database=store, rules=watcher, deliver=deliver)
            watching = asyncio.create_task(watcher.run(), name="watch rules")
            try:
                kernel.resume()
                yield kernel
            finally:
                await kernel.close()
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        finally:
            store.close()


@contextmanager
def _alone(database: str) -> Iterator[None]:
    """Keep other processes from driving the same runs; the system frees a dead one's lock."""
    if database == IN_MEMORY:
        yield
        return
    check_place(database)
    lock = FileLock(f"{Path(database).resolve()}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StoreError(
            f"{database}: another process has it open; embed it in one process at a time"
        ) from None
    except OSError as error:
        raise StoreError(f"{database}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def _watched(
    folder: Path,
    store: SQLite,
    *,
    load: Callable[[Path], RuleSet],
    invalid_rules: InvalidRules,
    requires_tests: bool,
) -> Watcher:
    problems: tuple[Problem, ...] = ()
    try:
        start = load(folder)
    except RulesInvalid as invalid:
        problems = invalid.problems
        for problem in problems:
            _logger.error("%s", problem)
        if invalid_rules == "refuse":
            raise
        last_good = _last_good(store) if invalid_rules == "last_good" else None
        start = last_good or deny_all(f"the rules did not load: {problems[0]}")
    for warning in start.warnings:
        _logger.warning("%s", warning)
    _keep(store, start)
    return Watcher(
        folder,
        load=load,
        start=start,
        problems=problems,
        now_micros=world.now_micros,
        verify=(lambda rules: failures(folder, rules)) if requires_tests else None,
        changed=lambda rules: _keep(store, rules),
    )


def _keep(store: SQLite, ruleset: RuleSet) -> None:
    """Store the rule set by its hash, so that what it decides can be explained later."""
    row = {
        "hash": ruleset.hash,
        "files": json.dumps(dict(ruleset.files)),
        "in_force_at": world.now_micros(),
    }
    store.write([Change(statements.RULESETS, [row], replace=True)])


def _last_good(store: SQLite) -> RuleSet | None:
    """Return the rules that were last in force on this database, or None when none were."""
    for row in store.read(statements.RULESETS_BY_TIME):
        files = json.loads(row["files"])
        if files:  # without files it denied everything
            return rebuild(files, f"rule set {row['hash'][:12]}")
    return None


@contextmanager
def _errors_on_the_wire() -> Iterator[None]:
    try:
        yield
    except (StoreUnavailable, LostRace) as error:
        raise WireError(ErrorCode.UNAVAILABLE, str(error)) from error
    except StoreError as error:
        raise WireError(ErrorCode.INTERNAL_ERROR, str(error)) from error
