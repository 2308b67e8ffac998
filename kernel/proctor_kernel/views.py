"""Rows of the read tables as the protocol shows them (protocol 0.2, 1.2 to 1.4). Pure.

A view leaves out what is unset, since clients refuse an explicit null. User values stay the text
that was recorded, so that number literals reach the client as they were sent.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from proctor.wire.json_text import parsed
from proctor.wire.words import StepStatus
from proctor_kernel.core import step_errors
from proctor_kernel.core.approvals import Vote, agreed, gates_from_json
from proctor_kernel.core.commands import Registered
from proctor_kernel.core.state import State
from proctor_kernel.store.database import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Raw:
    """A JSON document that is shown as it is."""

    text: str


View = dict[str, Any]
"""Field -> JSON value or `Raw`; lists and nested views hold the same."""


def to_json(value: Any) -> str:
    """Return a view as one JSON document."""
    match value:
        case Raw(text):
            return text
        case dict():
            members = [f"{json.dumps(key)}:{to_json(item)}" for key, item in value.items()]
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(to_json, value)) + "]"
        case _:
            return json.dumps(value)


def to_python(value: Any) -> Any:
    """Return a view as the values that it reads back as."""
    match value:
        case Raw(text):
            return parsed(text)
        case dict():
            return {key: to_python(item) for key, item in value.items()}
        case list() | tuple():
            return [to_python(item) for item in value]
        case _:
            return value


def execution(row: Row, *, with_restoration: bool = False) -> View:
    """Return one run."""
    spawned_by = None
    if row["spawned_by_execution"] is not None:
        spawned_by = {
            "execution_id": row["spawned_by_execution"],
            "step_id": row["spawned_by_step"],
        }
    return {
        "id": row["id"],
        "agent_id": row["agent_id"],
        "status": row["status"],
        "input": Raw(row["input"]),
        **_set(
            output=_raw(row["output"]),
            failure_reason=row["failure_reason"] or None,
            session=row["session"],
            parent_execution_id=row["parent_execution_id"],
            forked_from=row["forked_from"],
            fork_seq=row["fork_seq"] or None,
            restoration=_raw(row["restoration"]) if with_restoration else None,
            idempotency_key=row["idempotency_key"],
            spawned_by=spawned_by,
            created_by=row["created_by"],
            on_behalf_of=row["on_behalf_of"],
        ),
        "attempts": row["attempts"],
        "passed_over": json.loads(row["passed_over"]),
        "created_at": time(row["created_at"]),
        "updated_at": time(row["updated_at"]),
        **_set(
            started_at=time(row["started_at"]),
            deadline_at=time(row["deadline_at"]),
        ),
    }


def step(row: Row) -> View:
    """Return one step."""
    error = _raw(row["error"])
    if row["status"] == StepStatus.DENIED and error is None:
        rule_ids = json.loads(row["rule_ids"])
        error = Raw(step_errors.denied(row["reason"], rule_ids[0] if rule_ids else ""))
    return {
        "step_id": row["step_id"],
        "execution_id": row["execution_id"],
        "kind": row["kind"],
        "target": row["target"],
        "args": Raw(row["args"]),
        "args_hash": row["args_hash"],
        "occurrence": row["occurrence"],
        "status": row["status"],
        "idempotency": row["idempotency"],
        **_set(result=_raw(row["result"]), error=error, decision=row["decision"]),
        "reason": row["reason"],
        "rule_ids": json.loads(row["rule_ids"]),
        "ruleset": row["ruleset"],
        "policy_micros": row["policy_micros"],
        "shadow": json.loads(row["shadow"]),
        "resources": json.loads(row["resources"]),
        **_set(
            approval_id=row["approval_id"],
            usage_input=row["input_tokens"],
            usage_output=row["output_tokens"],
        ),
        "trace_id": row["trace_id"],
        "span_id": row["span_id"],
        **_set(started_at=time(row["started_at"]), completed_at=time(row["completed_at"])),
    }


def event(row: Row, called: dict[str, tuple[str, str]]) -> View:
    """Return one entry of a log. `called`: step id -> kind and target of the run's steps."""
    return {
        "execution_id": row["execution_id"],
        "event_seq": row["event_seq"],
        "type": row["type"],
        "payload": _payload(row, called),
        "occurred_at": time(row["occurred_at"]),
        "hash": row["hash"],
    }


_STATUS_AFTER = {
    "execution.created": "pending",
    "execution.started": "running",
    "execution.blocked": "blocked",
    "execution.resumed": "running",
    "execution.completed": "completed",
    "execution.failed": "failed",
    "execution.cancelled": "cancelled",
    "approval.requested": "pending",
    "approval.granted": "granted",
    "approval.denied": "denied",
    "approval.expired": "expired",
    "dispatch.queued": "pending",
    "dispatch.claimed": "in_flight",
    "dispatch.acked": "acked",
    "dispatch.failed": "failed",
    "dispatch.discarded": "exhausted",
}


