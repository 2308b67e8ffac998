"""Identity: canonical JSON, hash of arguments, step id (protocol section 3)."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.wire.words import JSON_BYTES_MAX, JSON_DEPTH_MAX
from proctor_kernel.core import event_json, events, identity
from proctor_kernel.core.identity import JsonRefused

VECTORS = json.loads((Path(__file__).parent / "identity_vectors.json").read_text())

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
documents = st.recursive(
    scalars | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "vector", [pytest.param(each, id=f"{each['target']}-{n}") for n, each in enumerate(VECTORS)]
)
def test_the_protocols_vectors_give_its_hashes_and_step_ids(vector: dict[str, Any]) -> None:
    canonical = identity.canonical(vector["args"])
    hashed = identity.args_hash(canonical)

    assert canonical == vector["canonical"]
    assert hashed == vector["args_hash"]
    assert vector["step_id"] == identity.step_id(
        execution_id=vector["execution_id"],
        kind=vector["kind"],
        target=vector["target"],
        hash_of_args=hashed,
        occurrence=vector["occurrence"],
    )


@pytest.mark.parametrize(
    ("occurrence", "expected"),
    [
        (0, "6f2aee33b66529e69b721cc4a4e47b7526f852c07252efe0ec46bb5651182870"),
        (1, "3b23ac429d6241fe37370239aea3e88dfdf77950246e758e8a3ef7a0c3bcb018"),
    ],
)
def test_occurrences_of_a_call_have_ids_of_their_own(occurrence: int, expected: str) -> None:
    assert expected == identity.step_id(
        execution_id="018ff0a0-0000-7000-8000-000000000001",
        kind="tool_call",
        target="read",
        hash_of_args="hash1",
        occurrence=occurrence,
    )


def shuffled(value: Any, draw: Any) -> Any:
    if isinstance(value, dict):
        keys = draw(st.permutations(list(value)))
        return {key: shuffled(value[key], draw) for key in keys}
    if isinstance(value, list):
        return [shuffled(item, draw) for item in value]
    return value


@given(documents, st.data())
def test_order_of_keys_and_white_space_do_not_change_the_canonical_form(
    value: Any, data: Any
) -> None:
    plain = identity.canonical(json.dumps(value))
    other = identity.canonical(json.dumps(shuffled(value, data.draw), indent=2, ensure_ascii=False))

    assert plain == other


@given(documents)
def test_the_canonical_form_means_the_same_and_is_its_own_canonical_form(value: Any) -> None:
    canonical = identity.canonical(json.dumps(value))

    assert json.loads(canonical) == json.loads(json.dumps(value))
    assert identity.canonical(canonical) == canonical


@given(st.text() | st.text(alphabet='[]{}",:0123456789.eE+-truefalsnNI\\ud8 ', max_size=60))
def test_any_text_is_canonical_json_or_refused(text: str) -> None:
    for door in (identity.canonical, identity.checked):
        try:
            accepted = door(text)
        except JsonRefused:
            continue
        json.loads(accepted, parse_int=Decimal)
        accepted.encode()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("NaN", id="nan"),
        pytest.param('{"a":Infinity}', id="infinity"),
        pytest.param("[-Infinity]", id="minus infinity"),
        pytest.param("", id="nothing"),
        pytest.param('{"a":1}{"b":2}', id="two documents"),
        pytest.param("{'a':1}", id="single quotes"),
        pytest.param("[" * 200 + "]" * 200, id="a little too deep"),
        pytest.param("[" * 100_000 + "]" * 100_000, id="far too deep"),
        pytest.param('{"a":' * 200 + "1" + "}" * 200, id="objects too deep"),
        pytest.param('"' + "a" * JSON_BYTES_MAX + '"', id="too large"),
        pytest.param('"' + "é" * (JSON_BYTES_MAX // 2) + '"', id="too many bytes"),
        pytest.param("\ufeff{}", id="byte order mark"),
    ],
)
def test_what_is_not_json_or_too_much_of_it_is_refused(text: str) -> None:
    for door in (identity.canonical, identity.checked):
        with pytest.raises(JsonRefused):
            door(text)


@pytest.mark.parametrize("text", ["[" * JSON_DEPTH_MAX + "]" * JSON_DEPTH_MAX, "9" * 5000])
def test_what_is_within_the_limits_is_accepted(text: str) -> None:
    assert identity.canonical(text) == text
    assert identity.checked(text) == text


def test_brackets_inside_of_strings_are_not_nesting() -> None:
    text = json.dumps(["[" * 500, {"{": '\\"' + "{" * 500}])

    assert identity.checked(text) == text


def test_numbers_keep_the_literal_they_were_sent_as() -> None:
    assert identity.canonical("[1.0, 1, 1e999999999, -0, 1.50]") == "[1.0,1,1e999999999,-0,1.50]"


@given(st.text())
def test_a_storable_name_can_be_stored_anywhere(name: str) -> None:
    stored = identity.storable(name)

    assert "\0" not in stored
    stored.encode()


@settings(max_examples=200)
@given(documents)
def test_a_checked_document_reads_back_from_a_payload_to_the_letter(value: Any) -> None:
    text = identity.checked("  " + json.dumps(value, indent=1) + "\n")
    payload = event_json.to_json(events.StepSucceeded("s", text))

    assert event_json.from_json("step.succeeded", payload) == events.StepSucceeded("s", text)
    json.loads(payload)
