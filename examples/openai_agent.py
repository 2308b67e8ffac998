"""OpenAI Agents SDK: governed functions through `function_tool`.

python -m examples.openai_agent
"""

import asyncio
from typing import Any

import agents
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from examples import shop

from proctor import Agent


def play(call: ModelCall) -> list[Any]:
    """Play the next turn of the plan, in the SDK's words."""
    items = call.input if isinstance(call.input, list) else []
    turn = shop.next_turn([str(each["output"]) for each in items if "output" in each])
    if isinstance(turn, str):
        return [assistant_message(turn)]
    return [function_call(name, args, call_id=f"call-{name}") for name, args in turn]


agent = Agent("openai", tools=shop.TOOLS)


@agent.handler
async def work(request: str) -> str:
    """Let the model work on a request."""
    clerk = agents.Agent(
        name="clerk",
        # The SDK's scripted model: name a real one in its place.
        model=ScriptedModel([ModelStep.respond(play)] * len(shop.PLAN)),
        tools=[agents.function_tool(each) for each in shop.TOOLS],
    )
    quiet = agents.RunConfig(tracing_disabled=True)
    result = await agents.Runner.run(clerk, request, run_config=quiet)
    return str(result.final_output)


if __name__ == "__main__":
    asyncio.run(shop.tell(agent))
