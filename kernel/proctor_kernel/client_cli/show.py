"""How answers look: tables of eighty columns, colors of statuses, and JSON for programs.

What agents sent is shown to people who decide about it, so it never reaches the terminal as
control codes, and never as rich's markup: it goes through `clean` and into `Text`.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from proctor_kernel import world

Json = dict[str, Any]
"""One object of an answer."""

TAIL: Final = 8
"""Characters of an id in a table: its end, since UUIDv7 begin with the time."""

out = Console(highlight=False)
err = Console(highlight=False, soft_wrap=True, stderr=True)

_COLORS: Final = {
    "pending": "yellow",
    "running": "cyan",
    "blocked": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "proposed": "cyan",
    "awaiting_approval": "yellow",
    "allowed": "green",
    "executing": "cyan",
    "succeeded": "green",
    "denied": "red",
    "granted": "green",
    "expired": "magenta",
    "allow": "green",
    "deny": "red",
    "require_approval": "yellow",
    "rate_limited": "magenta",
    "requested": "yellow",
    "voted": "cyan",
}

# The words of a table of eighty columns, where the protocol's are longer than ten characters.
_SHORT: Final = {
    "awaiting_approval": "awaiting",
    "require_approval": "approval",
    "rate_limited": "limited",
}

_DETAILS: Final = ("result", "output", "reason", "rule_ids", "error", "message", "by", "rationale")


def clean(value: object) -> str:
    """Return text in which everything that does not print is spelt out, except line ends."""
    return "".join(
        each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in str(value)
    )


def brief(value: object) -> str:
    """Return a JSON value on one line; a string as it is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean(text.replace("\n", "\\n"))


def pretty(value: object) -> Text:
    """Return a JSON value over several lines, for a person."""
    return Text(clean(json.dumps(value, ensure_ascii=False, indent=2)))


def colored(word: object, *, short: bool = False) -> Text:
    """Return a status, a decision or an event's type in its color."""
    text = clean("" if word is None else word)
    color = _COLORS.get(text) or _COLORS.get(text.rpartition(".")[2], "")
    return Text(_SHORT.get(text, text) if short else text, style=color)


def tail(identifier: object) -> str:
    """Return the end of an id, which commands accept for the whole."""
    return clean(identifier)[-TAIL:]


def ago(stamp: str | None) -> str:
    """Return how long ago a time of the server was."""
    return "" if stamp is None else _span(-_seconds_until(stamp))


def left(stamp: str | None) -> str:
    """Return how long it is until a time of the server."""
    if stamp is None:
        return ""
    seconds = _seconds_until(stamp)
    return _span(seconds) if seconds > 0 else "over"


def moment(stamp: str | None) -> str | None:
    """Return a time of the server, UTC, to the second."""
    return None if stamp is None else f"{_time(stamp):%Y-%m-%d %H:%M:%S} UTC"


def clock(stamp: str) -> str:
    """Return the time of day of a time of the server, UTC, to the millisecond."""
    return _time(stamp).strftime("%H:%M:%S.%f")[:-3]


def event_detail(event: Json) -> str:
    """Return on one line what happened in an event, besides its type."""
    payload: Json = event.get("payload") or {}
    parts = []
    if payload.get("target"):
        args = payload.get("args")
        parts.append(payload["target"] + ("" if args is None else f"({brief(args)})"))
    for name in _DETAILS:
        # The protocol repeats a denial's reason and rule as its error.
        if payload.get(name) is None or (name == "error" and payload.get("rule_ids")):
            continue
        value = payload[name]
        parts.append(", ".join(map(str, value)) if name == "rule_ids" else brief(value))
    if payload.get("approval_id"):
        parts.append(f"[{tail(payload['approval_id'])}]")
    if payload.get("attempt") is not None:
        parts.append(f"attempt {payload['attempt']}")
    if payload.get("shadow"):
        parts.append("on trial: " + ", ".join(map(str, payload["shadow"])))
    return brief("  ".join(part for part in parts if part))


def event_line(event: Json) -> Text:
    """Return one event of a live view."""
    return Text.assemble(
        (clock(event["occurred_at"]), "dim"),
        f" {event['event_seq']:>4} ",
        _padded(colored(event["type"]), 23),
        " ",
        event_detail(event),
    )


def call(approval: Json) -> str:
    """Return on one line the call that an approval is about."""
    args = brief(approval["args"]) if "args" in approval else ""
    return f"{brief(approval.get('target') or '')}({args})"


def approvers(approval: Json) -> str | None:
    """Return who is asked; None when nobody is named."""
    return ", ".join(map(str, approval.get("approvers") or [])) or None


def approval_line(approval: Json) -> Text:
    """Return one approval of a live view."""
    by = approval.get("decided_by")
    return Text.assemble(
        (clock(approval.get("decided_at") or approval["created_at"]), "dim"),
        f" {tail(approval['id'])} ",
        _padded(colored(approval["status"]), 7),
        f" {brief(approval.get('agent_id') or '')} {call(approval)}",
        f"  by {brief(by)}" if by else "",
    )


def table(*columns: str | tuple[str, int]) -> Table:
    """Return an empty table; a column with a number shares the width that the others leave."""
    made = Table(box=None, pad_edge=False, expand=True, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        if isinstance(column, tuple):
            made.add_column(column[0], ratio=column[1], no_wrap=True, overflow="ellipsis")
        else:
            made.add_column(column, no_wrap=True)
    return made


def fields(pairs: Iterable[tuple[str, RenderableType | None]]) -> None:
    """Print what is known of one thing, a name and a value a line; None is left out."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if value is not None:
            grid.add_row(name, Text(clean(value)) if isinstance(value, str) else value)
    out.print(grid)


def say(text: str) -> None:
    """Print one sentence."""
    out.print(Text(clean(text)), soft_wrap=True)


def hint(text: str) -> None:
    """Print a remark beside the output, where it does not get into a pipe."""
    err.print(Text(clean(text), style="dim"))


def print_json(document: object) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2))


def print_json_line(document: object) -> None:
    """Print one JSON document on one line, at once."""
    print(json.dumps(document), flush=True)


def _padded(text: Text, width: int) -> Text:
    text.pad_right(max(0, width - text.cell_len))
    return text


def _time(stamp: str) -> datetime:
    return datetime.fromisoformat(stamp).astimezone(UTC)


def _seconds_until(stamp: str) -> int:
    return int(_time(stamp).timestamp() - world.now_micros() / 1e6)


def _span(seconds: int) -> str:
    seconds = max(0, seconds)
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02}m"
    return f"{seconds // 86400}d"
