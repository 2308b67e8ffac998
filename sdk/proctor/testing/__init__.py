"""Tests of agents: the real kernel and real rules, in memory, without a server.

    async with proctor.testing.kernel(agents=[agent], rules=Path("rules")) as t:
        run = await t.run("researcher", {"question": "cedar"})

    assert run.output == {"hits": ["about cedar"]}
    assert run.step("shell").rule_ids == ["no-shell"]

Where nothing awaits: `sync_kernel`, and `run` for a single run. For pytest there is a fixture,
`governed` (`proctor.pytest_plugin`).
"""

from proctor.testing.governed import Governed
from proctor.testing.kernels import Kernel, SyncKernel, kernel, run, sync_kernel
from proctor.testing.runs import Call, Run, assert_allowed, assert_denied

__all__ = [
    "Call",
    "Governed",
    "Kernel",
    "Run",
    "SyncKernel",
    "assert_allowed",
    "assert_denied",
    "kernel",
    "run",
    "sync_kernel",
]
