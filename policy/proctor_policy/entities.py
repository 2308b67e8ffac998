"""The entities that rules name: agents, tools, their groups and labels, from `entities.json`.

Cedar puts what it does not know in no group, without an error. So whatever a call names is added
here when the file does not have it, and every tool's action is in the group of tool calls.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cedarpy

from proctor_policy.call import TOOL_CALL, Subject
from proctor_policy.origins import is_origin
from proctor_policy.policy import Uid


class EntitiesInvalid(Exception):
    """An `entities.json` that is not taken; the message says why."""


@dataclass(frozen=True, slots=True)
class Entities:
    """The entity store of a rule set."""

    handle: cedarpy.Entities
    ancestors: Mapping[Uid, frozenset[Uid]]
    """Entity -> itself and every group that it is in, for those in the file."""
    labels: Mapping[str, frozenset[str]]
    """Tool -> its labels."""

    def above(self, uid: Uid) -> frozenset[Uid]:
        """Return an entity and every group that it is in."""
        known = self.ancestors.get(uid)
        if known is not None:
            return known
        return frozenset({uid, TOOL_CALL}) if _is_tool_action(uid) else frozenset({uid})

    def with_subject(self, subject: Subject) -> cedarpy.Entities:
        """Return the store with the entities of a call in it."""
        missing = [
            _entity(uid, [TOOL_CALL] if _is_tool_action(uid) else [])
            for uid in (subject.principal, subject.action, subject.resource)
            if uid not in self.ancestors
        ]
        if not missing:
            return self.handle
        return self.handle.with_added_json_str(json.dumps(missing))


def read(text: str) -> Entities:
    """Read the text of an `entities.json` (Cedar reference, entity JSON format).

    Raises:
        EntitiesInvalid: not JSON, not a list of entities, or not taken by Cedar.
    """
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise EntitiesInvalid(f"not JSON: {error}") from None
    if not isinstance(listed, list):
        raise EntitiesInvalid("it must be a list of entities")
    parents: dict[Uid, list[Uid]] = {}
    labels: dict[str, frozenset[str]] = {}
    for number, entity in enumerate(listed, 1):
        uid = _uid(entity.get("uid") if isinstance(entity, dict) else None, f"entity {number}")
        if uid in parents:
            raise EntitiesInvalid(f"{_shown(uid)} is there twice")
        above = entity.get("parents", [])
        if not isinstance(above, list):
            raise EntitiesInvalid(f"parents of {_shown(uid)}: not a list")
        parents[uid] = [_uid(each, f"parents of {_shown(uid)}") for each in above]
        if uid[0] == "Tool":
            labels[uid[1]] = _labels(entity, uid)
        entity.setdefault("attrs", {})
        entity.setdefault("parents", [])
        if _is_tool_action(uid) and TOOL_CALL not in parents[uid]:
            parents[uid].append(TOOL_CALL)
            entity["parents"] = [*above, _reference(TOOL_CALL)]
    for uid, above in parents.items():
        if any(uid in _closure(each, parents) for each in above):
            raise EntitiesInvalid(f"{_shown(uid)} is in itself: its parents are a cycle")
    try:
        handle = cedarpy.Entities.from_json_str(json.dumps(listed))
    except ValueError as error:
        raise EntitiesInvalid(str(error)) from None
    return Entities(handle, {uid: _closure(uid, parents) for uid in parents}, labels)


def _closure(uid: Uid, parents: Mapping[Uid, list[Uid]]) -> frozenset[Uid]:
    found: set[Uid] = set()
    waiting = [uid]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += parents.get(each, ())
    return frozenset(found)


def _is_tool_action(uid: Uid) -> bool:
    return uid[0] == "Action" and uid[1] not in ("tool_call", "llm_call", "local")


def _uid(value: Any, what: str) -> Uid:
    if isinstance(value, dict) and isinstance(value.get("__entity"), dict):
        value = value["__entity"]
    if (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and isinstance(value.get("id"), str)
    ):
        return (value["type"], value["id"])
    raise EntitiesInvalid(f'{what}: expected {{"type": "...", "id": "..."}}, found {value!r}')


def _labels(entity: Mapping[str, Any], uid: Uid) -> frozenset[str]:
    attrs = entity.get("attrs", {})
    labels = attrs.get("labels", []) if isinstance(attrs, dict) else None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise EntitiesInvalid(f"labels of {_shown(uid)}: expected a list of strings")
    for label in labels:
        if is_origin(label):
            raise EntitiesInvalid(f"labels of {_shown(uid)}: {label!r} is an origin of its own")
    return frozenset(labels)


def _entity(uid: Uid, parents: list[Uid]) -> dict[str, Any]:
    return {
        "uid": _reference(uid),
        "attrs": {"labels": []} if uid[0] == "Tool" else {},
        "parents": [_reference(each) for each in parents],
    }


def _reference(uid: Uid) -> dict[str, str]:
    return {"type": uid[0], "id": uid[1]}


def _shown(uid: Uid) -> str:
    return f"{uid[0]}::{json.dumps(uid[1], ensure_ascii=False)}"
