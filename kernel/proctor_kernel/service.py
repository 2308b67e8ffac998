"""A kernel that runs as a service, put together: opened, its loops started, and closed again.

Any number of these may be at work on one PostgreSQL; on SQLite there is one.
"""

import asyncio
import gc
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from proctor.wire.calls import Lease
from proctor_kernel import counting, exporters, journal, metrics, world
from proctor_kernel.agents import Agents
from proctor_kernel.announce import Announcer
from proctor_kernel.ask import Ask
from proctor_kernel.attempts import Attempts
from proctor_kernel.audit import signing, sinks
from proctor_kernel.audit.checkpointing import Checkpointer
from proctor_kernel.audit.follow import Progress
from proctor_kernel.audit.signing import Signer
from proctor_kernel.bundles import Bundles
from proctor_kernel.census import Census
from proctor_kernel.core import events
from proctor_kernel.core.state import State
from proctor_kernel.exposition import SHARED, Exposition
from proctor_kernel.files import alone
from proctor_kernel.kernel import Kernel
from proctor_kernel.keys import ApiKeys
from proctor_kernel.log_lines import about
from proctor_kernel.oidc import Oidc
from proctor_kernel.provision import Provisioner
from proctor_kernel.pulse import Pulse
from proctor_kernel.queries import Queries
from proctor_kernel.rule_series import RULES
from proctor_kernel.rules import watched
from proctor_kernel.runs import Runs
from proctor_kernel.sealing import Seal
from proctor_kernel.settings import Settings
from proctor_kernel.store.buckets import Buckets
from proctor_kernel.store.database import Database, StoreError
from proctor_kernel.store.log import Log, LostRace
from proctor_kernel.store.postgres import Postgres, open_postgres
from proctor_kernel.store.sqlite import SQLite
from proctor_kernel.store.watch import StoreWatch
from proctor_kernel.sweep import Sweep
from proctor_kernel.wakes import Wakes
from proctor_kernel.webhooks import Webhooks
from proctor_policy.load import load
from proctor_policy.watch import Watcher

_REFRESH_SECONDS = 2.0
_FOLLOW_TRIES = 5

WATCH: Final = StoreWatch(
    unavailable=metrics.DATABASE_ERRORS.labels("unavailable").inc,
    broken=metrics.DATABASE_ERRORS.labels("log_broken").inc,
    flushed=metrics.flushed,
)
"""Counts what the store does."""

_logger = logging.getLogger(__name__)


