"""FastMCP: governed functions as the tools of an MCP server, and a client that calls them.

python -m examples.fastmcp_agent
"""

import asyncio

import fastmcp
from examples import shop

from proctor import Agent

server = fastmcp.FastMCP("shop", tools=shop.TOOLS)
agent = Agent("fastmcp", tools=shop.TOOLS)


@agent.handler
async def work(request: str) -> str:
    """Let the model work on a request; here it is a loop, since MCP leaves the model to others."""
    results: list[str] = []
    # Opened in the handler, so that the calls belong to this run.
    async with fastmcp.Client(server) as client:
        while not isinstance(turn := shop.next_turn(results), str):
            answers = await asyncio.gather(*(client.call_tool(*call) for call in turn))
            results += [answer.content[0].text for answer in answers]
    return turn


if __name__ == "__main__":
    asyncio.run(shop.tell(agent))
