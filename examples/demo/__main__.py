"""Starts the agent, kills it at the worst moment, starts it again, and shows what is recorded."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from examples.demo import agent
from rich.console import Console
from rich.table import Table
from rich.text import Text

from proctor import Step
from proctor_kernel.audit.verify import verify

ROOT = Path(__file__).resolve().parents[2]
console = Console(highlight=False)


def main() -> int:
    """Play the demo; the exit status says whether everything held."""
    with tempfile.TemporaryDirectory(prefix="proctor-demo-") as folder:
        workplace = Path(folder)
        headline("An agent reads this repository, writes a release note and mails it")
        console.print(
            "Its plan is fixed, so no model is needed. Its tools are real: an MCP git server\n"
            "and three functions. The rules it runs under are in [bold]rules/[/].\n"
        )
        with started(workplace) as first:
            for line in lines_of(first):
                show(line)
                if line["event"] == "mail left":
                    first.send_signal(signal.SIGKILL)
                    break
            first.wait()
        console.print(
            "\n[bold red]  SIGKILL[/]  the mail has left, nobody has recorded that it did\n"
        )

        headline("The same command again: the run goes on by itself")
        ran: set[str] = set()
        ended: dict[str, object] = {}
        with started(workplace) as second:
            for line in lines_of(second):
                if line["event"] == "body":
                    ran.add(str(line["tool"]))
                elif line["event"] == "ended":
                    ended = line
                show(line, ran)
        return report(workplace, ran, ended)


def started(workplace: Path) -> subprocess.Popen[str]:
    """Start the agent as a process of its own."""
    command = [sys.executable, "-m", "examples.demo.agent", str(ROOT), str(workplace)]
    return subprocess.Popen(
        [*command, str(ROOT / "rules")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def lines_of(process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    """Read what the agent tells, until it ends."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def headline(text: str) -> None:
    """Begin a part of the story."""
    console.rule(f"[bold]{text}[/]", align="left")
    console.print()


def show(line: dict[str, object], ran: set[str] | None = None) -> None:
    """Print one line of the agent. `ran`: the bodies that ran since the restart."""
    match line["event"]:
        case "call":
            args = ", ".join(f"{key}={value!r}" for key, value in dict(line["args"]).items())  # type: ignore[call-overload]
            console.print(Text(f"  {line['tool']}({shortened(args)})", style="bold"))
        case "answer":
            text = str(line["text"])
            style, word = "green", "allowed "
            if "not allowed. reason:" in text:
                style, word = "red", "denied  "
            elif "outcome unknown" in text:
                style, word = "yellow", "unknown "
            elif ran is not None and line["tool"] not in ran:
                style, word = "cyan", "replayed"
            console.print(Text.assemble(("    " + word, style), "  " + shortened(text)))
        case "another path":
            console.print(Text(f"  > {line['why']}", style="italic"))
        case "mail left":
            console.print(Text("    the mail leaves ...", style="yellow"))


def report(workplace: Path, ran: set[str], ended: dict[str, object]) -> int:
    """Show what the kernel recorded, and check that the demo kept its promises."""
    console.print()
    headline("What is recorded")
    steps = asyncio.run(recorded(workplace))
    console.print(table_of(steps))
    mails = (workplace / "outbox.jsonl").read_text().splitlines()
    checked = asyncio.run(verify(str(workplace / "proctor.db")))
    promises = {
        f"the run ended as {ended.get('status')}": ended.get("status") == "completed",
        f"{len(mails)} mail went out, and its body ran once": len(mails) == 1
        and "announce" not in ran,
        "no finished step ran a second time": ran <= {"read_outbox"},
        f"the hash chain holds over all {checked.events} events": checked.is_intact,
    }
    for promise, kept in promises.items():
        console.print(Text.assemble(("  yes  ", "green") if kept else ("  NO   ", "red"), promise))
    console.print()
    return 0 if all(promises.values()) else 1


async def recorded(workplace: Path) -> list[Step]:
    """Read the steps of the run back through the client."""
    execution_id = (workplace / "execution-id").read_text()
    async with agent.running(ROOT, workplace, ROOT / "rules") as client:
        return list(await client.list_steps(execution_id))


def table_of(steps: list[Step]) -> Table:
    """Return the steps as a person would want to see them."""
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0))
    for column in ("step", "decision", "rule"):
        table.add_column(column, no_wrap=True)
    table.add_column("reason", min_width=12)
    table.add_column("policy", justify="right", no_wrap=True)
    table.add_column("body", justify="right", no_wrap=True)
    for step in steps:
        body = ""
        if step.started_at is not None and step.completed_at is not None:
            body = f"{(step.completed_at - step.started_at).total_seconds() * 1000:,.0f} ms"
        decision = str(step.decision)
        table.add_row(
            step.target,
            Text(decision, style="green" if decision == "allow" else "red"),
            ", ".join(step.rule_ids),
            step.reason,
            f"{step.policy_micros} µs",
            body,
        )
    return table


def shortened(text: str) -> str:
    """Return at most one line of `text`."""
    line = " ".join(text.split())
    width = max(40, console.width - 16)
    return line if len(line) <= width else line[: width - 3] + "..."


if __name__ == "__main__":
    sys.exit(main())
