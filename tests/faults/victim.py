"""An embedded agent that dies by SIGKILL at a chosen write. Run as a process of its own.

    victim.py FOLDER KILL_AT

Counts every BEGIN and every COMMIT that SQLite is told, and dies right before number KILL_AT
(0: never). So it dies before each commit, and after each commit before the next write.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

import proctor
from proctor import Agent, ToolError, execution, step, tool

FOLDER = Path(sys.argv[1])
KILL_AT = int(sys.argv[2])


def die_at_the_chosen_write() -> None:
    told = 0

    def count(statement: str) -> None:
        nonlocal told
        if statement.startswith(("BEGIN", "COMMIT")):
            told += 1
            if told == KILL_AT:
                os.kill(os.getpid(), signal.SIGKILL)

    @event.listens_for(Engine, "connect")
    def listen(connection: Any, _record: object) -> None:
        connection.set_trace_callback(count)


def write_down(file: str, *words: object) -> None:
    with (FOLDER / file).open("a") as lines:
        lines.write(" ".join(map(str, words)) + "\n")
        lines.flush()
        os.fsync(lines.fileno())


@tool
def note(text: str) -> str:
    write_down("ran", execution().id, "note", text)
    return text.upper()


@tool(idempotency="at_most_once")
async def pay(amount: int) -> str:
    write_down("ran", execution().id, "pay", amount)
    return f"paid {amount}"


agent = Agent("victim")


@agent.handler
async def handle(input: Any) -> list[Any]:
    answers: list[Any] = []
    for call in (
        lambda: step("start", lambda: 1),
        lambda: note("a"),
        lambda: pay(7),
        lambda: note("b"),
        lambda: pay(8),
    ):
        try:
            value = await call()
        except ToolError as error:
            value = f"error: {error}"
        else:
            write_down("acknowledged", execution().id, len(answers))
        answers.append(value)
    return answers


async def main() -> None:
    known = FOLDER / "execution-id"
    async with proctor.embedded(
        agents=[agent], rules=FOLDER / "rules", database=FOLDER / "proctor.db"
    ) as client:
        if not known.exists():
            created = await client.create("victim")
            known.write_text(created.id)
        await client.wait(known.read_text(), timeout=30)


die_at_the_chosen_write()
asyncio.run(main())
