"""`Kernel.apply`: turns within a kernel, races between kernels, and a bounded memory."""

import asyncio
from pathlib import Path

from tests.kernel.core.driving import answered, step_of, submit, succeed

from proctor.wire.calls import Lease
from proctor.wire.words import Answer, Decision, ErrorCode, Reason
from proctor_kernel import world
from proctor_kernel.audit.verify import verify
from proctor_kernel.core.commands import (
    Answers,
    CancelExecution,
    ClaimDispatch,
    Claimed,
    CreateExecution,
    Done,
    FinishExecution,
    Question,
    Rejected,
    Returned,
    Ruling,
)
from proctor_kernel.core.identity import Json
from proctor_kernel.kernel import Kernel
from proctor_kernel.store.log import Log
from proctor_kernel.store.sqlite import SQLite


class Asked:
    """The policies of these tests: they allow, and count how often they are asked."""

    def __init__(self) -> None:
        self.times = 0

    async def __call__(self, question: Question | None) -> Answers:
        if question is None:
            return Answers(world.now_micros(), world.new_id())
        self.times += 1
        ruling = Ruling(Decision.ALLOW, "", ("all",), "h")
        return Answers(world.now_micros(), world.new_id(), ruling)


def kernel_on(database: SQLite, hot_bytes_max: int = 1 << 20, *, is_alone: bool = True) -> Kernel:
    return Kernel(
        log=Log(database),
        ask=Asked(),
        happened=lambda _state, _events: None,
        is_alone=is_alone,
        hot_bytes_max=hot_bytes_max,
    )


async def begun(kernel: Kernel, execution_id: str) -> Lease:
    await kernel.apply(execution_id, CreateExecution("a", Json("null")))
    claimed = await kernel.apply(execution_id, ClaimDispatch(5))
    assert isinstance(claimed, Claimed)
    return claimed.lease


async def test_many_commands_at_once_on_one_run_are_all_recorded(database: SQLite) -> None:
    kernel = kernel_on(database)
    lease = await begun(kernel, "run")

    replies = await asyncio.gather(*(kernel.apply("run", submit(lease)) for _ in range(40)))

    assert {answered(reply).decision for reply in replies} == {Answer.PROCEED}
    assert len({step_of(reply) for reply in replies}) == 40
    assert sorted(step.occurrence for step in (await kernel.load("run")).steps.values()) == list(
        range(40)
    )


async def test_two_kernels_on_one_run_lose_nothing_to_each_other(path: Path) -> None:
    databases = [SQLite(str(path), "NORMAL") for _ in range(2)]
    ours, theirs = (kernel_on(database, is_alone=False) for database in databases)
    lease = await begun(ours, "run")
    steps = [step_of(await ours.apply("run", submit(lease))) for _ in range(20)]

    replies = await asyncio.gather(
        *(
            (ours, theirs)[number % 2].apply("run", succeed(lease, step_id, str(number)))
            for number, step_id in enumerate(steps)
        ),
        *(ours.apply("run", submit(lease, "more")) for _ in range(5)),
    )
    ours_state, theirs_state = await ours.load("run"), await theirs.load("run")
    report = await verify(str(path))
    for database in databases:
        database.close()

    assert {answered(reply).decision for reply in replies} == {Answer.RECORDED, Answer.PROCEED}
    assert report.findings == ()
    assert [ours_state.steps[step_id].result for step_id in steps] == [
        str(number) for number in range(20)
    ]
    assert theirs_state.seq <= ours_state.seq


async def test_of_two_kernels_that_end_a_run_one_is_first(path: Path) -> None:
    databases = [SQLite(str(path), "NORMAL") for _ in range(2)]
    ours, theirs = (kernel_on(database, is_alone=False) for database in databases)
    lease = await begun(ours, "run")
    await theirs.load("run")

    replies = await asyncio.gather(
        ours.apply("run", FinishExecution(lease, Returned(Json("1")))),
        theirs.apply("run", CancelExecution(Reason.CLIENT_CANCELLED)),
    )
    for database in databases:
        database.close()

    assert [type(reply) for reply in replies].count(Done) == 1
    (lost,) = (reply for reply in replies if isinstance(reply, Rejected))
    assert lost.code in (ErrorCode.CONFLICT, ErrorCode.EXECUTION_TERMINAL)


async def test_an_attempt_begun_elsewhere_takes_the_run_over(path: Path) -> None:
    databases = [SQLite(str(path), "NORMAL") for _ in range(2)]
    ours, theirs = (kernel_on(database, is_alone=False) for database in databases)
    old = await begun(ours, "run")
    await ours.apply("run", submit(old))
    claimed = await theirs.apply("run", ClaimDispatch(5))
    assert isinstance(claimed, Claimed)

    late = await ours.apply("run", submit(old, "late"))
    replayed = answered(await theirs.apply("run", submit(claimed.lease)))
    for database in databases:
        database.close()

    assert isinstance(late, Rejected)
    assert late.code is ErrorCode.LEASE_SUPERSEDED
    assert replayed.decision is Answer.PROCEED


async def test_letting_go_of_a_run_changes_no_answer(database: SQLite) -> None:
    forgetful, remembering = kernel_on(database, hot_bytes_max=0), kernel_on(database)
    answers = []
    for kernel, name in ((forgetful, "forgetful"), (remembering, "remembering")):
        lease = await begun(kernel, name)
        seen = []
        for number in range(6):
            reply = answered(await kernel.apply(name, submit(lease, args=f"[{number % 2}]")))
            await kernel.apply(name, succeed(lease, str(reply.step_id)))
            seen.append(reply.decision)
        state = await kernel.load(name)
        answers.append((seen, sorted(step.occurrence for step in state.steps.values())))

    assert answers[0] == answers[1]


async def test_a_replay_asks_the_policies_nothing(database: SQLite) -> None:
    asked = Asked()
    kernel = Kernel(
        log=Log(database), ask=asked, happened=lambda _state, _events: None, is_alone=True
    )
    lease = await begun(kernel, "run")
    for number in range(5):
        reply = await kernel.apply("run", submit(lease, args=f"[{number}]"))
        await kernel.apply("run", succeed(lease, step_of(reply)))
    claimed = await kernel.apply("run", ClaimDispatch(5))
    assert isinstance(claimed, Claimed)
    for number in range(5):
        await kernel.apply("run", submit(claimed.lease, args=f"[{number}]"))

    assert asked.times == 5


async def test_whoever_stops_waiting_does_not_leave_a_state_that_the_log_does_not_have(
    database: SQLite, path: Path
) -> None:
    kernel = kernel_on(database)
    lease = await begun(kernel, "run")
    command = submit(lease, request_id="r1")
    given_up = asyncio.ensure_future(kernel.apply("run", command))
    await asyncio.sleep(0)  # one turn of the loop: the append is asked for, not yet written
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)

    again = answered(await kernel.apply("run", command))
    next_call = answered(await kernel.apply("run", submit(lease, request_id="r2")))

    assert again.decision is Answer.PROCEED
    assert next_call.step_id != again.step_id
    assert (await verify(str(path))).findings == ()
