"""Tools and steps: what they take, what they record, what they give back (protocol 10.4)."""

import asyncio
import functools
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel
from tests.sdk.conftest import Play

from proctor import PolicyError, ToolError, define_tool, step, tool, wrap_tool
from proctor.tools import input_schema


class Filter(BaseModel):
    field: str
    at_most: int = 5


async def test_every_way_to_write_tool_records_under_its_id(play: Play) -> None:
    @tool
    async def bare(n: int) -> int:
        return n

    @tool()
    def called(n: int) -> int:
        return n + 1

    @tool("with-id", idempotency="at_most_once")
    async def named(n: int) -> int:
        return n + 2

    async def handler(_: Any) -> list[int]:
        return [await bare(1), await called(n=1), await named(1)]

    ended, steps = await play(handler)

    assert ended.output == [1, 2, 3]
    assert [(each.target, each.idempotency) for each in steps] == [
        ("bare", "safe_to_retry"),
        ("called", "safe_to_retry"),
        ("with-id", "at_most_once"),
    ]


async def test_bound_arguments_with_defaults_are_what_is_judged_and_recorded(play: Play) -> None:
    @tool
    def look(query: str, /, *more: str, filter: Filter, limit: int = 10, **rest: int) -> str:
        return f"{query} {more} {filter.at_most} {limit} {rest}"

    async def handler(_: Any) -> str:
        return await look("a", "b", "c", filter=Filter(field="f"), page=2)

    ended, (recorded,) = await play(handler)

    assert ended.output == "a ('b', 'c') 5 10 {'page': 2}"
    assert recorded.args == {
        "query": "a",
        "more": ["b", "c"],
        "filter": {"field": "f", "at_most": 5},
        "limit": 10,
        "page": 2,
    }


async def test_wrong_arguments_raise_as_they_would_without_us(play: Play) -> None:
    @tool
    def look(query: str) -> str:
        return query

    async def handler(_: Any) -> str:
        with pytest.raises(TypeError, match="query"):
            await look()  # type: ignore[call-arg]
        return "ok"

    ended, steps = await play(handler)

    assert (ended.output, steps) == ("ok", [])


async def test_a_live_value_is_what_a_replay_would_give(play: Play) -> None:
    @tool
    def pair() -> tuple[int, Filter]:
        return 1, Filter(field="f")

    async def handler(_: Any) -> Any:
        value: Any = await pair()
        assert value == [1, {"field": "f", "at_most": 5}]
        return value

    ended, _ = await play(handler)

    assert ended.status == "completed", ended.failure_reason


def test_a_tool_looks_to_frameworks_like_its_function() -> None:
    @tool
    async def search(query: str, limit: int = 3) -> list[str]:
        """Search the archive."""
        return [query]

    assert inspect.iscoroutinefunction(search)
    assert search.__name__ == "search"
    assert search.__doc__ == "Search the archive."
    assert list(inspect.signature(search).parameters) == ["query", "limit"]
    # A refusal is text, whatever the function returns; frameworks hold results to the annotation.
    assert get_type_hints(search) == {"query": str, "limit": int, "return": Any}
    assert inspect.signature(search).return_annotation is Any


class Shop:
    def buy(self, what: str) -> str:
        return f"bought {what}"


async def test_a_bound_method_can_be_governed(play: Play) -> None:
    buy = tool(Shop().buy)

    async def handler(_: Any) -> str:
        return await buy("tea")

    ended, (recorded,) = await play(handler)

    assert ended.output == "bought tea"
    assert recorded.args == {"what": "tea"}


def numbers() -> Any:
    yield 1


async def async_numbers() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        pytest.param(Shop, "not <class", id="class"),
        pytest.param(Shop.buy, "govern the bound one", id="method"),
        pytest.param(numbers, "generator", id="generator"),
        pytest.param(async_numbers, "generator", id="async generator"),
        pytest.param(lambda: 1, "has no name", id="lambda"),
        pytest.param(functools.partial(print, "a"), "has no name", id="partial"),
        pytest.param(5, "governs functions", id="number"),
    ],
)
def test_what_cannot_be_governed_says_what_to_do(wrong: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        tool(wrong)


def test_words_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="'at_most_once', not 'once'"):
        tool(idempotency="once")
    with pytest.raises(ValueError, match="empty"):
        tool("")
    with pytest.raises(ValueError, match="empty"):
        wrap_tool("", lambda args: None)
    with pytest.raises(TypeError, match="execute"):
        define_tool(name="a", execute=None)  # type: ignore[arg-type]


async def test_define_tool_takes_a_schema_and_a_function(play: Play) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "a-b": {}},
        "required": ["city"],
    }
    weather = define_tool(
        name="weather",
        description="Tell the weather.",
        input_schema=schema,
        execute=lambda city, days=1: f"{city} {days}",
    )

    async def handler(_: Any) -> list[str]:
        return [await weather(city="Rome"), await weather(city="Oslo", days=3)]

    ended, steps = await play(handler)

    assert ended.output == ["Rome 1", "Oslo 3"]
    assert steps[0].args == {"city": "Rome"}
    assert (weather.__name__, weather.__doc__) == ("weather", "Tell the weather.")
    assert vars(weather)["__input_schema__"] == schema
    parameters = inspect.signature(weather).parameters
    assert list(parameters) == ["city", "days", "extra"]
    assert parameters["city"].annotation is str
    assert parameters["days"].annotation == int | None
    assert get_type_hints(weather)["city"] is str