def _payload(row: Row, called: dict[str, tuple[str, str]]) -> View:
    """Return what the log has, with the fields that the protocol shows beside it (4.2)."""
    recorded = parsed(row["payload"])
    shown: View = {}
    if not row["type"].startswith(("step.", "resource.")):
        shown["execution_id"] = row["execution_id"]
    if row["type"] in _STATUS_AFTER:
        shown["status"] = _STATUS_AFTER[row["type"]]
    step_id = recorded.get("step_id")
    if row["type"].startswith("step."):
        kind, target = called.get(step_id, (recorded.get("kind"), recorded.get("target")))
        shown |= {"step_type": kind, "target": target}
    rule_ids = recorded.get("rule_ids")
    if rule_ids:
        shown["rule_id"] = rule_ids[0]
    if recorded.get("ruleset"):
        shown["policy_hash"] = recorded["ruleset"]
    if row["type"] in ("step.denied", "step.rate_limited"):
        shown["error"] = {
            "reason": recorded["reason"],
            "rule_id": rule_ids[0] if rule_ids else "",
        }
    if row["type"].startswith("approval.") and "by" in recorded:
        shown["decided_by"] = recorded["by"]
    if row["type"] == "dispatch.queued":
        shown["attempt"] = 0
    return {**shown, **recorded}


def approval(row: Row) -> View:
    """Return one approval, with the call that it is about."""
    votes = json.loads(row["votes"])
    cast = [Vote(each["by"], tuple(each.get("groups", ())), each["at"]) for each in votes]
    gates = gates_from_json(row["gates"])
    approvers = list(dict.fromkeys(name for gate in gates for name in gate.approvers))
    return {
        "id": row["approval_id"],
        "step_id": row["step_id"],
        "execution_id": row["execution_id"],
        "agent_id": row["agent_id"],
        "status": row["status"],
        "kind": row["kind"],
        "target": row["target"],
        "args": Raw(row["args"]),
        "reason": row["reason"],
        "rule_ids": json.loads(row["rule_ids"]),
        **_set(approvers=approvers or None, message=row["message"] or None),
        "gates": [
            {
                "rule_id": gate.rule_id,
                "approvers": list(gate.approvers),
                "quorum": gate.quorum,
                "granted": agreed(gate, cast),
            }
            for gate in gates
        ],
        "votes": [
            {"by": each["by"], "at": time(each["at"]), "rationale": each["rationale"]}
            for each in votes
        ],
        "timeout_at": time(row["expires_at"]),
        "created_at": time(row["requested_at"]),
        **_set(
            decided_by=row["decided_by"] or None,
            decided_at=time(row["decided_at"]),
            rationale=row["rationale"] or None,
        ),
    }


def agent(row: Row, bundle: Row | None) -> View:
    """Return one agent; its secret is never shown."""
    return {
        "id": row["id"],
        "registered_at": time(row["registered_at"]),
        **_set(
            webhook_url=row["webhook_url"],
            lease_timeout_seconds=row["lease_seconds"],
            description=row["description"],
            input_schema=_raw(row["input_schema"]),
            output_schema=_raw(row["output_schema"]),
            policy_bundle=None if bundle is None else bundle["bundle"],
        ),
    }


def api_key(row: Row) -> View:
    """Return what is known of a key; never its token."""
    return {
        "id": row["id"],
        "name": row["name"],
        "scopes": json.loads(row["scopes"]),
        "groups": json.loads(row["groups"]),
        "created_at": time(row["created_at"]),
        **_set(revoked_at=time(row["revoked_at"])),
    }


def resource(registered: Registered) -> View:
    """Return a resource as an agent is shown it (protocol 1.3)."""
    of = registered.resource
    return {
        "key": of.key,
        "driver_id": of.driver_id,
        "configuration": Raw(of.configuration),
        "coverage_reuse": of.coverage_reuse,
        "every_steps": of.every_steps,
        "on_completion": of.on_completion,
        "registered_seq": of.registered_seq,
        "generation": of.generation,
        "count": of.count,
        "covered": of.covered,
        **_set(binding=_raw(of.binding), checkpoint_ref=of.checkpoint_ref),
    }


def fork_points(state: State) -> View:
    """Return where a run can be forked, and which checkpoints there are (protocol 1.2)."""
    resources = sorted(state.resources.items())
    return {
        "latest_seq": state.seq,
        "resources": {key: each.registered_seq for key, each in resources},
        "checkpoints": [
            {
                "key": key,
                "generation": each.generation,
                "checkpoint_ref": each.ref,
                "covered_seq": each.covered_seq,
                **_set(invalidated_seq=each.invalidated_seq),
            }
            for key, of in resources
            for each in of.checkpoints
        ],
    }


def time(micros: int | None) -> str | None:
    """Return a time in RFC 3339, UTC, to the microsecond."""
    if micros is None:
        return None
    # Integer arithmetic: a float of seconds would lose the last microsecond.
    moment = _EPOCH + timedelta(microseconds=micros)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def _raw(text: str | None) -> Raw | None:
    return None if text is None else Raw(text)


def _set(**fields: Any) -> View:
    return {name: value for name, value in fields.items() if value is not None}
