"""`proctor audit verify`: is the log what was written?"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from proctor_kernel.audit import signing
from proctor_kernel.audit.inspection import Finding
from proctor_kernel.audit.reading import CannotRead, Source
from proctor_kernel.audit.signing import KeyUnusable, PublicKeys
from proctor_kernel.audit.verify import Report, Scope, jobs_max
from proctor_kernel.audit.verify import verify as check
from proctor_kernel.client_cli import show
from proctor_kernel.client_cli.connection import AsJson

_BROKEN = 1
_NOT_CHECKED = 2
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def verify(
    database: Annotated[
        str,
        typer.Option(
            envvar="PROCTOR_DATABASE",
            help="SQLite file, or postgresql://user@host/name; only read.",
        ),
    ] = "proctor.db",
    execution: Annotated[
        list[str] | None, typer.Option(metavar="ID", help="Only this run; repeat for several.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only runs under way since: 2026-12-01, or RFC 3339.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only runs under way before this time.")] = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(help="A key whose checkpoints are believed; repeat for several."),
    ] = None,
    expect_checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER/HASH",
            help="A checkpoint that the service logged: shows that later ones were cut off.",
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; as many as there are cores by default.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that nothing of the log was edited, dropped, put in, moved or rewritten.

    Every event against the hashes of its run, every row of the read tables against the log, and
    every run that has ended against the checkpoints that name it. Exits with 0 when all is as it
    was written, with 1 when something is not, with 2 when it could not be checked.
    """
    try:
        scope = Scope(tuple(execution or ()), _time("--since", since), _time("--until", until))
        keys = signing.public_keys(public_key) if public_key else None
        began = time.perf_counter()
        with _bar() as bar:
            report = asyncio.run(
                check(
                    database,
                    scope=scope,
                    keys=keys,
                    expected=_expected(expect_checkpoint),
                    jobs=jobs or jobs_max(),
                    progress=bar,
                )
            )
    except (CannotRead, KeyUnusable) as error:
        _cannot(str(error))
    seconds = time.perf_counter() - began
    if as_json:
        show.print_json(_document(database, report, keys, seconds))
    else:
        _print(database, report, keys, seconds)
    if not report.is_intact:
        raise typer.Exit(_BROKEN)


@contextmanager
def _bar() -> Iterator[Any]:
    """Show how far it is, at a terminal and nowhere else."""
    if not show.err.is_terminal:
        yield lambda done, total: None
        return
    columns = (
        TextColumn("checking"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("events"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=show.err, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def _print(database: str, report: Report, keys: PublicKeys | None, seconds: float) -> None:
    for finding in report.findings:
        show.out.print(_line(finding), soft_wrap=True)
    _print_checkpoints(report, keys)
    rate = report.events / seconds if seconds else 0.0
    name = Source(database).name
    intact = (
        Text("intact", style="bold green")
        if report.is_intact
        else Text(f"broken: {_count(len(report.findings), 'finding')}", style="bold red")
    )
    show.out.print(
        Text.assemble(
            intact,
            f"  {show.clean(name)}: {_count(report.executions, 'run')}, "
            f"{_count(report.events, 'event')} in {seconds:.1f} s ({rate:,.0f} a second)",
        ),
        soft_wrap=True,
    )


def _print_checkpoints(report: Report, keys: PublicKeys | None) -> None:
    signed = report.checkpoints
    if not signed.count:
        show.say(
            "no checkpoints: a run that was rewritten or deleted as a whole would not be noticed "
            "(proctor serve --signing-key)"
        )
    else:
        how = (
            "signatures not checked: give --public-key" if keys is None else "signed by known keys"
        )
        if keys is not None and signed.findings:
            how = "see above"
        show.say(f"{_count(signed.count, 'checkpoint')} up to {signed.number}/{signed.hash}: {how}")
    if report.unsigned and signed.count:
        show.say(f"not yet signed: {_count(report.unsigned, 'run')}")
    if report.forgotten:
        show.say(f"deleted by retention: {_count(report.forgotten, 'run')}")


def _line(finding: Finding) -> Text:
    where = []
    if finding.execution_id:
        where.append(show.brief(finding.execution_id))
    if finding.seq is not None:
        where.append(f"event {finding.seq}")
    return Text.assemble(
        ("BROKEN  ", "bold red"),
        (": ".join([" ".join(where)] if where else []), "bold"),
        ": " if where else "",
        show.brief(finding.problem),
    )


def _document(
    database: str, report: Report, keys: PublicKeys | None, seconds: float
) -> dict[str, Any]:
    signed = report.checkpoints
    return {
        "database": Source(database).name,
        "intact": report.is_intact,
        "executions": report.executions,
        "events": report.events,
        "seconds": round(seconds, 3),
        "findings": [
            {
                "execution_id": finding.execution_id or None,
                "event_seq": finding.seq,
                "problem": finding.problem,
            }
            for finding in report.findings
        ],
        "checkpoints": {
            "count": signed.count,
            "last": {"number": signed.number, "hash": signed.hash} if signed.count else None,
            "signatures_checked": keys is not None,
            "not_yet_signed": report.unsigned,
            "deleted_by_retention": report.forgotten,
        },
    }


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _time(option: str, given: str | None) -> int | None:
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        _cannot(f"{option}: {given!r} is neither a date nor a time of RFC 3339")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _expected(given: str | None) -> tuple[int, str] | None:
    if given is None:
        return None
    number, _, digest = given.partition("/")
    if not number.isdecimal() or len(digest) != 64:
        _cannot(f"--expect-checkpoint: {given!r} is not NUMBER/HASH, as the service logs it")
    return int(number), digest


def _cannot(message: str) -> NoReturn:
    show.err.print("[bold red]error:[/]", end=" ")
    show.err.print(show.clean(message), markup=False)
    raise typer.Exit(_NOT_CHECKED)
