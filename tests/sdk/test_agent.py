"""An agent's handler gets its input in one of three shapes (protocol 10.2)."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

import proctor
from proctor import Agent
from proctor.agent import InputInvalid, bind_input


class Question(BaseModel):
    text: str
    depth: int = 1


def model(question: Question) -> None: ...
def plain(input): ...  # type: ignore[no-untyped-def]  # without annotation on purpose
def anything(input: Any) -> None: ...
def a_dict(input: dict) -> None: ...  # type: ignore[type-arg]  # exactly `dict`
def fields(question: str, depth: int = 3) -> None: ...
def one_field(question: dict[str, Any]) -> None: ...
def nothing() -> None: ...
def positional(question: str, /, depth: int = 3) -> None: ...
def gathering(question: str, *rest: Any, **more: Any) -> None: ...
def unresolved(input: "NoSuchThing", other: int = 1) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("handler", "value", "args", "kwargs"),
    [
        (model, {"text": "a"}, (Question(text="a"),), {}),
        (plain, [1, 2], ([1, 2],), {}),
        (anything, None, (None,), {}),
        (a_dict, {"a": 1}, ({"a": 1},), {}),
        (fields, {"question": "a", "extra": 1}, (), {"question": "a"}),
        (fields, {"question": "a", "depth": 9}, (), {"question": "a", "depth": 9}),
        (one_field, {"question": {"a": 1}}, (), {"question": {"a": 1}}),
        (nothing, {"a": 1}, (), {}),
        (nothing, None, (), {}),
        (positional, {"question": "a"}, ("a",), {}),
        (gathering, {"question": "a", "more": 1}, (), {"question": "a"}),
        (unresolved, {"input": 1}, (), {"input": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", repr(value)),
)
def test_input_is_bound_by_the_signature(
    handler: Callable[..., Any], value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert bind_input(handler, value) == (args, kwargs)


@pytest.mark.parametrize(
    ("handler", "value", "why"),
    [
        (fields, {}, "missing required input fields: question"),
        (fields, "text", "missing required input fields: question"),
        (one_field, None, "missing required input fields: question"),
        (model, {}, "text"),
        (model, "not an object", "text"),
        (model, {"text": "a", "depth": "deep"}, "depth"),
    ],
    ids=["none", "text", "null", "model empty", "model text", "model type"],
)
def test_input_that_does_not_fit_says_what_is_missing(
    handler: Callable[..., Any], value: Any, why: str
) -> None:
    with pytest.raises(InputInvalid, match=why):
        bind_input(handler, value)


def test_an_agent_has_an_id_and_one_handler() -> None:
    with pytest.raises(ValueError, match="empty"):
        Agent("")
    agent = Agent("a")
    agent.handler(nothing)
    with pytest.raises(ValueError, match="has a handler already"):
        agent.bind(nothing)
    with pytest.raises(TypeError, match="not callable"):
        Agent("b").bind(5)  # type: ignore[arg-type]


async def test_embedding_refuses_what_could_never_run(tmp_path: Any) -> None:
    def agent_of(agent_id: str) -> Agent:
        agent = Agent(agent_id)
        agent.bind(nothing)
        return agent

    for agents, why in (
        ([], "at least one"),
        ([Agent("a")], "no handler"),
        ([agent_of("a"), agent_of("a")], "two agents"),
    ):
        with pytest.raises(ValueError, match=why):
            async with proctor.embedded(
                agents=agents, rules=tmp_path, database=tmp_path / "proctor.db"
            ):
                pass
    assert not (tmp_path / "proctor.db").exists()
