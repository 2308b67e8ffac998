"""The kernel of a test: in memory, on a clock that the test moves."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from proctor.agent import Agent
from proctor.background import BackgroundLoop, Blocking, blocking
from proctor.client import Client
from proctor.embedding import kernel_module, opened
from proctor.testing.attempts import Crash, Trace
from proctor.testing.runs import Run
from proctor.transport import AgentPort
from proctor.wire.calls import Delivery
from proctor.wire.messages import Approval
from proctor.wire.words import EVENTS_PAGE_MAX, ExecutionStatus

TIMEOUT_SECONDS: Final = 10.0
"""Real time that a run may take until it ends or waits for people."""

_MICROS_PER_SECOND: Final = 1_000_000
_POLICY: Final = re.compile(r"\b(?:permit|forbid)\b")


Observe = Callable[[Run], None]
"""Is told of a run each time that it rests."""


class Kernel:
    """Runs agents for a test. `client` is the usual client, for all that is not here."""

    def __init__(
        self, timeout: float, now_micros: Callable[[], int], observe: Observe | None
    ) -> None:
        self._timeout = timeout
        self._observe = observe
        self._real_micros = now_micros
        self._ahead_micros = 0
        self._traces: dict[str, Trace] = {}
        self._creating = asyncio.Lock()
        self._rested = asyncio.Event()
        self._port: Any = None
        self.client: Client

    async def run(
        self,
        agent_id: str,
        input: Any = None,
        *,
        session: str | None = None,
        crash_after: int | None = None,
        crash_during: str | None = None,
    ) -> Run:
        """Start a run, and return it once it has ended or waits for people.

        `crash_after`: drop the handler, as `kill -9` would, once so many steps have an outcome
        on record. `crash_during`: drop it when the body of this tool has run, before its outcome
        is on record. Either comes once; then the handler starts again and replays, and
        `run.ran_again` names the bodies that ran a second time.

        Raises:
            AssertionError: the run ended, and the crash never came.
            TimeoutError: it neither ended nor waits for people within the kernel's `timeout`.
        """
        crash = _crash(crash_after, crash_during)
        # The first attempt begins before `create` returns, and has to know about the crash.
        async with self._creating:
            created = await self.client.create(agent_id, input, session=session)
            self._traces[created.id] = Trace(crash)
        return await self._at_rest(created.id)

    async def grant(
        self,
        run: Run,
        target: str | Approval | None = None,
        *,
        by: str = "tester",
        groups: Sequence[str] = (),
        rationale: str = "",
    ) -> Run:
        """Agree to a call that `run` waits for, and return the run when it rests again.

        `target` says which call when there are several: the tool, or one of `run.waits_for`.

        Raises:
            AssertionError: it does not wait for such a call, or for several.
            ForbiddenError: the rule asks other people than `by`.
        """
        approval = _waited_for(run, target)
        await self.client.grant_approval(approval.id, by=by, groups=groups, rationale=rationale)
        return await self._at_rest(run.id)

    async def deny(
        self,
        run: Run,
        target: str | Approval | None = None,
        *,
        by: str = "tester",
        groups: Sequence[str] = (),
        rationale: str = "",
    ) -> Run:
        """Say no to a call that `run` waits for; the rest is as with `grant`."""
        approval = _waited_for(run, target)
        await self.client.deny_approval(approval.id, by=by, groups=groups, rationale=rationale)
        return await self._at_rest(run.id)

    async def advance(self, run: Run, *, seconds: float) -> Run:
        """Move the clock on, and return `run` when it rests again.

        Approvals and deadlines run out, limits have room again, and `context.time` is later.
        """
        if seconds < 0:
            raise ValueError(f"the clock goes forward only, not by {seconds} seconds")
        self._ahead_micros += round(seconds * _MICROS_PER_SECOND)
        await self._port.time_moved()
        return await self._at_rest(run.id)

    def now_micros(self) -> int:
        """Return what time it is for the kernel."""
        return self._real_micros() + self._ahead_micros

    def _deliver(self, agent: Agent) -> Callable[[AgentPort, Delivery], Any]:
        async def deliver(port: AgentPort, delivery: Delivery) -> None:
            async with self._creating:
                trace = self._traces.setdefault(delivery.execution_id, Trace())
            try:
                await trace.deliver(agent, port, delivery)
            finally:
                self._rested.set()
                self._rested = asyncio.Event()

        return deliver

    async def _at_rest(self, execution_id: str) -> Run:
        ended = asyncio.ensure_future(self.client.wait(execution_id))
        try:
            async with asyncio.timeout(self._timeout):
                while True:
                    rested = asyncio.ensure_future(self._rested.wait())
                    run = await self._read(execution_id)
                    if self._rests(run):
                        break
                    await asyncio.wait({ended, rested}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            run = await self._read(execution_id)
            self._tell(run)
            raise TimeoutError(
                f"neither ended nor waiting for people after {self._timeout} seconds; is there "
                f"something that never returns?\n{run}"
            ) from None
        finally:
            ended.cancel()
            rested.cancel()
            await asyncio.gather(ended, rested, return_exceptions=True)
        self._tell(run)
        crash = self._traces[execution_id].crash
        if run.status.is_terminal and crash is not None and not crash.has_come:
            raise AssertionError(f"the run ended, and {crash} never came\n{run}")
        return run

    def _tell(self, run: Run) -> None:
        if self._observe is not None:
            self._observe(run)

    def _rests(self, run: Run) -> bool:
        if run.status.is_terminal:
            return True
        if self._traces[run.id].under_way:
            return False
        if run.status is ExecutionStatus.BLOCKED:
            return bool(run.waits_for)
        return self._is_put_off(run)

    def _is_put_off(self, run: Run) -> bool:
        """Return whether it waits for time to pass: for a limit to have room again."""
        last = run.events[-1]
        due_at = last.payload.get("due_at") if last.type == "dispatch.queued" else None
        return due_at is not None and due_at > self.now_micros()

    async def _read(self, execution_id: str) -> Run:
        execution = await self.client.get(execution_id)
        events = await self.client.events(execution_id, limit=EVENTS_PAGE_MAX)
        while len(events) % EVENTS_PAGE_MAX == 0:
            more = await self.client.events(
                execution_id, events[-1].event_seq, limit=EVENTS_PAGE_MAX
            )
            if not more:
                break
            events += more
        pending = await self.client.list_approvals()
        trace = self._traces[execution_id]
        return Run(
            execution,
            tuple(await self.client.list_steps(execution_id)),
            tuple(events),
            tuple(trace.calls),
            tuple(each for each in pending if each.execution_id == execution_id),
            tuple(trace.crashed),
        )


class SyncKernel(Blocking[Kernel]):
    """What `Kernel` is, for tests that do not await."""

    run = blocking(Kernel.run)
    grant = blocking(Kernel.grant)
    deny = blocking(Kernel.deny)
    advance = blocking(Kernel.advance)


@asynccontextmanager
async def kernel(
    *,
    agents: Sequence[Agent],
    rules: str | Path,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109  # of each run, not of this
    observe: Observe | None = None,
) -> AsyncIterator[Kernel]:
    """Run `agents` under `rules` for the time of a block: Cedar text, or a folder as a `Path`.

    Nothing is written to disk but inline rules, and those only for as long. `timeout`: seconds of
    real time that a run may take until it ends or waits. `observe` is told of each run whenever
    it rests.

    Raises:
        ProctorError: the rules do not load (by file and line), or the kernel is not installed.
        ValueError: `rules` is neither text of policies nor an existing folder; see `embedded` for
            what may be wrong with `agents`.
    """
    made = Kernel(timeout, kernel_module("world").now_micros, observe)
    with _folder(rules) as folder:
        async with opened(
            agents=agents,
            rules=folder,
            database=":memory:",
            synchronous="NORMAL",
            reload_requires_tests=False,
            invalid_rules="refuse",
            deliver=made._deliver,
            now_micros=made.now_micros,
        ) as port:
            made._port = port
            made.client = Client.over(port)
            yield made


@contextmanager
def sync_kernel(
    *,
    agents: Sequence[Agent],
    rules: str | Path,
    timeout: float = TIMEOUT_SECONDS,
    observe: Observe | None = None,
) -> Iterator[SyncKernel]:
    """Do as `kernel` does where nothing awaits; handlers run in a thread of their own."""
    loop = BackgroundLoop()
    try:
        opening = kernel(agents=agents, rules=rules, timeout=timeout, observe=observe)
        made = loop.run(opening.__aenter__)
        try:
            yield SyncKernel(made, loop)
        finally:
            loop.run(lambda: opening.__aexit__(None, None, None))
    finally:
        loop.close()


def run(
    agent: Agent,
    input: Any = None,
    *,
    rules: str | Path,
    crash_after: int | None = None,
    crash_during: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> Run:
    """Run `agent` once under `rules`, and return the run once it has ended or waits for people.

    Its arguments, and what it raises, are those of `kernel` and `Kernel.run`.
    """
    with sync_kernel(agents=[agent], rules=rules, timeout=timeout) as opened_kernel:
        return opened_kernel.run(
            agent.id, input, crash_after=crash_after, crash_during=crash_during
        )


@contextmanager
def _folder(rules: str | Path) -> Iterator[Path]:
    if isinstance(rules, Path):
        if not rules.is_dir():
            raise ValueError(f"there is no rules folder {str(rules.absolute())!r}")
        yield rules
        return
    if not _POLICY.search(rules):
        raise ValueError(f"rules={rules!r} has no policy in it; for a folder pass Path({rules!r})")
    with tempfile.TemporaryDirectory(prefix="proctor-rules-") as made:
        (Path(made) / "rules.cedar").write_text(rules, encoding="utf-8")
        yield Path(made)


def _crash(after: int | None, during: str | None) -> Crash | None:
    if after is None and during is None:
        return None
    if after is not None and during is not None:
        raise ValueError("crash_after or crash_during, not both: a run crashes once")
    if after is not None and after < 1:
        raise ValueError(f"crash_after={after}: at least 1 step is recorded before a crash")
    return Crash(after, during)


def _waited_for(run: Run, target: str | Approval | None) -> Approval:
    __tracebackhide__ = True
    if isinstance(target, Approval):
        return target
    found = [each for each in run.waits_for if target in (None, each.target)]
    if len(found) == 1:
        return found[0]
    what = "a call" if target is None else repr(target)
    many = f"{len(found)} such calls wait; pass one of run.waits_for" if found else "none waits"
    raise AssertionError(f"{what} was to be decided, and {many}\n{run}")
