"""The rules folder of a kernel: loaded at the start, watched, and every state of it kept."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from proctor.wire.messages import PolicyStatus
from proctor_kernel import world
from proctor_kernel.store import statements
from proctor_kernel.store.database import Change, Database
from proctor_kernel.views import time
from proctor_policy.cases import failures
from proctor_policy.load import rebuild
from proctor_policy.problem import Problem, RulesInvalid
from proctor_policy.ruleset import RuleSet, deny_all
from proctor_policy.watch import Status, Watcher

InvalidRules = Literal["deny", "last_good", "refuse"]
"""What decides when the rules do not load at the start."""

_logger = logging.getLogger(__name__)


async def watched(
    folder: Path,
    store: Database,
    *,
    load: Callable[[Path], RuleSet],
    invalid_rules: InvalidRules,
    requires_tests: bool,
    in_force: Callable[[RuleSet], None] | None = None,
) -> Watcher:
    """Load the rules and return what keeps them in step with `folder`.

    `in_force` is told of each rule set just before it decides.

    Raises:
        RulesInvalid: they do not load, and `invalid_rules` is "refuse".
    """
    problems: tuple[Problem, ...] = ()
    try:
        start = load(folder)
    except RulesInvalid as invalid:
        problems = invalid.problems
        for problem in problems:
            _logger.error("%s", problem)
        if invalid_rules == "refuse":
            raise
        last_good = await _last_good(store) if invalid_rules == "last_good" else None
        start = last_good or deny_all(f"the rules did not load: {problems[0]}")
    for warning in start.warnings:
        _logger.warning("%s", warning)

    async def changed(rules: RuleSet) -> None:
        await keep(store, rules)
        if in_force is not None:
            in_force(rules)

    await changed(start)
    return Watcher(
        folder,
        load=load,
        start=start,
        problems=problems,
        now_micros=world.now_micros,
        verify=(lambda rules: failures(folder, rules)) if requires_tests else None,
        changed=changed,
    )


async def keep(store: Database, ruleset: RuleSet) -> None:
    """Store the rule set by its hash, so that what it decides can be explained later."""
    row = {
        "hash": ruleset.hash,
        "files": json.dumps(dict(ruleset.files)),
        "in_force_at": world.now_micros(),
    }
    writing = store.write([Change(statements.RULESETS, [row], replace=True)])
    if writing is not None:
        await writing


async def _last_good(store: Database) -> RuleSet | None:
    """Return the rules that were last in force on this database, or None when none were."""
    for row in await store.read(statements.RULESETS_BY_TIME):
        files = json.loads(row["files"])
        if files:  # without files it denied everything
            return rebuild(files, f"rule set {row['hash'][:12]}")
    return None


def policy_status(status: Status) -> PolicyStatus:
    """Return the status of the rules as clients see it."""
    return PolicyStatus.model_validate(
        {
            "hash": status.hash,
            "loaded_at": time(status.loaded_at_micros),
            "problems": [str(problem) for problem in status.problems],
            "failing_since": time(status.failing_since_micros),
            "reloads": status.reloads,
            "failures": status.failures,
        }
    )
