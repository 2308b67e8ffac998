"""A run that begins as a copy of another up to one of its events (protocol 4.6). Pure.

What the source had settled by then is copied under the fork's own step ids and replays without
asking the policies again; all that comes after runs live.
"""

import json
from collections.abc import Iterable
from dataclasses import replace

from proctor_kernel.core import events, identity, resources
from proctor_kernel.core.chain import Record
from proctor_kernel.core.identity import Json
from proctor_kernel.core.state import State, Step

_SETTLED = (events.StepSucceeded, events.StepFailed, events.StepDenied)


def copied(
    source: State, records: Iterable[Record], *, at_seq: int, fork_id: str
) -> tuple[events.Event, ...]:
    """Return the events that give a fork what its source had done by `at_seq`.

    `records`: the log of the source.
    """
    known = [record for record in records if record.seq <= at_seq]
    settled = {record.event.step_id for record in known if isinstance(record.event, _SETTLED)}
    ids = {step_id: _rekeyed(source.steps[step_id], fork_id) for step_id in settled}
    happened: list[events.Event] = []
    for record in known:
        event = record.event
        match event:
            case events.StepProposed() if event.step_id in ids:
                # A request id belongs to an attempt of the source.
                happened.append(replace(event, step_id=ids[event.step_id], request_id=None))
            case events.StepExecuting() if event.step_id in ids:
                happened.append(
                    replace(
                        event,
                        step_id=ids[event.step_id],
                        request_id=None,
                        resources=(),
                        generations=None,
                    )
                )
            case (
                events.StepAllowed()
                | events.StepDenied()
                | events.StepSucceeded()
                | events.StepFailed()
            ) if event.step_id in ids:
                happened.append(replace(event, step_id=ids[event.step_id]))
            case events.ResourceRegistered():
                happened.append(event)
            case _:
                pass
    for key, resource in sorted(source.resources.items()):
        if resource.registered_seq <= at_seq:
            found, _ = resources.restorable(resource, at_seq)
            happened.append(
                events.ResourceInitialized(
                    key,
                    found.generation if found is not None else 0,
                    found.ref if found is not None else None,
                )
            )
    return tuple(happened)


def restoration(source: State, at_seq: int) -> Json | None:
    """Return from which checkpoint each resource of a fork begins, or None without resources."""
    parts = {}
    for key, resource in sorted(source.resources.items()):
        if resource.registered_seq > at_seq:
            continue
        found, covered = resources.restorable(resource, at_seq)
        part: dict[str, object] = {"covered": covered}
        if found is not None:
            part |= {"checkpoint_ref": found.ref, "checkpoint_seq": found.covered_seq}
        parts[key] = part
    return Json(json.dumps(parts)) if parts else None


def _rekeyed(step: Step, fork_id: str) -> str:
    return identity.step_id(
        execution_id=fork_id,
        kind=step.kind,
        target=step.target,
        hash_of_args=step.args_hash,
        occurrence=step.occurrence,
    )
