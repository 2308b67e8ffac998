"""JSON into Cedar: exact or refused, never interpreted (Cedar reference, JSON form)."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor_policy import values
from proctor_policy.values import ValueRefused


def converted(text: str) -> Any:
    return values.to_cedar(values.parse(text, "it"), "it")


def decimal(text: str) -> dict[str, Any]:
    return {"__extn": {"fn": "decimal", "arg": text}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("5", 5, id="integer"),
        pytest.param("-9223372036854775808", -(2**63), id="least long"),
        pytest.param("9223372036854775807", 2**63 - 1, id="greatest long"),
        pytest.param("9223372036854775808", "9223372036854775808", id="beyond a long"),
        pytest.param("-9223372036854775809", "-9223372036854775809", id="below a long"),
        pytest.param("1" + "0" * 5000, "1" + "0" * 5000, id="thousands of digits"),
        pytest.param("500.0", decimal("500.0000"), id="whole number with a point"),
        pytest.param("1e3", decimal("1000.0000"), id="exponent"),
        pytest.param("0.0001", decimal("0.0001"), id="four places"),
        pytest.param("0.00010", decimal("0.0001"), id="trailing zero"),
        pytest.param("0.00001", "0.00001", id="five places"),
        pytest.param("0.30000000000000004", "0.30000000000000004", id="would round"),
        pytest.param("922337203685477.5807", decimal("922337203685477.5807"), id="greatest"),
        pytest.param("922337203685477.5808", "922337203685477.5808", id="beyond decimal"),
        pytest.param("1e999999999", "1e999999999", id="huge exponent"),
        pytest.param("1e-999999999", "1e-999999999", id="tiny exponent"),
        pytest.param("0e999999999", decimal("0.0"), id="zero with a huge exponent"),
        pytest.param("1." + "0" * 100, "1." + "0" * 100, id="long literal"),
        pytest.param("-0.0", decimal("0.0"), id="negative zero"),
        pytest.param('{"a":null,"b":1}', {"b": 1}, id="null is absent"),
        pytest.param('{"a":1,"a":2}', {"a": 2}, id="last of duplicate keys"),
        pytest.param('["a",1,true,[]]', ["a", 1, True, []], id="mixed array"),
        pytest.param('"\\u0000\\ud83d\\ude42"', "\0🙂", id="text"),
    ],
)
def test_a_value_becomes_exactly_itself(text: str, expected: Any) -> None:
    assert converted(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("[1,null]", "null in an array", id="null in an array"),
        pytest.param('{"__entity":{"type":"User","id":"admin"}}', "'__entity'", id="entity"),
        pytest.param('{"a":[{"__extn":{"fn":"ip","arg":"::1"}}]}', "'__extn'", id="extension"),
        pytest.param('{"__expr":"1"}', "'__expr'", id="expression"),
        pytest.param('{"__\\u0065ntity":{"type":"U","id":"a"}}', "'__entity'", id="escaped key"),
        pytest.param("NaN", "NaN", id="nan"),
        pytest.param("[Infinity]", "Infinity", id="infinity"),
        pytest.param('"\\ud800"', "surrogate", id="surrogate"),
        pytest.param('{"\\ud800":1}', "surrogate", id="surrogate key"),
        pytest.param("[" * 65 + "]" * 65, "deeper", id="too deep"),
        pytest.param("[" * 50_000, "deeper", id="far too deep"),
        pytest.param("[" + "1," * 20_000 + "1]", "more than", id="too many"),
        pytest.param('"' + "a" * 1_100_000 + '"', "longer", id="too long"),
        pytest.param("{", "not JSON", id="not json"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(ValueRefused, match=why):
        converted(text)


documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["__entity", "__extn"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text() | st.sampled_from(sorted(values.RESERVED_KEYS)), inner, max_size=4
        )
    ),
    max_leaves=20,
)


def test_a_reserved_key_without_a_value_is_as_absent_as_any() -> None:
    assert converted('{"__entity":null}') == {}


@given(documents)
def test_no_number_is_ever_rounded(value: Any) -> None:
    text = json.dumps(value)
    try:
        cedar = converted(text)
    except ValueRefused:
        return
    exact = json.loads(text, parse_float=Decimal)
    assert same(exact, cedar), (exact, cedar)


def same(exact: Any, cedar: Any) -> bool:
    match exact:
        case bool() | str():
            return bool(cedar == exact)
        case int():
            return cedar == exact or cedar == str(exact)
        case Decimal():
            if isinstance(cedar, str):
                return Decimal(cedar) == exact
            return Decimal(cedar["__extn"]["arg"]) == exact
        case list():
            return len(exact) == len(cedar) and all(map(same, exact, cedar))
        case dict():
            kept = {key: item for key, item in exact.items() if item is not None}
            return kept.keys() == cedar.keys() and all(
                same(item, cedar[key]) for key, item in kept.items()
            )
        case None:
            return cedar is None
    return False
