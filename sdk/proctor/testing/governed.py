"""Agents under the rules of a project: what pytest's fixture `governed` gives."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any

from proctor.agent import Agent
from proctor.testing.kernels import (
    TIMEOUT_SECONDS,
    Kernel,
    SyncKernel,
    kernel,
    sync_kernel,
)
from proctor.testing.runs import Run


class Governed:
    """Runs agents under the rules of a project, or under others where a test says so.

    `rules` of every method is Cedar text or a folder as a `Path`; None means the project's.
    """

    def __init__(self, rules: Path, *, observe: Callable[[Run], None] | None = None) -> None:
        self.rules = rules
        self._observe = observe

    def run(
        self,
        agent: Agent,
        input: Any = None,
        *,
        rules: str | Path | None = None,
        crash_after: int | None = None,
        crash_during: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Run:
        """Run `agent` once, as `proctor.testing.run` does."""
        with self.sync_kernel(agent, rules=rules, timeout=timeout) as t:
            return t.run(agent.id, input, crash_after=crash_after, crash_during=crash_during)

    def sync_kernel(
        self,
        *agents: Agent,
        rules: str | Path | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> AbstractContextManager[SyncKernel]:
        """Run `agents` for the time of a block, as `proctor.testing.sync_kernel` does."""
        return sync_kernel(
            agents=agents, rules=self._chosen(rules), timeout=timeout, observe=self._observe
        )

    def kernel(
        self,
        *agents: Agent,
        rules: str | Path | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> AbstractAsyncContextManager[Kernel]:
        """Run `agents` for the time of a block, as `proctor.testing.kernel` does."""
        return kernel(
            agents=agents, rules=self._chosen(rules), timeout=timeout, observe=self._observe
        )

    def _chosen(self, rules: str | Path | None) -> str | Path:
        if rules is not None:
            return rules
        if not self.rules.is_dir():
            raise ValueError(
                f"there is no rules folder {str(self.rules)!r}; name it in pytest's configuration "
                "(proctor_rules), or pass rules="
            )
        return self.rules
