"""What clients and agents read: the read tables, as views. Everything acknowledged is in them."""

from typing import Final

from proctor.wire.calls import WireError
from proctor.wire.words import APPROVALS_PAGE_MAX, ApprovalStatus, ErrorCode, StepStatus
from proctor_kernel import views
from proctor_kernel.core import checkpoints
from proctor_kernel.store import statements
from proctor_kernel.store.database import Database, Row
from proctor_kernel.views import View

_LAST_ID: Final = "~"
_TERMINAL_STEPS: Final = frozenset(str(each) for each in StepStatus if each.is_terminal)


class Queries:
    """Reads of runs, steps, events, approvals, agents and keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def execution(self, execution_id: str, *, with_restoration: bool = False) -> View:
        """Return one run; raises `not_found` when there is none."""
        return views.execution(
            await self.execution_row(execution_id), with_restoration=with_restoration
        )

    async def execution_row(self, execution_id: str) -> Row:
        """Return the row of one run; raises `not_found` when there is none."""
        found = await self._database.read(statements.EXECUTION_BY_ID, execution_id=execution_id)
        if not found:
            raise WireError(ErrorCode.NOT_FOUND, f"no execution {execution_id!r}")
        return found[0]

    async def executions(
        self, *, agent_id: str, session: str, status: str, cursor: str, limit: int
    ) -> View:
        """Return a page of runs, the newest first; what is empty does not narrow."""
        found = await self._database.read(
            statements.EXECUTIONS_PAGE,
            agent_id=agent_id,
            session=session,
            status=status,
            before=cursor or _LAST_ID,
            row_limit=limit + 1,
        )
        page: View = {"executions": [views.execution(row) for row in found[:limit]]}
        if len(found) > limit:
            page["next_cursor"] = found[limit - 1]["id"]
        return page

    async def previous(self, execution_id: str) -> View:
        """Return what the parent of a run left for it (protocol 1.2)."""
        row = await self.execution_row(execution_id)
        parent_id = row["parent_execution_id"]
        if parent_id is None:
            return {"state": None}
        parent = await self._database.read(statements.EXECUTION_BY_ID, execution_id=parent_id)
        if not parent:
            return {"state": None}
        left = parent[0]["left"] or parent[0]["output"]
        return {"state": None if left is None else views.Raw(left)}

    async def events(self, execution_id: str, *, after_seq: int, limit: int) -> list[View]:
        """Return up to `limit` entries of a run's log above `after_seq`, in order."""
        await self.execution_row(execution_id)
        found = await self._database.read(
            statements.EVENTS_AFTER,
            execution_id=execution_id,
            after_seq=after_seq,
            row_limit=limit,
        )
        called = {}
        if any(row["type"].startswith("step.") for row in found):
            steps = await self._database.read(
                statements.TARGETS_OF_STEPS, execution_id=execution_id
            )
            called = {row["step_id"]: (row["kind"], row["target"]) for row in steps}
        return [views.event(row, called) for row in found]

    async def steps(
        self, execution_id: str, *, only_terminal: bool = False, by_id: bool = False
    ) -> list[View]:
        """Return the steps of a run, in the order in which they were first proposed."""
        await self.execution_row(execution_id)
        found = await self._database.read(statements.STEPS_OF_EXECUTION, execution_id=execution_id)
        if by_id:
            found.sort(key=lambda row: str(row["step_id"]))
        return [
            views.step(row)
            for row in found
            if not only_terminal or row["status"] in _TERMINAL_STEPS
        ]

    async def step(self, execution_id: str, step_id: str) -> View:
        """Return one step of a run; raises `not_found` when there is none."""
        found = await self._database.read(
            statements.STEP_BY_ID, execution_id=execution_id, step_id=step_id
        )
        if not found:
            raise WireError(
                ErrorCode.NOT_FOUND, f"execution {execution_id!r} has no step {step_id!r}"
            )
        return views.step(found[0])

    async def running(self) -> list[tuple[str, str]]:
        """Return (execution id, agent id) of every run that has not ended, oldest first."""
        found = await self._database.read(statements.RUNNING_EXECUTIONS)
        return [(row["id"], row["agent_id"]) for row in found]

    async def approvals(
        self, *, status: str = ApprovalStatus.PENDING, after: str = ""
    ) -> list[View]:
        """Return a page of approvals, the oldest first; an empty status is any."""
        found = await self._database.read(
            statements.APPROVALS_BY_STATUS, status=status, after=after, row_limit=APPROVALS_PAGE_MAX
        )
        return [views.approval(row) for row in found]

    async def approval_row(self, approval_id: str) -> Row:
        """Return the row of one approval; raises `not_found` when there is none."""
        found = await self._database.read(statements.APPROVAL_BY_ID, approval_id=approval_id)
        if not found:
            raise WireError(ErrorCode.NOT_FOUND, f"no approval {approval_id!r}")
        return found[0]

    async def approval(self, approval_id: str) -> View:
        """Return one approval; raises `not_found` when there is none."""
        return views.approval(await self.approval_row(approval_id))

    async def agent(self, agent_id: str) -> View:
        """Return one agent; raises `not_found` when there is none."""
        found = await self._database.read(statements.AGENT_BY_ID, agent_id=agent_id)
        if not found:
            raise WireError(ErrorCode.NOT_FOUND, f"no agent {agent_id!r}")
        bundle = await self._database.read(statements.BUNDLE_OF_AGENT, agent_id=agent_id)
        return views.agent(found[0], bundle[0] if bundle else None)

    async def agents(self) -> list[View]:
        """Return every agent, by id."""
        bundles = {
            row["agent_id"]: row for row in await self._database.read(statements.ALL_BUNDLES)
        }
        return [
            views.agent(row, bundles.get(row["id"]))
            for row in await self._database.read(statements.ALL_AGENTS)
        ]

    async def last_checkpoint(self) -> tuple[int, str]:
        """Return number and hash of the last checkpoint; 0 and zeros before the first."""
        found = await self._database.read(statements.LAST_CHECKPOINT)
        if not found:
            return 0, checkpoints.BEFORE_FIRST
        return found[0]["number"], checkpoints.digest(found[0]["body"])

    async def api_keys(self) -> list[View]:
        """Return every key, the oldest first, without the tokens."""
        return [views.api_key(row) for row in await self._database.read(statements.ALL_API_KEYS)]
