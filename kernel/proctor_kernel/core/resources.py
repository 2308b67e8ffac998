"""Things with a state of their own that a run holds: their generations and checkpoints. Pure.

A checkpoint stands for what a resource was at one place of the log; any later call that may
change the resource makes it stale. Source: protocol 4.7.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from immutables import Map

from proctor.wire.calls import Capture, CaptureFailure, StepResource
from proctor.wire.words import StepKind
from proctor_kernel.core import events
from proctor_kernel.core.identity import Json


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the driver saved. `invalidated_seq`: the event after which it is stale."""

    generation: int
    ref: str
    covered_seq: int
    invalidated_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of a run."""

    key: str
    driver_id: str
    configuration: Json
    coverage_reuse: bool
    every_steps: int
    on_completion: bool
    registered_seq: int
    generation: int = 0
    count: int = 0
    """Settled steps that named it."""
    binding: Json | None = None
    checkpoint_ref: str | None = None
    """What it is made from when there is no binding."""
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def covered(self) -> bool:
        """True when an open checkpoint stands for the resource as it is now."""
        return any(
            each.generation == self.generation and each.invalidated_seq is None
            for each in self.checkpoints
        )


Resources = Map[str, Resource]


def touched(resources: Resources, kind: StepKind, named: Sequence[str]) -> tuple[Resource, ...]:
    """Return what a call that starts may change, by key."""
    return tuple(
        each
        for key, each in sorted(resources.items())
        if (key in named and kind is not StepKind.LLM_CALL) or not each.coverage_reuse
    )


def generations(changed: Iterable[Resource]) -> Json | None:
    """Return the generations of resources once a call that may change them starts."""
    members = [f'"{each.key}":{each.generation + 1}' for each in changed]
    return Json("{" + ",".join(members) + "}") if members else None


def views(changed: Iterable[Resource], named: Sequence[str]) -> tuple[StepResource, ...]:
    """Return what the agent is told of them: whether a checkpoint is due when the call is done."""
    return tuple(
        StepResource(
            each.key,
            each.generation + 1,
            due=each.key in named
            and each.every_steps > 0
            and (each.count + 1) % each.every_steps == 0,
        )
        for each in changed
    )


def captured(
    resources: Resources,
    captures: Sequence[Capture],
    failures: Sequence[CaptureFailure],
    *,
    covered_seq: int,
    writing: frozenset[str],
) -> tuple[events.Event, ...]:
    """Return what becomes of checkpoints that a driver reports.

    `writing`: resources that a call under way may be changing.
    """
    happened: list[events.Event] = [
        events.ResourceCheckpointFailed(each.key, each.generation, each.error) for each in failures
    ]
    seen: set[str] = set()
    for capture in captures:
        refused = _refusal(resources, capture, seen, writing)
        seen.add(capture.key)
        if refused is None:
            happened.append(
                events.ResourceCheckpointed(
                    capture.key, capture.generation, capture.checkpoint_ref, covered_seq
                )
            )
        else:
            happened.append(
                events.ResourceCheckpointFailed(capture.key, capture.generation, refused)
            )
    return tuple(happened)


def _refusal(
    resources: Resources, capture: Capture, seen: set[str], writing: frozenset[str]
) -> str | None:
    resource = resources.get(capture.key)
    if resource is None:
        return "unknown_resource"
    if not capture.checkpoint_ref:
        return "missing_checkpoint_ref"
    if capture.key in seen:
        return "duplicate_capture"
    if capture.generation != resource.generation:
        return "stale_generation"
    if capture.key in writing:
        return "writers_active"
    return None


def inherited(resources: Resources) -> tuple[events.Event, ...]:
    """Return the events that give the resources of a parent to the run after it."""
    happened: list[events.Event] = []
    for _, each in sorted(resources.items()):
        happened.append(registered(each))
        if each.binding is not None:
            happened.append(events.ResourceBound(each.key, each.binding))
    return tuple(happened)


def registered(resource: Resource) -> events.ResourceRegistered:
    """Return the event that registers a resource like this one."""
    return events.ResourceRegistered(
        resource.key,
        resource.driver_id,
        resource.configuration,
        resource.coverage_reuse,
        resource.every_steps,
        resource.on_completion,
    )


def enabled(resource: Resource, every_steps: int, on_completion: bool) -> Resource:
    """Return a resource whose checkpoints are wanted from now on."""
    return replace(resource, every_steps=every_steps, on_completion=on_completion)


def restorable(resource: Resource, at_seq: int) -> tuple[Checkpoint | None, bool]:
    """Return the checkpoint to restore a fork at `at_seq` from, and whether it stands for it."""
    earlier = [each for each in resource.checkpoints if each.covered_seq <= at_seq]
    covering = [
        each for each in earlier if each.invalidated_seq is None or each.invalidated_seq > at_seq
    ]
    found = max(covering or earlier, key=lambda each: each.covered_seq, default=None)
    return found, bool(covering)


def started(resources: Resources, to: Mapping[str, int], at_seq: int) -> Resources:
    """Return the resources once a call that may change some of them has started."""
    for key, generation in to.items():
        resource = resources.get(key)
        if resource is not None:
            stale = tuple(
                each if each.invalidated_seq is not None else replace(each, invalidated_seq=at_seq)
                for each in resource.checkpoints
            )
            resources = resources.set(
                key, replace(resource, generation=generation, checkpoints=stale)
            )
    return resources


def settled(resources: Resources, named: Iterable[str]) -> Resources:
    """Return the resources once a call that named some of them is done."""
    for key in named:
        resource = resources.get(key)
        if resource is not None:
            resources = resources.set(key, replace(resource, count=resource.count + 1))
    return resources


def evolve(resources: Resources, event: events.ResourceEvent, seq: int) -> Resources:
    """Return the resources after one of their own events."""
    known = resources.get(event.key)
    match event:
        case events.ResourceRegistered():
            if known is not None:
                changed = replace(
                    known, every_steps=event.every_steps, on_completion=event.on_completion
                )
            else:
                changed = Resource(
                    event.key,
                    event.driver_id,
                    event.configuration,
                    event.coverage_reuse,
                    event.every_steps,
                    event.on_completion,
                    registered_seq=seq,
                )
            return resources.set(event.key, changed)
        case events.ResourceCheckpointFailed():
            return resources
    assert known is not None, "the command was checked against the registered keys"
    match event:
        case events.ResourceInitialized():
            return resources.set(
                event.key,
                replace(
                    known,
                    generation=event.generation,
                    checkpoint_ref=event.checkpoint_ref,
                    binding=None,
                ),
            )
        case events.ResourceBound():
            return resources.set(event.key, replace(known, binding=event.binding))
        case events.ResourceCheckpointed():
            saved = Checkpoint(event.generation, event.checkpoint_ref, event.covered_seq)
            return resources.set(event.key, replace(known, checkpoints=(*known.checkpoints, saved)))
