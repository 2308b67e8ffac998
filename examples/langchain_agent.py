"""LangChain: governed tools in `create_agent`, which is a LangGraph.

python -m examples.langchain_agent
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from examples import shop
from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatResult

from proctor import Agent


class PlayedModel(GenericFakeChatModel):
    """LangChain's fake model, playing the plan: put `ChatAnthropic(...)` in its place."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> "PlayedModel":
        """Take the tools, which the plan knows already."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        results = [str(each.content) for each in messages if isinstance(each, ToolMessage)]
        self.messages = iter([as_message(shop.next_turn(results))])
        return super()._generate(messages, *args, **kwargs)


def as_message(turn: shop.Turn) -> AIMessage:
    """Return what LangChain makes of an answer of a model."""
    if isinstance(turn, str):
        return AIMessage(turn)
    calls = [{"name": name, "args": args, "id": f"call-{name}"} for name, args in turn]
    return AIMessage("", tool_calls=calls)


nothing: Iterator[AIMessage] = iter(())
agent = Agent("langchain", tools=shop.TOOLS)


@agent.handler
async def work(request: str) -> str:
    """Let the model work on a request."""
    graph = create_agent(PlayedModel(messages=nothing), tools=list(shop.TOOLS))
    answer = await graph.ainvoke({"messages": [HumanMessage(request)]})
    return str(answer["messages"][-1].content)


if __name__ == "__main__":
    asyncio.run(shop.tell(agent))
