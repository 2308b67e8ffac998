"""What an agent says of the resources it holds: registered, bound, saved (protocol 1.3, 4.7)."""

from typing import assert_never

from proctor.wire.words import ErrorCode
from proctor_kernel.core import events, identity, replies, resources
from proctor_kernel.core.commands import (
    BindResource,
    Done,
    Outcome,
    PublishCheckpoints,
    Registered,
    RegisterResource,
    Rejected,
)
from proctor_kernel.core.resources import Resource
from proctor_kernel.core.settle import writing
from proctor_kernel.core.state import State

Holding = RegisterResource | BindResource | PublishCheckpoints


def decide(state: State, command: Holding) -> Outcome:
    """Return what becomes of a resource."""
    barred = replies.barred(state, command.lease)
    if barred is not None:
        return replies.unchanged(barred)
    match command:
        case RegisterResource():
            return _register(state, command)
        case BindResource():
            return _bind(state, command)
        case PublishCheckpoints():
            happened = resources.captured(
                state.resources,
                command.captures,
                command.capture_failures,
                covered_seq=state.seq,
                writing=writing(state),
            )
            return replies.outcome(Done(), *happened)
        case _:
            assert_never(command)


def _register(state: State, command: RegisterResource) -> Outcome:
    every_steps = command.every_steps
    on_completion = command.on_completion and every_steps > 0
    asked = Resource(
        command.key,
        command.driver_id,
        command.configuration,
        command.coverage_reuse,
        every_steps,
        on_completion,
        registered_seq=state.seq + 1,
    )
    known = state.resources.get(command.key)
    if known is None:
        return replies.outcome(Registered(asked), resources.registered(asked))
    for what, here, there in (
        ("driver_id", known.driver_id, asked.driver_id),
        ("configuration", _same(known.configuration), _same(asked.configuration)),
        ("coverage_reuse", known.coverage_reuse, asked.coverage_reuse),
    ):
        if here != there:
            return replies.unchanged(
                Rejected(
                    ErrorCode.CONFLICT,
                    f"resource {command.key!r} is registered with another {what}",
                )
            )
    if known.every_steps == 0 and every_steps > 0:
        # Its place in the log stays the one where it was first registered.
        return replies.outcome(
            Registered(resources.enabled(known, every_steps, on_completion)),
            resources.registered(asked),
        )
    return replies.unchanged(Registered(known))


def _bind(state: State, command: BindResource) -> Outcome:
    known = state.resources.get(command.key)
    if known is None:
        return replies.unchanged(
            Rejected(ErrorCode.NOT_FOUND, f"no resource {command.key!r} is registered")
        )
    if known.binding is None:
        return replies.outcome(Done(), events.ResourceBound(command.key, command.binding))
    if _same(known.binding) == _same(command.binding):
        return replies.unchanged(Done())
    return replies.unchanged(
        Rejected(ErrorCode.CONFLICT, f"resource {command.key!r} is bound to something else")
    )


def _same(document: identity.Json) -> identity.Json:
    return identity.canonical(document)
