"""User values as JSON: exactly, or a TypeError that says where."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from proctor import encode
from proctor.wire.words import JSON_BYTES_MAX, JSON_DEPTH_MAX


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Page(BaseModel):
    url: str
    seen: datetime | None = None
    inner: "Page | None" = None


@dataclass
class Point:
    x: float
    y: float


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param((1, "a"), [1, "a"], id="tuple"),
        pytest.param(Colour.RED, "red", id="enum"),
        pytest.param(Level.HIGH, 3, id="int enum"),
        pytest.param(datetime(2026, 12, 1, tzinfo=UTC), "2026-12-01T00:00:00Z", id="datetime"),
        pytest.param(date(2026, 12, 1), "2026-12-01", id="date"),
        pytest.param(UUID(int=1), "00000000-0000-0000-0000-000000000001", id="uuid"),
        pytest.param(Path("a/b"), "a/b", id="path"),
        pytest.param(Decimal("1.50"), "1.50", id="decimal"),
        pytest.param(Point(1.5, 2), {"x": 1.5, "y": 2}, id="dataclass"),
        pytest.param(
            Page(url="u", inner=Page(url="v")),
            {"url": "u", "seen": None, "inner": {"url": "v", "seen": None, "inner": None}},
            id="model",
        ),
        pytest.param(10**30, 10**30, id="large integer"),
    ],
)
def test_what_frameworks_hand_over_becomes_json(value: Any, expected: Any) -> None:
    assert json.loads(encode.to_json(value, "it")) == expected


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(math.nan, id="nan"),
        pytest.param([{"a": math.inf}], id="nested infinity"),
        pytest.param(Point(math.nan, 1), id="nan in a dataclass"),
        pytest.param(Page.model_construct(url=math.nan), id="nan in a model"),
        pytest.param({1, 2}, id="set"),
        pytest.param(frozenset(), id="frozenset"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param(object(), id="object"),
        pytest.param({1: "a"}, id="integer key"),
        pytest.param({None: "a"}, id="none key"),
        pytest.param((each for each in [1]), id="generator"),
        pytest.param("\ud800", id="surrogate"),
        pytest.param({"\ud800": 1}, id="surrogate key"),
        pytest.param(nested(JSON_DEPTH_MAX + 1), id="too deep"),
        pytest.param(nested(100_000), id="far too deep"),
        pytest.param("a" * JSON_BYTES_MAX, id="too large"),
        pytest.param(10**5000, id="thousands of digits"),
        pytest.param(Page, id="class"),
        pytest.param(print, id="function"),
        pytest.param(1j, id="complex"),
    ],
)
def test_what_json_cannot_carry_is_a_type_error_that_names_it(value: Any) -> None:
    with pytest.raises(TypeError, match="argument 'amount' of pay"):
        encode.args_to_json({"amount": value}, "pay")


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)

    with pytest.raises(TypeError, match="deeper"):
        encode.to_json(value, "it")


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=15,
    )
)
def test_json_values_come_through_unchanged(value: Any) -> None:
    assert json.loads(encode.to_json(value, "it")) == value
