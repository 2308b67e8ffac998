"""Agents that a service delivers to: who they are, how they sign, which rules came for them.

Kept in memory, so that neither a signature nor a verdict reads the database; the write of another
process, or a few seconds, brings the memory up to date.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode
from proctor_kernel import admit, bundles
from proctor_kernel.bundles import Bundles
from proctor_kernel.sealing import Seal, SealBroken
from proctor_kernel.settings import TargetRefused, check_target
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Database, Row
from proctor_policy.ruleset import RuleSet

LEASE_SECONDS_MIN: Final = 10
"""A shorter lease of an agent's own counts as none (protocol 1.4)."""

_SECRET_CHARACTERS_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Registered:
    """An agent as deliveries need it."""

    agent_id: str
    secret: str
    webhook_url: str | None
    lease_seconds: float | None


class Agents:
    """The agents of a database."""

    def __init__(
        self,
        *,
        database: Database,
        seal: Seal | None,
        bundles: Bundles,
        rules: Callable[[], RuleSet],
        now_micros: Callable[[], int],
        webhook_hosts: tuple[str, ...] = (),
        allow_private: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`changed` tells the other processes that there is something to `refresh`."""
        self._database = database
        self._seal = seal
        self._bundles = bundles
        self._rules = rules
        self._now_micros = now_micros
        self._webhook_hosts = webhook_hosts
        self._allow_private = allow_private
        self._changed = changed
        self._known: dict[str, Registered] = {}
        self._rows: dict[str, Row] = {}

    def get(self, agent_id: str) -> Registered | None:
        """Return an agent from memory, or None."""
        return self._known.get(agent_id)

    async def find(self, agent_id: str) -> Registered | None:
        """Return an agent; looks it up when memory does not have it."""
        known = self._known.get(agent_id)
        if known is not None:
            return known
        found = await self._database.read(statements.AGENT_BY_ID, agent_id=agent_id)
        if not found:
            return None
        await self.refresh()
        return self._known.get(agent_id)

    async def exists(self, agent_id: str) -> bool:
        """True when runs of this agent can be created."""
        return await self.find(agent_id) is not None

    async def refresh(self) -> None:
        """Bring memory up to date with the database."""
        rows = {row["id"]: row for row in await self._database.read(statements.ALL_AGENTS)}
        # Opening a secret takes time, so only what changed is opened.
        known = {
            agent_id: self._known[agent_id]
            if self._rows.get(agent_id) == row and agent_id in self._known
            else self._registered(row)
            for agent_id, row in rows.items()
        }
        self._rows, self._known = rows, {key: each for key, each in known.items() if each}
        found = await self._database.read(statements.ALL_BUNDLES)
        self._bundles.replace({row["agent_id"]: row["bundle"] for row in found})

    async def register(
        self,
        agent_id: str,
        *,
        secret: str,
        webhook_url: str | None,
        lease_seconds: float | None,
    ) -> None:
        """Register an agent, or replace its address and secret; its rules stay.

        Raises:
            WireError: `validation_error` for an empty id or secret, or a refused address;
                `conflict` when there is no key to encrypt secrets with.
        """
        if not agent_id.strip():
            raise WireError(ErrorCode.VALIDATION_ERROR, "id: must not be empty")
        if not secret or len(secret) > _SECRET_CHARACTERS_MAX:
            raise WireError(
                ErrorCode.VALIDATION_ERROR,
                f"secret: must have 1 to {_SECRET_CHARACTERS_MAX} characters",
            )
        if webhook_url:
            try:
                check_target(
                    webhook_url, hosts=self._webhook_hosts, allow_private=self._allow_private
                )
            except TargetRefused as refused:
                raise WireError(ErrorCode.VALIDATION_ERROR, f"webhook_url: {refused}") from None
        if self._seal is None:
            raise WireError(
                ErrorCode.CONFLICT,
                "there is no key to encrypt secrets with; set PROCTOR_SECRET_KEY",
            )
        known = await self._database.read(statements.AGENT_BY_ID, agent_id=agent_id)
        before = known[0] if known else {}
        lease = int(lease_seconds) if lease_seconds and lease_seconds >= LEASE_SECONDS_MIN else None
        row = {
            "id": admit.name("id", agent_id),
            "webhook_url": webhook_url or None,
            "secret": self._seal.close(admit.name("secret", secret)),
            "lease_seconds": lease,
            "registered_at": self._now_micros(),
            "description": before.get("description"),
            "input_schema": before.get("input_schema"),
            "output_schema": before.get("output_schema"),
        }
        await self._write(Change(statements.AGENTS, [row], replace=True))

    async def describe(
        self,
        agent_id: str,
        *,
        description: str | None,
        input_schema: Any,
        output_schema: Any,
    ) -> None:
        """Keep what an agent says of itself."""
        await self._database.run(
            statements.DESCRIBE_AGENT,
            of_agent=agent_id,
            new_description=None if description is None else admit.name("description", description),
            new_input_schema=None if input_schema is None else json.dumps(input_schema),
            new_output_schema=None if output_schema is None else json.dumps(output_schema),
        )
        self._changed()

    async def remove(self, agent_id: str) -> None:
        """Forget an agent that never had a run; raises `not_found` or `conflict`."""
        if await self._database.read(statements.HAS_EXECUTIONS, agent_id=agent_id):
            raise WireError(ErrorCode.CONFLICT, f"the agent {agent_id!r} has executions")
        if not await self._database.run(statements.DELETE_AGENT, of_agent=agent_id):
            raise WireError(ErrorCode.NOT_FOUND, f"no agent {agent_id!r}")
        await self.refresh()
        self._changed()

    def check_bundle(self, bundle: str) -> None:
        """Raise `validation_error` for a bundle that cannot be rules beside the files."""
        bundles.check(bundle, self._rules())

    async def set_bundle(self, agent_id: str, bundle: str, *, by: str) -> None:
        """Put rules in force that must allow an agent's calls too; empty ones are dropped."""
        if not await self.exists(agent_id):
            raise WireError(ErrorCode.NOT_FOUND, f"no agent {agent_id!r}")
        if bundle.strip():
            self.check_bundle(bundle)
            row = {
                "agent_id": agent_id,
                "bundle": bundle,
                "set_by": by,
                "set_at": self._now_micros(),
            }
            await self._write(Change(statements.BUNDLES, [row], replace=True))
        else:
            await self._database.run(statements.DELETE_BUNDLE, of_agent=agent_id)
            await self.refresh()
            self._changed()

    async def _write(self, change: Change) -> None:
        writing = self._database.write([change])
        if writing is not None:
            await writing
        await self.refresh()
        self._changed()

    def _registered(self, row: Row) -> Registered | None:
        if self._seal is None:
            return None
        try:
            secret = self._seal.open(row["secret"])
        except SealBroken:
            # Whoever signs as it is refused, until it is registered anew under this key.
            return None
        return Registered(row["id"], secret, row["webhook_url"], row["lease_seconds"])
