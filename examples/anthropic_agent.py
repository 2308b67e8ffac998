"""Anthropic's SDK: governed functions through `beta_async_tool`, run by its tool runner.

python -m examples.anthropic_agent
"""

import asyncio
import json
from typing import Any

import anthropic
import httpx2
from examples import shop

from proctor import Agent


def play(request: httpx2.Request) -> httpx2.Response:
    """Answer as the Messages API would: the next turn of the plan."""
    blocks = [
        block
        for message in json.loads(request.content)["messages"]
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    turn = shop.next_turn([text(each) for each in blocks if each["type"] == "tool_result"])
    content: list[dict[str, Any]] = [{"type": "text", "text": turn}]
    if not isinstance(turn, str):
        content = [
            {"type": "tool_use", "id": f"call-{name}", "name": name, "input": args}
            for name, args in turn
        ]
    message = {"id": "message", "type": "message", "role": "assistant", "model": "played"}
    usage = {"input_tokens": 1, "output_tokens": 1}
    stopped = "end_turn" if isinstance(turn, str) else "tool_use"
    return httpx2.Response(
        200, json={**message, "content": content, "usage": usage, "stop_reason": stopped}
    )


def text(block: dict[str, Any]) -> str:
    """Return what a tool result says."""
    content = block["content"]
    return content if isinstance(content, str) else "".join(each["text"] for each in content)


agent = Agent("anthropic", tools=shop.TOOLS)


@agent.handler
async def work(request: str) -> str:
    """Let the model work on a request."""
    # No network: leave http_client out, and give a real key, for the real model.
    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(play))
    async with anthropic.AsyncAnthropic(api_key="none", http_client=http_client) as client:
        runner = client.beta.messages.tool_runner(
            model="played",
            max_tokens=1024,
            messages=[{"role": "user", "content": request}],
            tools=[anthropic.beta_async_tool(each) for each in shop.TOOLS],
            thread=False,  # each request has the whole conversation, so that it can be repeated
        )
        answer = await runner.until_done()
    return "".join(block.text for block in answer.content if block.type == "text")


if __name__ == "__main__":
    asyncio.run(shop.tell(agent))