class Service:
    """What the routes are given."""

    def __init__(
        self,
        *,
        settings: Settings,
        database: Database,
        rules: Watcher,
        seal: Seal | None,
        signer: Signer | None = None,
    ) -> None:
        """`signer`: signs checkpoints of the log; None: nothing is signed."""
        self.settings = settings
        self.signer = signer
        self.database = database
        self.rules = rules
        relay = database.notify if isinstance(database, Postgres) else None
        self.wakes = Wakes(relay)
        self.exposition = Exposition(
            Census(
                database=database,
                rules=lambda: (rules.rules, rules.status),
                now_micros=world.now_micros,
            )
        )
        self.queries = Queries(database)
        self._bundles = Bundles()
        self.keys = ApiKeys(
            database,
            now_micros=world.now_micros,
            changed=lambda: self.wakes.tell("keys"),
        )
        self.agents = Agents(
            database=database,
            seal=seal,
            bundles=self._bundles,
            rules=lambda: rules.rules,
            now_micros=world.now_micros,
            webhook_hosts=settings.webhook_hosts,
            allow_private=settings.allow_private_webhooks or settings.is_dev,
            changed=lambda: self.wakes.tell("agents"),
        )
        buckets = Buckets(database)
        self.kernel = Kernel(
            log=Log(database, WATCH),
            ask=Ask(
                rules=lambda: rules.rules,
                take=lambda tokens, holder, now: buckets.take(tokens, holder=holder, now=now),
                now_micros=world.now_micros,
                bundles=self._bundles,
                approval_seconds=settings.approval_seconds,
            ),
            happened=self._happened,
            is_alone=False,
        )
        self.attempts = Attempts(kernel=self.kernel, database=database, now_micros=world.now_micros)
        self.runs = Runs(
            kernel=self.kernel,
            database=database,
            queries=self.queries,
            has_agent=self.agents.exists,
            now_micros=world.now_micros,
            deadline_micros=_micros(settings.deadline_seconds),
        )
        self._sweep = Sweep(
            database=database,
            kernel=self.kernel,
            runs=self.runs,
            now_micros=world.now_micros,
            retention_micros=_micros(settings.retention_seconds),
            signer=signer,
        )
        self._checkpointer = None
        if signer is not None:
            self._checkpointer = Checkpointer(
                database=database,
                signer=signer,
                now_micros=world.now_micros,
                seconds=settings.checkpoint_seconds,
            )
        private = settings.allow_private_webhooks or settings.is_dev
        self._webhooks = Webhooks(
            kernel=self.kernel,
            agents=self.agents,
            database=database,
            settings=settings.model_copy(update={"allow_private_webhooks": private}),
            now_micros=world.now_micros,
        )
        oidc = settings.oidc
        self.oidc = None if oidc is None else Oidc(oidc, world.now_micros)
        self._following: set[asyncio.Task[None]] = set()
        self._stale = asyncio.Event()
        self.stopping = asyncio.Event()
        """Set when the process is asked to stop: whoever waits for something stops waiting."""

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Run every loop for the time of a block."""
        loops: list[Coroutine[Any, Any, None]] = [
            self.rules.run(),
            self._sweep.run(),
            self._webhooks.run(),
            self._refresh(),
            Pulse(lambda: self.rules.status).run(),
        ]
        if self._checkpointer is not None:
            loops.append(self._checkpointer.run())
        if isinstance(self.database, Postgres):
            loops.append(self.wakes.run())
            self.database.listen(self.wakes.heard, self._stale.set)
        self.wakes.listen("agents", lambda _: self._stale.set())
        self.wakes.listen("keys", lambda _: self.keys.forget())
        announcer = self._announcer()
        if announcer is not None:
            self.wakes.listen("approval", announcer.wake)
            loops.append(announcer.run())
        chosen = sinks.chosen(self.settings.export, os.environ)
        metrics.sinks(spec.name for spec in chosen)
        leaving = exporters.Exporters(
            chosen,
            database=self.database,
            rules=lambda: self.rules.rules,
            key=_mask_key(self.settings),
            from_now=self.settings.export_from == "now",
            told=_count_export,
        )
        if self.settings.config is not None:
            provisioner = Provisioner(Path(self.settings.config), self.agents)
            await provisioner.apply()
            loops.append(provisioner.run())
        await self.agents.refresh()
        tasks = [asyncio.create_task(loop) for loop in loops]
        leaving.start()
        # What was made by now stays: looking through it for garbage would be for nothing.
        gc.freeze()
        try:
            yield
        finally:
            for task in (*tasks, *self._following):
                task.cancel()
            await asyncio.gather(*tasks, *self._following, return_exceptions=True)
            await self._webhooks.close()
            if self.oidc is not None:
                await self.oidc.aclose()
            await leaving.aclose()
            if self._checkpointer is not None:
                await self._checkpointer.sign_off()

    def _happened(self, state: State, happened: Sequence[events.Event]) -> None:
        counting.count(state, happened)
        journal.write(state, happened)
        execution_id = state.execution_id
        for event in happened:
            match event:
                case events.DispatchQueued() | events.DispatchFailed() if (
                    state.dispatch is not None and state.dispatch.due_at is not None
                ):
                    self._queued(state, state.dispatch.due_at)
                case events.ApprovalRequested(expires_at=expires_at):
                    self._sweep.at(expires_at)
                    self.wakes.tell("approval", event.approval_id)
                case events.ApprovalGranted() | events.ApprovalDenied() | events.ApprovalExpired():
                    self.wakes.tell("approval", event.approval_id)
                case _:
                    pass
        self.wakes.tell("run", execution_id)
        if state.is_terminal and (
            state.session is not None
            or state.spawned_by is not None
            or any(step.child is not None for step in state.steps.values())
        ):
            follow = asyncio.create_task(self._follow_up(state))
            self._following.add(follow)
            follow.add_done_callback(self._following.discard)

    def _queued(self, state: State, due_at: int) -> None:
        assert state.dispatch is not None
        agent = self.agents.get(state.agent_id)
        if agent is None or agent.webhook_url is not None:
            expected = Lease(state.dispatch.dispatch_id, state.dispatch.attempt)
            self._webhooks.due(state.execution_id, state.agent_id, expected, due_at)
        else:
            self.wakes.tell("queued", state.agent_id)

    async def _follow_up(self, state: State) -> None:
        for _ in range(_FOLLOW_TRIES):
            try:
                await self.runs.follow_up(state)
                return
            except (StoreError, LostRace) as error:
                _logger.warning(
                    "what follows from the end of a run: %s",
                    error,
                    extra=about(state.execution_id, agent_id=state.agent_id),
                )
                await asyncio.sleep(1)
        # The sweep does it once the database is back.

    async def _refresh(self) -> None:
        """Bring what memory has of agents and bundles up to date."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stale.wait(), _REFRESH_SECONDS)
            self._stale.clear()
            try:
                await self.agents.refresh()
            except StoreError as error:
                _logger.warning("agents are not up to date: %s", error)

    def _announcer(self) -> Announcer | None:
        settings = self.settings
        if settings.approvals_webhook is None:
            return None
        secret = settings.approvals_webhook_secret
        assert secret is not None, "the command line asks for both"
        return Announcer(
            database=self.database,
            url=settings.approvals_webhook,
            secret=secret.get_secret_value(),
            now_micros=world.now_micros,
        )


