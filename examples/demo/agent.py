"""The agent of the demo: a fixed plan instead of a model, real tools, real rules.

It writes a release note for a git repository and announces it. Each line that it prints is one
JSON object for whoever started it.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from mcp import Client as McpClient
from mcp import StdioServerParameters

import proctor
from proctor import Agent, ToolError, step, tool, wrap_mcp_tools

CONFIRMATION_SECONDS = 20.0
"""How long the mail server of the demo takes to say that it has the mail."""


def tell(event: str, **details: object) -> None:
    """Print one thing that happened, for the parent process."""
    print(json.dumps({"event": event, **details}), flush=True)


def build(
    repository: Path, workplace: Path, git: McpClient, descriptors: Sequence[object]
) -> Agent:
    """Return the agent: its tools, and the plan it follows with them."""
    outbox = workplace / "outbox.jsonl"

    @tool
    def write_note(title: str, lines: list[str]) -> str:
        """Write a note into the agent's own folder."""
        tell("body", tool="write_note")
        note = workplace / "release-note.md"
        note.write_text("\n".join([f"# {title}", "", *(f"- {line}" for line in lines), ""]))
        return note.name

    @tool(idempotency="at_most_once")
    async def announce(to: str, note: str) -> str:
        """Mail a note. A mail cannot be taken back, so this never runs twice."""
        tell("body", tool="announce")
        with outbox.open("a") as mails:
            mails.write(json.dumps({"to": to, "note": note}) + "\n")
            mails.flush()
            os.fsync(mails.fileno())
        tell("mail left")
        await asyncio.sleep(CONFIRMATION_SECONDS)
        return "confirmed"

    @tool
    def read_outbox() -> list[str]:
        """List to whom mail has gone out."""
        tell("body", tool="read_outbox")
        if not outbox.exists():
            return []
        return [json.loads(line)["to"] for line in outbox.read_text().splitlines()]

    async def call_git(name: str, arguments: dict[str, object]) -> object:
        tell("body", tool=name)
        return await git.call_tool(name, arguments)

    git_tools = {each.__name__: each for each in wrap_mcp_tools(descriptors, call=call_git)}

    agent = Agent("scribe")

    @agent.handler
    async def write_release_note(audience: str) -> dict[str, object]:
        repo = str(repository)
        day = await step("today", lambda: datetime.now(UTC).date().isoformat())
        log = await use(git_tools["git_log"], repo_path=repo, max_count=4)
        subjects = [
            line.removeprefix("Message:").strip()
            for line in str(log).splitlines()
            if line.startswith("Message:")
        ]
        refused = await use(git_tools["git_create_branch"], repo_path=repo, branch_name="release")
        if "not allowed" in str(refused):
            tell("another path", why="no branch then: the note goes into a file of my own")
        note = await use(write_note, title=f"What is new on {day}", lines=subjects)
        try:
            await use(announce, to=audience, note=note)
        except ToolError as unknown:
            tell("another path", why=f"I am told: {unknown}")
            if audience not in str(await use(read_outbox)):
                raise
        return {"note": note, "announced_to": audience}

    return agent


async def use(governed: Callable[..., Awaitable[object]], **args: object) -> object:
    """Call a tool as a framework would, and say what came back."""
    name = str(governed.__name__)
    shown = {key: value for key, value in args.items() if key != "repo_path"}
    tell("call", tool=name, args=shown)
    try:
        answer = await governed(**args)
    except ToolError as error:
        tell("answer", tool=name, text=str(error))
        raise
    tell("answer", tool=name, text=str(answer))
    return answer


@asynccontextmanager
async def running(repository: Path, workplace: Path, rules: Path) -> AsyncIterator[proctor.Client]:
    """Start the git server and the embedded kernel; runs under way go on at once."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "mcp_server_git", "--repository", str(repository)]
    )
    async with McpClient(server) as git:
        descriptors = list((await git.list_tools()).tools)
        agent = build(repository, workplace, git, descriptors)
        database = workplace / "proctor.db"
        async with proctor.embedded(agents=[agent], rules=rules, database=database) as client:
            yield client


async def main(repository: Path, workplace: Path, rules: Path) -> None:
    """Start a run, or go on with the one that a killed process left behind."""
    left_behind = workplace / "execution-id"
    async with running(repository, workplace, rules) as client:
        if left_behind.exists():
            execution_id = left_behind.read_text()
        else:
            run = await client.create("scribe", input={"audience": "team@example.com"})
            execution_id = run.id
            left_behind.write_text(execution_id)
        ended = await client.wait(execution_id, timeout=CONFIRMATION_SECONDS * 2)
        tell("ended", status=ended.status, output=ended.output, why=ended.failure_reason)


if __name__ == "__main__":
    asyncio.run(main(*(Path(argument) for argument in sys.argv[1:4])))
