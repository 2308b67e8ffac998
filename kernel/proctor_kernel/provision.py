"""The manifest of agents: applied at the start, and whenever the file changes (protocol 9.1)."""

import asyncio
import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from proctor.wire.calls import WireError
from proctor_kernel.agents import Agents
from proctor_kernel.store.database import StoreError

_LOOK_SECONDS: Final = 1.0
_BY: Final = "manifest"
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")

_logger = logging.getLogger(__name__)


class ManifestInvalid(Exception):
    """A manifest that is not applied; the message says where and why."""


class _Agent(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    secret: str
    webhook_url: str | None = None
    lease_timeout_seconds: float | None = None
    policy: str | None = None
    policy_file: str | None = None


class _Manifest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    agents: list[_Agent] = []


@dataclass(frozen=True, slots=True)
class _Wanted:
    agent: _Agent
    bundle: str | None


class Provisioner:
    """Keeps agents in step with a manifest. Those that it does not list are left alone."""

    def __init__(self, path: Path, agents: Agents) -> None:
        self._path = path
        self._agents = agents
        self._applied = ""
        self._failed = ""

    async def apply(self) -> None:
        """Register what the manifest lists; all of it is checked before anything is written.

        Raises:
            ManifestInvalid: it cannot be read, or an agent or bundle of it is refused.
        """
        wanted, digest = await asyncio.to_thread(self._read)
        for each in wanted:
            if each.bundle:
                try:
                    self._agents.check_bundle(each.bundle)
                except WireError as error:
                    raise ManifestInvalid(
                        f"{self._path}: policy of agent {each.agent.id!r}: "
                        f"{error.message}: {error.details}"
                    ) from None
        for each in wanted:
            agent = each.agent
            try:
                await self._agents.register(
                    agent.id,
                    secret=agent.secret,
                    webhook_url=agent.webhook_url,
                    lease_seconds=agent.lease_timeout_seconds,
                )
                if each.bundle is not None:
                    await self._agents.set_bundle(agent.id, each.bundle, by=_BY)
            except WireError as error:
                raise ManifestInvalid(
                    f"{self._path}: agent {agent.id!r}: {error.message}"
                ) from None
        self._applied = digest
        _logger.info("%s: %d agents registered", self._path, len(wanted))

    async def run(self) -> None:
        """Apply the manifest again whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                _, digest = await asyncio.to_thread(self._read)
                if digest != self._applied:
                    await self.apply()
                self._failed = ""
            except (ManifestInvalid, StoreError) as error:
                # Once for each state of the file: what was applied before stays.
                if str(error) != self._failed:
                    _logger.error("%s", error)
                self._failed = str(error)
            except Exception:
                _logger.exception("applying %s failed", self._path)

    def _read(self) -> tuple[list[_Wanted], str]:
        try:
            text = _expanded(self._path.read_text())
            manifest = _Manifest.model_validate(yaml.safe_load(text) or {})
        except OSError as error:
            raise ManifestInvalid(f"{self._path}: {error.strerror}") from None
        except yaml.YAMLError as error:
            raise ManifestInvalid(f"{self._path}: not YAML: {error}") from None
        except ValidationError as error:
            problems = [
                f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}"
                for each in error.errors(include_url=False, include_input=False)
            ]
            raise ManifestInvalid(f"{self._path}: {'; '.join(problems)}") from None
        digest = hashlib.sha256(text.encode())
        wanted = []
        for agent in manifest.agents:
            bundle = self._bundle(agent)
            digest.update(repr(bundle).encode())
            wanted.append(_Wanted(agent, bundle))
        return wanted, digest.hexdigest()

    def _bundle(self, agent: _Agent) -> str | None:
        if agent.policy is not None and agent.policy_file is not None:
            raise ManifestInvalid(
                f"{self._path}: agent {agent.id!r} has both policy and policy_file"
            )
        if agent.policy_file is None:
            return agent.policy
        path = self._path.parent / agent.policy_file
        try:
            return path.read_text()
        except OSError as error:
            raise ManifestInvalid(
                f"{self._path}: policy_file of agent {agent.id!r}: {path}: {error.strerror}"
            ) from None


def _expanded(text: str) -> str:
    """Put environment variables in place; one that is not set stays, without its braces."""

    def value(match: re.Match[str]) -> str:
        name: Any = match[1] or match[2]
        return os.environ.get(name, f"${name}")

    return _VARIABLE.sub(value, text)
