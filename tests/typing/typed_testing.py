"""What tests of agents are given. Checked by mypy, never run."""

from pathlib import Path
from typing import Any, assert_type

import proctor.testing
from proctor import Agent, Approval, Step
from proctor.testing import Call, Governed, Kernel, Run, SyncKernel


async def awaited(agent: Agent) -> None:
    async with proctor.testing.kernel(agents=[agent], rules=Path("rules")) as t:
        assert_type(t, Kernel)
        run = await t.run("clerk", {"n": 1}, crash_after=2)
        assert_type(run, Run)
        assert_type(await t.grant(run, "pay", by="ann", groups=["finance"]), Run)
        assert_type(await t.advance(run, seconds=60), Run)
        await t.advance(run, 60)  # type: ignore[call-arg]
        await t.run("clerk", crash_after="2")  # type: ignore[arg-type]
    async with proctor.testing.kernel(agents=[agent]) as t:  # type: ignore[call-arg]
        pass


def blocking(agent: Agent, governed: Governed) -> None:
    run = proctor.testing.run(agent, rules="permit (principal, action, resource);")
    assert_type(run, Run)
    with governed.sync_kernel(agent) as t:
        assert_type(t, SyncKernel)
        assert_type(t.run("clerk", {"n": 1}, crash_during="pay"), Run)
        assert_type(t.deny(run, run.waits_for[0]), Run)
        t.run("clerk", crash_after="2")  # type: ignore[arg-type]


def frozen(run: Run) -> None:
    assert_type(run.step("search"), Step)
    assert_type(run.steps(), tuple[Step, ...])
    assert_type(run.calls, tuple[Call, ...])
    assert_type(run.waits_for, tuple[Approval, ...])
    assert_type(run.bodies, dict[str, int])
    assert_type(run.output, Any)
    run.crashed = (1,)  # type: ignore[misc]
