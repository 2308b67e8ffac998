"""Rules that came over the API: for one agent, or with one run. They can only tighten.

A call must be allowed by the files and by these. Cedar text, or a Rebuno bundle, which is imported.
They see the entities and facts of the files, so that they can name the same groups.
"""

import re
from collections import OrderedDict
from hashlib import sha256
from typing import Final

from proctor.wire.calls import WireError
from proctor.wire.words import ErrorCode
from proctor_policy.load import ENTITIES_FILE, FACTS_FILE, rebuild
from proctor_policy.problem import RulesInvalid
from proctor_policy.rebuno import BundleInvalid, imported
from proctor_policy.ruleset import RuleSet, deny_all

BUNDLE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one bundle."""

_POLICY: Final = re.compile(r"^\s*(?:@\w+\s*\(|(?:permit|forbid)\s*\()", re.MULTILINE)
_KEPT_MAX: Final = 256
_INVALID: Final = "policy_bundle_invalid"


class BundleRefused(ValueError):
    """A bundle that cannot be rules; the message is every problem, a line each."""


def compiled(bundle: str, files: RuleSet) -> RuleSet:
    """Return the rules of a bundle, beside the files that are in force.

    Raises:
        BundleRefused: with every problem found.
    """
    if len(bundle.encode()) > BUNDLE_BYTES_MAX:
        raise BundleRefused(f"the bundle is larger than {BUNDLE_BYTES_MAX} bytes")
    try:
        rules = {"bundle.cedar": bundle} if _is_cedar(bundle) else imported(bundle)
    except BundleInvalid as error:
        raise BundleRefused(str(error)) from None
    shared = {
        path: text
        for path, text in files.files.items()
        if path == ENTITIES_FILE or (path == FACTS_FILE and FACTS_FILE not in rules)
    }
    try:
        return rebuild({**shared, **rules}, "bundle")
    except RulesInvalid as error:
        raise BundleRefused("\n".join(map(str, error.problems))) from None


def check(bundle: str, files: RuleSet) -> None:
    """Raise `validation_error` for a bundle that cannot be rules beside the files."""
    try:
        compiled(bundle, files)
    except BundleRefused as refused:
        raise WireError(
            ErrorCode.VALIDATION_ERROR, "the bundle is not in force", str(refused)
        ) from None


def _is_cedar(bundle: str) -> bool:
    # How a policy begins, and no line of a bundle does; how it ends tells nothing of one cut off.
    return _POLICY.search(bundle) is not None


class Bundles:
    """Compiled bundles, kept by their text and the files beside them."""

    def __init__(self) -> None:
        self._of_agent: dict[str, str] = {}
        self._kept: OrderedDict[tuple[str, str], RuleSet] = OrderedDict()

    def replace(self, of_agent: dict[str, str]) -> None:
        """Take the bundles of all agents as the database has them now."""
        self._of_agent = of_agent

    def beside(self, files: RuleSet, agent_id: str, own: str | None) -> RuleSet | None:
        """Return the rules that must allow a call too: the run's own, else its agent's.

        One that does not compile beside the files of this moment denies everything.
        """
        bundle = own if own is not None else self._of_agent.get(agent_id)
        if not bundle:
            return None
        key = (sha256(bundle.encode()).hexdigest(), files.hash)
        if key not in self._kept:
            try:
                rules = compiled(bundle, files)
            except BundleRefused:
                rules = deny_all(_INVALID)
            self._kept[key] = rules
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]
