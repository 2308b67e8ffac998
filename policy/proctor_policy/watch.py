"""A rules folder that is edited while its rules decide.

What counts is a digest of the resolved tree, contents and not times: it sees an editor's rename,
a checkout with older times, a Kubernetes `..data` swap, a link that was re-pointed, a folder that
was replaced, and file systems without events. A digest must be the same twice in a row before the
folder is loaded, aside; then one reference is swapped. A folder that does not load changes nothing
but the status. Decisions under way keep the set they began with.
"""

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from proctor_policy.problem import Problem, RulesInvalid
from proctor_policy.ruleset import RuleSet

INTERVAL_SECONDS: Final = 0.5
"""Time between two looks at the folder. A settled edit is in force after at most three."""

EMPTY_ON_PURPOSE: Final = "empty on purpose"
"""In a comment, it says that a file without policies is meant so."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Status:
    """What decides, and what is wrong with the folder if anything is."""

    hash: str
    """The rule set in force."""
    loaded_at_micros: int
    problems: tuple[Problem, ...] = ()
    """Why the folder as it is now is not in force; empty: it is."""
    failing_since_micros: int | None = None
    reloads: int = 0
    failures: int = 0


class Watcher:
    """Keeps a rule set in step with its folder."""

    def __init__(
        self,
        folder: Path,
        *,
        load: Callable[[Path], RuleSet],
        start: RuleSet,
        problems: tuple[Problem, ...] = (),
        now_micros: Callable[[], int],
        verify: Callable[[RuleSet], Sequence[Problem]] | None = None,
        changed: Callable[[RuleSet], Awaitable[None]] | None = None,
    ) -> None:
        """Begin with `start`, which stays in force until the folder loads as something else.

        `problems` is why `start` is not what the folder holds, if it is not. `verify` may
        refuse a set that loads (its tests fail). `changed` is told of each set before it comes
        into force; if it raises, the set does not.
        """
        self._folder = folder
        self._load = load
        self._now_micros = now_micros
        self._verify = verify
        self._changed = changed
        self._rules = start
        now = now_micros()
        self._status = Status(
            start.hash, now, problems, failing_since_micros=now if problems else None
        )
        self._seen: str | None = None
        self._tried: str | None = None

    @property
    def rules(self) -> RuleSet:
        """The rule set in force."""
        return self._rules

    @property
    def status(self) -> Status:
        """What is in force, and what is wrong."""
        return self._status

    async def run(self, interval_seconds: float = INTERVAL_SECONDS) -> None:
        """Look at the folder for ever; ends by being cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                # The outermost loop: a watcher that died would leave old rules deciding unseen.
                _logger.exception("looking at %s failed", self._folder)
            await asyncio.sleep(interval_seconds)

    async def look(self) -> bool:
        """Look at the folder once; True when a new rule set came into force."""
        digest = await asyncio.to_thread(tree_digest, self._folder)
        settled, self._seen = digest == self._seen, digest
        if not settled or digest == self._tried:
            return False
        self._tried = digest
        try:
            candidate = await asyncio.to_thread(self._candidate)
        except RulesInvalid as invalid:
            self._fail(invalid.problems)
            return False
        # What was read may be newer than what was looked at: then the next look comes back here.
        self._seen = await asyncio.to_thread(tree_digest, self._folder)
        if self._seen != digest:
            self._tried = None
            return False
        self._tried = None  # a swap that is refused for now is tried again
        swapped = await self._swap(candidate)
        self._tried = digest
        return swapped

    def _candidate(self) -> RuleSet:
        # Looking through the many new objects of a large set for garbage, of which there is none,
        # was measured to hold every thread up for 160 ms at a time.
        collecting = gc.isenabled()
        gc.disable()
        try:
            candidate = self._load(self._folder)
        finally:
            if collecting:
                gc.enable()
        problems = [*lost(self._rules, candidate, str(self._folder))]
        if not problems and self._verify is not None and candidate.hash != self._rules.hash:
            problems += self._verify(candidate)
        if problems:
            raise RulesInvalid(tuple(problems))
        return candidate

    async def _swap(self, candidate: RuleSet) -> bool:
        if candidate.hash == self._rules.hash:
            self._status = replace(self._status, problems=(), failing_since_micros=None)
            return False
        if self._changed is not None:
            await self._changed(candidate)
        self._rules = candidate
        self._status = replace(
            self._status,
            hash=candidate.hash,
            loaded_at_micros=self._now_micros(),
            problems=(),
            failing_since_micros=None,
            reloads=self._status.reloads + 1,
        )
        _logger.info("rules %s: now in force from %s", candidate.hash[:12], self._folder)
        return True

    def _fail(self, problems: tuple[Problem, ...]) -> None:
        since = self._status.failing_since_micros
        self._status = replace(
            self._status,
            problems=problems,
            failing_since_micros=self._now_micros() if since is None else since,
            failures=self._status.failures + 1,
        )
        for problem in problems:
            _logger.error("%s (rules %s stay in force)", problem, self._rules.hash[:12])


def lost(before: RuleSet, after: RuleSet, name: str) -> Sequence[Problem]:
    """Return the files that had policies and have none now, though they are still there.

    Cedar takes an empty file for a valid one, and half of a save looks the same.
    """
    held = {policy.path for policy in before.policies}
    holds = {policy.path for policy in after.policies}
    return [
        Problem(
            f"{name}/{path}",
            None,
            "it has no policies any more",
            f"delete it, or write '// {EMPTY_ON_PURPOSE}' into it if that is meant",
        )
        for path in sorted(held - holds)
        if path in after.files and EMPTY_ON_PURPOSE not in after.files[path]
    ]


def tree_digest(folder: Path) -> str:
    """Return a digest of every file below `folder`, links followed, hidden ones left out.

    A file or folder that cannot be read is part of it as such.
    """
    hashed = sha256()
    seen: set[str] = set()
    if not folder.is_dir():
        return "no folder"
    for parent, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            path = os.path.join(parent, name)
            _add(hashed.update, os.path.relpath(path, folder).encode(errors="surrogateescape"))
            try:
                with open(path, "rb") as file:
                    _add(hashed.update, file.read())
            except OSError as error:
                _add(hashed.update, f"error {error.errno}".encode())
    return hashed.hexdigest()


def _add(update: Callable[[bytes], None], part: bytes) -> None:
    update(b"%d:" % len(part))
    update(part)
