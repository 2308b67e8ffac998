"""Events: what is written to the log is what is read from it."""

import json
from dataclasses import fields
from enum import StrEnum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor_kernel.core import event_json, events, identity, transitions
from proctor_kernel.core.identity import Json

texts = st.text().map(identity.storable)
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).map(lambda value: identity.checked(json.dumps(value)))


def strategy_for(hint: Any) -> st.SearchStrategy[Any]:
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(
            st.none() if arg is type(None) else strategy_for(arg) for arg in get_args(hint)
        )
    if hint is Json:
        return documents
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(min_value=0)
    if hint == tuple[str, ...]:
        return st.lists(texts, max_size=3).map(tuple)
    if issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    return texts


def any_of(cls: type[events.Event]) -> st.SearchStrategy[events.Event]:
    hints = get_type_hints(cls)
    return st.builds(cls, **{each.name: strategy_for(hints[each.name]) for each in fields(cls)})


@pytest.mark.parametrize("type_name", events.TYPES)
@given(data=st.data())
def test_an_event_reads_back_as_it_was_written(type_name: str, data: Any) -> None:
    event = data.draw(any_of(events.TYPES[type_name]))
    payload = event_json.to_json(event)

    assert event_json.name(event) == type_name
    assert event_json.from_json(type_name, payload) == event
    assert isinstance(json.loads(payload), dict)


@given(st.sampled_from(sorted(events.TYPES)), st.text(max_size=40))
def test_a_payload_that_is_not_of_its_type_is_a_value_error(type_name: str, payload: str) -> None:
    try:
        event = event_json.from_json(type_name, payload)
    except ValueError:
        return
    assert event_json.from_json(type_name, event_json.to_json(event)) == event


@pytest.mark.parametrize(
    ("type_name", "payload"),
    [
        pytest.param("step.exploded", "{}", id="unknown type"),
        pytest.param("execution.failed", "{}", id="field missing"),
        pytest.param("execution.started", '{"a":1}', id="unknown field"),
        pytest.param("execution.cancelled", '{"reason":"because"}', id="unknown word"),
        pytest.param("execution.failed", '{"reason":"a"', id="cut off"),
        pytest.param("execution.failed", '{"reason":"a"}}', id="too much"),
    ],
)
def test_what_this_code_does_not_write_is_refused(type_name: str, payload: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        event_json.from_json(type_name, payload)


def test_every_event_has_a_legal_move() -> None:
    tables = (
        transitions.EXECUTION,
        transitions.STEP,
        transitions.DISPATCH,
        transitions.APPROVAL,
    )
    moves = {event for table in tables for row in table.values() for event in row}
    moveless = {events.StepRateLimited, *get_args(events.ResourceEvent)}

    assert moves == set(events.TYPES.values()) - moveless
    assert events.StepRateLimited in transitions.EXECUTION_MUST_BE


def test_terminal_states_have_no_way_out() -> None:
    assert not [status for status in transitions.EXECUTION if status and status.is_terminal]
    assert not [status for status in transitions.STEP if status and status.is_terminal]
