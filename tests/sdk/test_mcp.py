"""Tools of real MCP servers, in process and over stdio, behind the rules."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent
from tests.sdk.conftest import Play

from proctor import ToolError, wrap_mcp_tool, wrap_mcp_tools


def server() -> MCPServer:
    made = MCPServer("shop")
    calls: list[str] = []

    @made.tool()
    def add(a: int, b: int | None = None) -> int:
        """Add two numbers."""
        return a + (b or 0)

    @made.tool()
    def fail() -> str:
        raise ValueError("out of stock")

    @made.tool()
    def buy(what: str) -> str:
        calls.append(what)
        return f"bought {what} ({len(calls)})"

    return made


async def test_the_tools_of_a_server_are_governed_tools(play: Play) -> None:
    async with Client(server()) as session:
        listed = (await session.list_tools()).tools
        tools = {
            each.__name__: each
            for each in wrap_mcp_tools(
                listed,
                call=session.call_tool,
                prefix="shop",
                idempotency={"buy": "at_most_once"},
            )
        }

        async def handler(_: Any) -> list[Any]:
            return [
                await tools["shop_add"](a=2, b=None),
                await tools["shop_buy"](what="tea"),
                await tools["shop_buy"](what="gold"),
            ]

        ended, steps = await play(
            handler,
            '@id("no-gold") @reason("gold is too dear")\n'
            'forbid (principal, action == Action::"shop_buy", resource)\n'
            'when { context.input.what == "gold" };',
        )

    assert ended.output == [
        {"result": 2},
        {"result": "bought tea (1)"},
        "shop_buy not allowed. reason: gold is too dear",
    ]
    assert steps[0].args == {"a": 2}
    assert [each.idempotency for each in steps] == [
        "safe_to_retry",
        "at_most_once",
        "at_most_once",
    ]
    assert tools["shop_add"].__doc__ == "Add two numbers."


async def test_an_error_of_the_server_fails_the_step(play: Play) -> None:
    async with Client(server()) as session:
        listed = {each.name: each for each in (await session.list_tools()).tools}
        fail = wrap_mcp_tool(listed["fail"], call=session.call_tool)

        async def handler(_: Any) -> str:
            with pytest.raises(ToolError) as caught:
                await fail()
            return str(caught.value)

        ended, (failed,) = await play(handler)

    assert "fail" in ended.output
    assert failed.status == "failed"
    assert failed.error == {"message": ended.output}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made = tmp_path / "repository"
    subprocess.run(["git", "init", "-q", str(made)], check=True)
    return made


async def test_an_official_server_over_stdio(play: Play, repository: Path) -> None:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "mcp_server_git", "--repository", str(repository)]
    )
    async with Client(parameters) as session:
        tools = {
            each.__name__: each
            for each in wrap_mcp_tools((await session.list_tools()).tools, call=session.call_tool)
        }

        async def handler(_: Any) -> list[Any]:
            return [
                await tools["git_status"](repo_path=str(repository)),
                await tools["git_reset"](repo_path=str(repository)),
            ]

        ended, _steps = await play(
            handler,
            '@id("no-reset") @reason("look, do not touch")\n'
            'forbid (principal, action == Action::"git_reset", resource);',
        )

    assert "No commits yet" in ended.output[0]
    assert ended.output[1] == "git_reset not allowed. reason: look, do not touch"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"structuredContent": {"a": 1}, "content": [{"type": "text", "text": "x"}]}, {"a": 1}),
        ({"content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}, "x\ny"),
        ({"content": [{"type": "image", "data": "…"}, {"type": "text", "text": "y"}]}, "y"),
        ({"content": []}, ""),
    ],
    ids=["structured first", "text joined", "other blocks left out", "nothing"],
)
async def test_a_result_is_its_structured_content_or_its_text(
    play: Play, result: dict[str, Any], expected: Any
) -> None:
    async def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return result

    wrapped = wrap_mcp_tool({"name": "t", "inputSchema": {"type": "object"}}, call=call)

    async def handler(_: Any) -> Any:
        return await wrapped()

    ended, _ = await play(handler)

    assert ended.output == expected


async def test_fastmcp_in_the_same_process_changes_nothing(play: Play) -> None:
    # Importing it makes the old names of what is in a result warn, and warnings are errors here.
    importlib.import_module("fastmcp")
    result = CallToolResult(content=[TextContent(type="text", text="x")])

    async def call(name: str, arguments: dict[str, Any]) -> CallToolResult:
        return result

    wrapped = wrap_mcp_tool({"name": "t", "inputSchema": {"type": "object"}}, call=call)

    async def handler(_: Any) -> Any:
        return await wrapped()

    ended, _ = await play(handler)

    assert ended.output == "x"


def test_a_mapping_that_names_no_tool_of_the_server_is_refused() -> None:
    async def call(name: str, arguments: dict[str, Any]) -> None: ...

    with pytest.raises(ValueError, match="'bye'"):
        wrap_mcp_tools([{"name": "buy"}], call=call, idempotency={"bye": "at_most_once"})
    with pytest.raises(TypeError, match="without a name"):
        wrap_mcp_tool({"description": "x"}, call=call)
