"""`proctor audit show`: what happened in a run, as a person would tell it."""

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from proctor.wire.words import SERVER_URL_DEFAULT
from proctor_kernel.audit import records, timeline
from proctor_kernel.audit.reading import CannotRead
from proctor_kernel.audit.timeline import Chapter, Entry, Line, Story, span
from proctor_kernel.client_cli import show
from proctor_kernel.client_cli.connection import (
    IDS_MAX,
    ApiKey,
    AsJson,
    Server,
    Url,
    connected,
    fail,
    is_whole,
    path,
    resolve,
)

_PAGE = 1000
_SHORT = 100
_INDENT = "  "

_SIGNS = {
    "good": ("\u2713", "green"),
    "bad": ("\u2717", "red"),
    "waits": ("\u2026", "yellow"),
    "ends": ("\u25a0", "magenta"),
    "plain": ("\u00b7", "dim"),
}
_COUNTS = {
    "allow": "allowed",
    "deny": "denied",
    "require_approval": "needed approval",
    "rate_limited": "over a limit",
}


def show_run(
    execution: Annotated[
        str, typer.Argument(metavar="ID", help="The run; its id may be cut short.")
    ],
    database: Annotated[
        str | None,
        typer.Option(help="Read this SQLite file or PostgreSQL itself, without a server."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Tell what happened in a run: who asked, each call, who decided and why, how it ended."""
    if database is None:
        found, entries = _from_server(url, api_key, execution)
    else:
        found, entries = _from_database(database, execution)
    story = timeline.tell(found, entries)
    if story is None:
        fail(f"there is no run {execution!r}")
    if as_json:
        show.print_json(_document(story))
    else:
        _print(story, full=full)


def _from_server(url: str, api_key: str | None, given: str) -> tuple[str, list[Entry]]:
    with connected(url, api_key) as server:
        found = given
        if not is_whole(given):
            runs, _ = server.executions({}, IDS_MAX)
            found = resolve(given, "run", (run["id"] for run in runs))
        return found, list(_pages(server, found))


def _pages(server: Server, execution_id: str) -> Iterator[Entry]:
    after = 0
    while True:
        page = server.get(
            path("executions", execution_id, "events"), {"after_seq": after, "limit": _PAGE}
        )
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1]["event_seq"]


def _from_database(database: str, given: str) -> tuple[str, list[Entry]]:
    try:
        found = given
        if not is_whole(given):
            found = resolve(given, "run", asyncio.run(records.ids(database)))
        return found, list(asyncio.run(records.entries(database, found)))
    except CannotRead as error:
        fail(str(error))


def _print(story: Story, *, full: bool) -> None:
    show.out.print(_headline(story), soft_wrap=True)
    show.out.print(Text(_subline(story), style="dim"), soft_wrap=True)
    show.out.print(Text.assemble(("input ", "dim"), _value(story.input, full=full)), soft_wrap=full)
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(justify="right", style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    told = ""
    for chapter in story.chapters:
        grid.add_row("", "")
        if chapter.title:
            told = _row(grid, told, _offset(story, chapter.at), _title(chapter, full=full))
        for line in chapter.lines:
            for text in _lines(line, indent=_INDENT if chapter.title else "", full=full):
                told = _row(grid, told, _offset(story, line.at), text)
    show.out.print(grid)


def _row(grid: Table, told: str, offset: str, text: Text) -> str:
    """Add a line; a time that was told is not told again."""
    grid.add_row("" if offset == told else offset, text)
    return offset


def _headline(story: Story) -> Text:
    return Text.assemble(
        (story.execution_id, "bold"),
        "  ",
        (show.brief(story.agent_id), "bold cyan"),
        "  ",
        show.colored(story.status),
        "" if story.ended is None else f" in {span((story.ended - story.began).total_seconds())}",
    )


def _subline(story: Story) -> str:
    calls = sum(1 for each in story.chapters if each.title and not each.is_continued)
    told = [
        f"{story.began:%Y-%m-%d %H:%M:%S} UTC",
        f"{calls} call{'' if calls == 1 else 's'}",
        *(f"{story.counts[each]} {word}" for each, word in _COUNTS.items() if each in story.counts),
        f"{story.attempts} attempt{'' if story.attempts == 1 else 's'}",
    ]
    return ", ".join(told)


def _title(chapter: Chapter, *, full: bool) -> Text:
    if chapter.is_continued:
        return Text.assemble((show.brief(chapter.title), "bold"), ("  goes on", "dim"))
    args = "" if chapter.args in (None, {}) else _brief(chapter.args, full=full)
    return Text.assemble((show.brief(chapter.title), "bold"), f"({args})")


def _lines(line: Line, *, indent: str, full: bool) -> Iterator[Text]:
    sign, style = _SIGNS[line.mood]
    colored = style if line.mood != "plain" else ""
    text = Text.assemble(indent, (f"{sign} ", style), (show.brief(line.text), colored))
    if line.has_value:
        text.append(": ")
        text.append(_value(line.value, full=full))
    yield text
    for detail in line.details:
        yield Text(f"{indent}  {show.brief(detail)}")


def _value(value: Any, *, full: bool) -> Text:
    if full and isinstance(value, dict | list) and value:
        return show.pretty(value)
    return Text(_brief(value, full=full))


def _brief(value: Any, *, full: bool) -> str:
    text = show.brief(value)
    return text if full or len(text) <= _SHORT else f"{text[: _SHORT - 1]}\u2026"


def _offset(story: Story, at: datetime) -> str:
    return f"+{span((at - story.began).total_seconds())}"


def _document(story: Story) -> dict[str, Any]:
    document: dict[str, Any] = _plain(asdict(story))
    return document


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
