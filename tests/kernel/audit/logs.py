"""Logs to look for tampering in: several runs with everything that can happen to one."""

from tests.kernel.core.driving import ALLOW, Run, fail, step_of, submit, succeed

from proctor.wire.words import Decision, Reason
from proctor_kernel.core.approvals import Gate
from proctor_kernel.core.commands import (
    CancelExecution,
    DecideApproval,
    FinishExecution,
    Grant,
    Returned,
    Ruling,
)
from proctor_kernel.core.identity import Json
from proctor_kernel.core.state import State
from proctor_kernel.store.database import Database
from proctor_kernel.store.log import Log

GATED = Ruling(
    Decision.REQUIRE_APPROVAL,
    "look first",
    ("gate",),
    "h" * 64,
    gates=(Gate("gate", "look first", (), 2, timeout_micros=1000),),
)
LIMITED = Ruling(Decision.RATE_LIMITED, "too many", ("limit",), "h" * 64)
DENY = Ruling(Decision.DENY, "not here", ("no",), "h" * 64)


def eventful(ending: str, begins_at: int = 0) -> Run:
    """A run with calls of every outcome; `ending`: completed, cancelled or none."""
    run = Run()
    run.now = begins_at
    run.created()
    lease = run.claim()
    run.apply(succeed(lease, step_of(run.apply(submit(lease, args='{"n":1}')))))
    run.apply(fail(lease, step_of(run.apply(submit(lease, "mail")))))
    for ruling, target in ((DENY, "shell"), (LIMITED, "search"), (GATED, "pay")):
        run.ruling = ruling
        run.apply(submit(lease, target))
    (approval_id,) = run.state.approvals
    for person in ("alice", "bob"):
        run.apply(DecideApproval(approval_id, Grant(person, (), "fine")))
    run.ruling = ALLOW
    lease = run.claim()
    under_way = step_of(run.apply(submit(lease, "slow")))
    if ending == "completed":
        run.apply(succeed(lease, under_way))
        run.apply(FinishExecution(lease, Returned(Json('"over"'))))
    if ending == "cancelled":
        run.apply(CancelExecution(Reason.CLIENT_CANCELLED))
    return run


async def record(database: Database, execution_id: str, run: Run) -> None:
    """Write what happened in a run into a database, under an id of its own."""
    log, state, start = Log(database), State(execution_id), 0
    while start < len(run.log):
        at = run.log[start].at
        batch = [each.event for each in run.log[start:] if each.at == at]
        state = await log.append(state, batch, at)
        start += len(batch)


RUNS = {
    "01920000-0000-7000-8000-00000000000a": "completed",
    "01920000-0000-7000-8000-00000000000b": "cancelled",
    "01920000-0000-7000-8000-00000000000c": "none",
}


async def fill(database: Database) -> None:
    """Record one run of each ending."""
    for number, (execution_id, ending) in enumerate(RUNS.items(), 1):
        await record(database, execution_id, eventful(ending, begins_at=number * 1000))
