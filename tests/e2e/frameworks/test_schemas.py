"""What a framework shows of a tool to the model is what it would show of the bare function."""

from __future__ import annotations  # the harder case: every annotation is text

import asyncio
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import agents
import anthropic
import fastmcp
import pydantic_ai
import pytest
from examples import shop
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, Field

from proctor import tool


class Place(BaseModel):
    """Where to look."""

    shelf: str
    rows: list[int] = [1]


async def search(
    query: str,
    within: Place,
    order: Literal["new", "old"] = "new",
    limit: Annotated[int, Field(ge=1, le=50, description="how many")] = 10,
    language: str | None = None,
) -> list[Place]:
    """Search the archive.

    Args:
        query: What to look for.
        within: Where to look for it.
        order: Which come first.
    """
    raise NotImplementedError


def count(shelf: str, places: list[Place] | None = None) -> int:
    """Count what is on a shelf.

    Args:
        shelf: The shelf.
        places: Where on it.
    """
    raise NotImplementedError


def ping() -> bool:
    """Say whether the archive is there."""
    raise NotImplementedError


def langchain(function: Callable[..., Any]) -> Any:
    is_async = inspect.iscoroutinefunction(function)
    made = StructuredTool.from_function(
        func=None if is_async else function,
        coroutine=function if is_async else None,
        parse_docstring="Args:" in (function.__doc__ or ""),  # it refuses one without
    )
    return convert_to_openai_tool(made)


def openai_agents(function: Callable[..., Any]) -> Any:
    made = agents.function_tool(function)
    return made.name, made.description, made.params_json_schema, made.strict_json_schema


def pydantic_ai_tool(function: Callable[..., Any]) -> Any:
    made = pydantic_ai.Tool(function).tool_def
    return made.name, made.description, made.parameters_json_schema


def anthropic_tool(function: Callable[..., Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return anthropic.beta_async_tool(function).to_dict()
    return anthropic.beta_tool(function).to_dict()


def fastmcp_tool(function: Callable[..., Any]) -> Any:
    async def listed() -> Any:
        async with fastmcp.Client(fastmcp.FastMCP("archive", tools=[function])) as client:
            (made,) = await client.list_tools()
            return made.name, made.description, made.input_schema

    return asyncio.run(listed())


@pytest.mark.parametrize(
    "shown", [langchain, openai_agents, pydantic_ai_tool, anthropic_tool, fastmcp_tool]
)
@pytest.mark.parametrize(
    "function",
    [search, count, ping, *(inspect.unwrap(each) for each in shop.TOOLS)],
    ids=lambda function: function.__name__,
)
def test_a_tool_is_shown_to_the_model_as_its_function_would_be(
    shown: Callable[[Any], Any], function: Callable[..., Any]
) -> None:
    assert shown(tool(function)) == shown(function)
