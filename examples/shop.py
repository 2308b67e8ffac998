"""What the examples share: the tools of a shop, what the model says, and the story told of a run.

The tools are given to each framework as they are. In place of a model that costs money stands a
plan, which the test model of each framework plays.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

import proctor
from proctor import Agent, Execution, tool

RULES = Path(__file__).parent / "rules"


class Note(BaseModel):
    """A note to a customer."""

    subject: str
    urgency: Literal["low", "high"] = "low"


@tool
def look_up_order(order: str) -> str:
    """Look an order up.

    Args:
        order: The number of the order.
    """
    print(f"  tool      looking up {order}")
    return f"{order}: a teapot, 80 euros, broken on the way"


@tool
async def delete_order(order: str) -> str:
    """Delete an order."""
    print(f"  tool      deleting {order}")
    return "deleted"


@tool(idempotency="at_most_once")
async def refund(order: str, amount: int, why: Literal["broken", "late"] = "broken") -> str:
    """Pay a customer back."""
    print(f"  tool      paying {amount} back for {order}")
    return f"paid {amount} back"


@tool
async def send_note(order: str, note: Note, copy_to: str | None = None) -> str:
    """Send the customer of an order a note."""
    print(f"  tool      writing about {order}: {note.subject}")
    return "sent"


TOOLS: Sequence[Callable[..., Coroutine[Any, Any, str]]] = (
    look_up_order,
    delete_order,
    refund,
    send_note,
)

Turn = Sequence[tuple[str, dict[str, object]]] | str
"""What a model says: the tools it calls, several at once if it likes, or its answer."""

PLAN: Sequence[Turn] = (
    [("look_up_order", {"order": "o-17"})],
    [("delete_order", {"order": "o-17"})],
    [
        ("refund", {"order": "o-17", "amount": 80}),
        ("send_note", {"order": "o-17", "note": {"subject": "Your teapot"}}),
    ],
    "The teapot is paid back.",
)

told: list[list[str]] = []
"""What the model was told, turn by turn: the results of its tools, the latest last."""


def next_turn(results: Sequence[str]) -> Turn:
    """Return what the model says next, when its tools have given `results` so far."""
    told.append(list(results))
    print(f"  model     is told: {results[-1]}" if results else "  model     reads the request")
    answered = 0
    for turn in PLAN:
        if answered >= len(results):
            return turn
        answered += len(turn)
    return PLAN[-1]


async def tell(agent: Agent) -> Execution:
    """Run `agent` once and print what happens; whoever sits at the terminal approves.

    With a file as the argument of the program, the run survives the program: started again after
    a crash, it goes on with the same run.
    """
    database = sys.argv[1] if len(sys.argv) > 1 else ":memory:"
    async with proctor.embedded(agents=[agent], rules=RULES, database=database) as client:
        request = {"request": "My teapot came broken."}
        run = await client.create(agent.id, request, idempotency_key="the teapot")
        ended = asyncio.create_task(client.wait(run.id))
        while not ended.done():
            for approval in await client.list_approvals():
                status = (await client.get(run.id)).status
                print(f"  approval  {approval.target} {approval.args}: {approval.reason}")
                print(f"  run       is {status}", flush=True)
                answer = await asyncio.to_thread(input, "  you       grant it? [y/n] ")
                decide = client.grant_approval if answer == "y" else client.deny_approval
                await decide(approval.id, by="you")
            await asyncio.wait([ended], timeout=0.05)
        run = ended.result()
        print(f"\n{run.status}: {run.output}")
        for step in await client.list_steps(run.id):
            print(f"  {step.target:14} {step.status:10} {', '.join(step.rule_ids)}")
        return run