async def test_wrap_tool_records_transformed_arguments_and_results(play: Play) -> None:
    given: list[dict[str, Any]] = []

    async def invoke(args: dict[str, Any]) -> bytes:
        given.append(args)
        return b"page"

    fetch = wrap_tool(
        "fetch",
        invoke,
        args_schema=Filter,
        idempotency="at_most_once",
        transform_args=lambda args: {**args, "field": args["field"].strip()},
        to_result=bytes.decode,
    )

    async def handler(_: Any) -> str:
        return await fetch(field=" f ")

    ended, (recorded,) = await play(handler)

    assert ended.output == recorded.result == "page"
    assert given == [{"field": "f"}]
    assert recorded.args == {"field": "f"}
    assert recorded.idempotency == "at_most_once"
    assert list(inspect.signature(fetch).parameters) == ["field", "at_most"]


async def test_a_step_takes_arguments_and_raises_what_its_body_raised(play: Play) -> None:
    def divide(a: int, b: int) -> float:
        return a / b

    async def handler(_: Any) -> list[Any]:
        with pytest.raises(ToolError, match="division by zero") as caught:
            await step("divide", divide, {"a": 1, "b": 0})
        with pytest.raises(ValueError, match="empty"):
            await step("", divide)
        return [await step("divide", divide, args={"a": 4, "b": 2}), caught.value.tool_id]

    ended, steps = await play(handler)

    assert ended.output == [2.0, "divide"]
    assert [(each.kind, each.args, each.status) for each in steps] == [
        ("local", {"a": 1, "b": 0}, "failed"),
        ("local", {"a": 4, "b": 2}, "succeeded"),
    ]


async def test_a_refusal_inside_of_a_body_is_not_the_answer_of_the_tool_around_it(
    play: Play,
) -> None:
    @tool
    async def outer() -> str:
        return await step("inner", lambda: "secret")

    async def handler(_: Any) -> str:
        try:
            return await outer()
        except PolicyError as error:
            return f"{error.rule_id}: {error}"

    ended, steps = await play(
        handler,
        '@id("no-inner") @reason("not this")\n'
        'forbid (principal, action, resource == Local::"inner");',
    )

    assert ended.output == "no-inner: not this"
    assert [(each.target, each.status) for each in steps] == [
        ("outer", "failed"),
        ("inner", "denied"),
    ]


async def test_a_tool_can_call_a_tool(play: Play) -> None:
    @tool
    async def inner(n: int) -> int:
        return n * 2

    @tool
    async def outer(n: int) -> int:
        return await inner(n) + 1

    async def handler(_: Any) -> int:
        return await outer(4)

    ended, steps = await play(handler)

    assert ended.output == 9
    assert [each.target for each in steps] == ["outer", "inner"]


async def test_giving_up_on_a_call_leaves_nothing_executing(play: Play) -> None:
    stopped: list[str] = []

    @tool
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("slow")
            raise

    async def handler(_: Any) -> str:
        try:
            async with asyncio.timeout(0.02):
                await slow()
        except TimeoutError:
            return "gave up"
        return "not reached"

    ended, (given_up,) = await play(handler)

    assert ended.output == "gave up"
    assert stopped == ["slow"]
    assert given_up.status == "failed"
    assert given_up.error["reason"] == "cancelled"


async def test_giving_up_before_the_answer_came_leaves_nothing_executing(play: Play) -> None:
    ran: list[int] = []

    @tool
    async def quick(n: int) -> int:
        ran.append(n)
        return n

    async def handler(_: Any) -> str:
        for turns in range(12):
            call = asyncio.ensure_future(quick(turns))
            for _turn in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        return "done"

    ended, steps = await play(handler)

    assert ended.output == "done"
    assert {each.status for each in steps} <= {"failed", "succeeded"}
    assert len(ran) == len(set(ran))


async def test_a_blocking_body_runs_in_a_thread_and_sees_its_run(play: Play) -> None:
    from proctor import execution

    @tool
    def where() -> list[Any]:
        return [execution().agent_id, threading.current_thread() is threading.main_thread()]

    async def handler(_: Any) -> list[Any]:
        return await where()

    ended, _ = await play(handler)

    assert ended.output == ["tester", False]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: tool(Shop().buy)("tea"), id="tool"),
        pytest.param(lambda: step("now", lambda: 1), id="step"),
        pytest.param(lambda: wrap_tool("w", lambda args: 1)(), id="wrapped"),
    ],
)
async def test_outside_of_a_run_nothing_is_called(call: Any) -> None:
    with pytest.raises(RuntimeError, match=r"client\.create"):
        await call()


def test_the_schema_of_a_tool_is_its_signatures_or_the_one_it_was_given() -> None:
    @tool
    def pay(to: str, amount: float = 1.0, *, lines: list[int], **more: Any) -> str:
        return to

    given = {"type": "object", "properties": {"a": {"type": "string"}}}
    schema = input_schema(pay)

    assert schema["properties"] == {
        "to": {"type": "string"},
        "amount": {"type": "number"},
        "lines": {"type": "array", "items": {"type": "integer"}},
    }
    assert schema["required"] == ["to", "lines"]
    assert schema["additionalProperties"] is True
    assert input_schema(wrap_tool("w", lambda args: 1, args_schema=given)) == given


TYPED = """
from proctor import tool

@tool
async def a(query: str, limit: int = 1) -> list[str]: return []
@tool("id")
def b(n: int) -> float: return 1.0

async def main() -> None:
    hits: list[str] | str = await a("x", limit=2)
    ratio: float | str = await b(1)
    await a(5)
    await b("x")
    wrong: int = await a("x")
"""


def test_type_checkers_see_through_a_tool(tmp_path: Path) -> None:
    program = tmp_path / "typed.py"
    program.write_text(TYPED)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )

    assert [
        line.split(": error: ")[0].rsplit(":", 1)[-1]
        for line in done.stdout.splitlines()
        if ": error: " in line
    ] == ["12", "13", "14"], done.stdout
