"""`make bench`: figures of this machine, and ratios to peers measured in the same run."""

import asyncio
import json
import os
import platform
import subprocess
import sys

from rich.console import Console
from rich.table import Table
from tests.bench import decisions, service, steps
from tests.bench.timing import Figure, measured


def dbos() -> Figure:
    """Measure DBOS in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.dbos_peer"], capture_output=True, text=True, check=True
    )
    return measured("a step of DBOS on SQLite, FULL", json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Measure everything and print it."""
    console = Console()
    console.print(
        f"Python {platform.python_version()}, {os.cpu_count()} processors; "
        "microseconds, median of several rounds\n"
    )
    raw, *ours = decisions.figures()
    loading = decisions.loading()
    table(console, "Deciding", [raw, *ours, decisions.origins(), loading], raw)
    peer = dbos()
    figures = [
        asyncio.run(steps.step_cost("FULL", 1)),
        asyncio.run(steps.step_cost("NORMAL", 1)),
        asyncio.run(steps.step_cost("FULL", 8)),
        asyncio.run(steps.resume_cost()),
    ]
    table(console, "Governing a step, deciding and recording it twice", [peer, *figures], peer)
    console.print(
        f"10 -> 10,000 rules: x {ours[-1].median / ours[0].median:.2f}     "
        f"DBOS / ours at FULL: x {peer.median / figures[0].median:.1f}     "
        f"steps a second when resuming: {1e6 / figures[3].median:,.0f}     "
        f"loading 10,000 rules: {loading.median / 100:.2f} s"
    )

    service.main()


def table(console: Console, title: str, figures: list[Figure], base: Figure) -> None:
    """Print figures with their ratio to `base`."""
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 3, 0, 0))
    shown.add_column("what", no_wrap=True)
    for column in ("median", "least", "most", "ratio"):
        shown.add_column(column, justify="right", no_wrap=True)
    for figure in figures:
        shown.add_row(
            figure.name,
            f"{figure.median:,.0f}",
            f"{figure.low:,.0f}",
            f"{figure.high:,.0f}",
            f"{figure.median / base.median:.2f}",
        )
    console.print(shown)
    console.print()


if __name__ == "__main__":
    main()