@asynccontextmanager
async def open_service(settings: Settings) -> AsyncIterator[Service]:
    """Open the database, load the rules, and run a service for the time of a block.

    Raises:
        StoreError: the database cannot be used. KeyUnusable: the signing key cannot.
        RulesInvalid: the rules do not load, and
            `invalid_rules` is "refuse". ManifestInvalid: the manifest of agents is not one.
    """
    if SHARED in os.environ:
        metrics.forget_the_dead(os.environ[SHARED])
    async with AsyncExitStack() as stack:
        signer = None if settings.signing_key is None else signing.load(Path(settings.signing_key))
        database = await _opened(settings, stack)
        rules = await watched(
            Path(settings.rules),
            database,
            load=load,
            invalid_rules=settings.invalid_rules,
            requires_tests=settings.reload_requires_tests,
            in_force=lambda each: RULES.in_force(policy.id for policy in each.policies),
        )
        service = Service(
            settings=settings,
            database=database,
            rules=rules,
            seal=_seal(settings),
            signer=signer,
        )
        await stack.enter_async_context(service.at_work())
        yield service


async def _opened(settings: Settings, stack: AsyncExitStack) -> Database:
    database: Database
    if settings.is_postgres:
        database = await open_postgres(
            settings.database,
            connections_max=settings.database_connections_max,
            watch=WATCH,
        )
    else:
        stack.enter_context(alone(settings.database))
        database = SQLite(settings.database, settings.synchronous, WATCH)
    stack.push_async_callback(database.aclose)
    return database


def _seal(settings: Settings) -> Seal | None:
    if settings.secret_key is None:
        return None
    return Seal(settings.secret_key.get_secret_value())


def _mask_key(settings: Settings) -> bytes:
    secret = settings.mask_key or settings.secret_key
    # Without either, hashes are equal within this process only.
    return exporters.mask_key(world.new_id() if secret is None else secret.get_secret_value())


def _count_export(sink: str, progress: Progress) -> None:
    metrics.EXPORTED.labels(sink).inc(progress.shipped)
    metrics.EXPORT_REFUSED.labels(sink).inc(progress.refused)
    metrics.EXPORT_FAILURES.labels(sink).inc(progress.failures)
    if progress.is_held:
        metrics.EXPORT_FAILING.labels(sink).set(bool(progress.error))
        metrics.EXPORT_LAG.labels(sink).set(progress.lag_seconds)


def _micros(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1_000_000
