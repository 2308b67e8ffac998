"""Which policies can apply to a call: those in whose scope it lies, and no others.

Exact by construction: the same rules by which Cedar matches a scope, over the same entities. So
the cost of a decision follows the rules that can apply, not the rules that exist.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from proctor_policy.call import Subject
from proctor_policy.entities import Entities
from proctor_policy.policy import Anything, Constraint, Exactly, OfType, Policy, Uid, Within

_Key = tuple[Uid | None, Uid | None]


class Index:
    """The policies of a rule set by the action and the resource that their scope names."""

    def __init__(self, policies: Sequence[Policy], entities: Entities) -> None:
        self._policies = policies
        self._entities = entities
        self._by_key: dict[_Key, list[int]] = {}
        for number, policy in enumerate(policies):
            for action in _named(policy.scope.action):
                for resource in _named(policy.scope.resource):
                    self._by_key.setdefault((action, resource), []).append(number)

    def of(self, subject: Subject) -> tuple[Policy, ...]:
        """Return the policies in whose scope the call lies, in the order of the rule set."""
        actions = [None, *self._entities.above(subject.action)]
        resources = [None, *self._entities.above(subject.resource)]
        candidates = {
            number
            for action in actions
            for resource in resources
            for number in self._by_key.get((action, resource), ())
        }
        return tuple(
            self._policies[number]
            for number in sorted(candidates)
            if self._covers(self._policies[number], subject)
        )

    def _covers(self, policy: Policy, subject: Subject) -> bool:
        scope = policy.scope
        return (
            self._matches(scope.action, subject.action)
            and self._matches(scope.resource, subject.resource)
            and self._matches(scope.principal, subject.principal)
        )

    def _matches(self, constraint: Constraint, uid: Uid) -> bool:
        match constraint:
            case Anything():
                return True
            case Exactly(named):
                return uid == named
            case Within(uids):
                return not self._entities.above(uid).isdisjoint(uids)
            case OfType(type_name, within):
                return uid[0] == type_name and (
                    within is None or within in self._entities.above(uid)
                )
            case _:
                assert_never(constraint)


def _named(constraint: Constraint) -> Iterable[Uid | None]:
    """Return the entities under which a policy is filed; None: it names none."""
    match constraint:
        case Exactly(uid):
            return (uid,)
        case Within(uids):
            return dict.fromkeys(uids)
        case Anything() | OfType():
            return (None,)
        case _:
            assert_never(constraint)
