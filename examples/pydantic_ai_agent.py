"""Pydantic AI: governed functions as `tools=[...]`.

python -m examples.pydantic_ai_agent
"""

import asyncio

import pydantic_ai
from examples import shop
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from proctor import Agent


def play(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Play the next turn of the plan, in Pydantic AI's words."""
    parts = [part for message in messages for part in message.parts]
    turn = shop.next_turn([str(each.content) for each in parts if isinstance(each, ToolReturnPart)])
    if isinstance(turn, str):
        return ModelResponse([TextPart(turn)])
    return ModelResponse([ToolCallPart(name, args) for name, args in turn])


# The framework's model for tests: name a real one in its place.
clerk = pydantic_ai.Agent(FunctionModel(play), tools=shop.TOOLS)
agent = Agent("pydantic-ai", tools=shop.TOOLS)


@agent.handler
async def work(request: str) -> str:
    """Let the model work on a request."""
    return str((await clerk.run(request)).output)


if __name__ == "__main__":
    asyncio.run(shop.tell(agent))
