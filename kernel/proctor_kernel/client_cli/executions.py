"""`proctor exec ...`: runs of agents."""

from typing import Annotated

import typer
from rich.text import Text

from proctor.wire.json_text import parsed
from proctor.wire.words import EVENTS_PAGE_MAX, SERVER_URL_DEFAULT, ExecutionStatus
from proctor_kernel.client_cli import show
from proctor_kernel.client_cli.connection import (
    IDS_MAX,
    ApiError,
    ApiKey,
    AsJson,
    Server,
    Url,
    complete_agents,
    connected,
    fail,
    is_whole,
    path,
    resolve,
    text_of,
)
from proctor_kernel.client_cli.show import Json

exec_app = typer.Typer(no_args_is_help=True, help="Start runs of agents, and see what they do.")

RunId = Annotated[str, typer.Argument(metavar="ID", help="The run; its id may be cut short.")]

_FAILED = {ExecutionStatus.FAILED, ExecutionStatus.CANCELLED}


@exec_app.command("create")
def create_run(
    agent: Annotated[str, typer.Argument(help="Who runs.", autocompletion=complete_agents)],
    input_json: Annotated[
        str | None,
        typer.Argument(metavar="INPUT", help="JSON, or @FILE, or - for the standard input."),
    ] = None,
    session: Annotated[str | None, typer.Option(help="Runs of one session take turns.")] = None,
    parent: Annotated[str | None, typer.Option(help="The run that this one follows.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Asked again with it, the server returns the same run.")
    ] = None,
    on_behalf_of: Annotated[str | None, typer.Option(help="The user whom it is for.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it ends.")] = False,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Start a run of an agent."""
    raw = {} if input_json is None else {"input": _input_text(input_json)}
    with connected(url, api_key) as server:
        body = {
            "agent_id": agent,
            "session": session,
            "parent_execution_id": None if parent is None else _found(server, parent),
            "idempotency_key": idempotency_key,
            "on_behalf_of": on_behalf_of,
        }
        run = server.post(path("executions"), body, raw=raw)
        if watch:
            _follow(server, run["id"], as_json)
        else:
            _print_created(run, as_json)


@exec_app.command("ls")
def list_runs(
    agent: Annotated[
        str | None, typer.Option(help="Only its runs.", autocompletion=complete_agents)
    ] = None,
    session: Annotated[str | None, typer.Option(help="Only runs of this session.")] = None,
    status: Annotated[ExecutionStatus | None, typer.Option(help="Only these.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 20,
    everything: Annotated[bool, typer.Option("--all", help="Every one.")] = False,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first."""
    narrowed = {"agent_id": agent, "session": session, "status": status}
    with connected(url, api_key) as server:
        runs, more = server.executions(narrowed, 10**9 if everything else limit)
    if as_json:
        show.print_json(runs)
        return
    table = show.table("ID", ("AGENT", 3), "STATUS", ("SESSION", 2), "TRIES", "AGE", ("NOTE", 3))
    for run in runs:
        table.add_row(
            show.tail(run["id"]),
            Text(show.brief(run["agent_id"])),
            show.colored(run["status"]),
            Text(show.brief(run.get("session") or "")),
            str(run.get("attempts", "")),
            show.ago(run["created_at"]),
            Text(show.brief(run.get("failure_reason") or "")),
        )
    if runs:
        show.out.print(table)
    else:
        show.hint("no runs")
    if more:
        show.hint("there are more: --all, or a larger --limit")


@exec_app.command("get")
def get_run(
    run: RunId, url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Show one run, with its input and output."""
    with connected(url, api_key) as server:
        found = server.get(path("executions", _found(server, run)))
    if as_json:
        show.print_json(found)
        return
    known = "agent_id session parent_execution_id forked_from fork_seq idempotency_key created_by"
    times = "created_at updated_at started_at deadline_at"
    passed_over = found.get("passed_over") or []
    show.fields(
        [
            ("id", found["id"]),
            ("status", show.colored(found["status"])),
            ("failure", found.get("failure_reason")),
            *((name, _text(found.get(name))) for name in [*known.split(), "on_behalf_of"]),
            ("attempts", _text(found.get("attempts"))),
            ("passed_over", "\n".join(map(str, passed_over)) or None),
            *((name, show.moment(found.get(name))) for name in times.split()),
            ("input", show.pretty(found.get("input"))),
            ("output", show.pretty(found["output"]) if "output" in found else None),
        ]
    )


@exec_app.command("watch")
def watch_run(
    run: RunId, url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Follow a run until it ends; status 1 when it failed or was cancelled."""
    with connected(url, api_key) as server:
        _follow(server, _found(server, run), as_json)


@exec_app.command("steps")
def list_steps(
    run: RunId, url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """List what a run called, and what the rules said."""
    with connected(url, api_key) as server:
        steps = server.get(path("executions", _found(server, run), "steps"))
    if as_json:
        show.print_json(steps)
        return
    if not steps:
        show.hint("no steps")
        return
    table = show.table("STEP", ("TARGET", 3), ("ARGS", 3), "RULES", "STATUS", ("WHY", 3))
    for step in steps:
        why = step.get("reason") or step.get("error") or ""
        if step["status"] == "failed":
            why = step.get("error") or why
        table.add_row(
            show.tail(step["step_id"]),
            Text(show.brief(step["target"])),
            Text(show.brief(step.get("args"))),
            show.colored(step.get("decision"), short=True),
            show.colored(step["status"], short=True),
            Text(show.brief(why)),
        )
    show.out.print(table)
    for step in steps:
        if step.get("shadow"):
            names = ", ".join(map(str, step["shadow"]))
            show.say(f"{show.tail(step['step_id'])} would be refused by rules on trial: {names}")


@exec_app.command("events")
def list_events(
    run: RunId,
    after: Annotated[int, typer.Option(min=0, help="Only those above this number.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=EVENTS_PAGE_MAX, help="How many.")] = 100,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List a run's log, in order."""
    with connected(url, api_key) as server:
        page = {"after_seq": after, "limit": limit}
        events = server.get(path("executions", _found(server, run), "events"), page)
    if as_json:
        show.print_json(events)
        return
    for event in events:
        show.out.print(show.event_line(event), no_wrap=True, overflow="ellipsis")
    if len(events) >= limit:
        show.hint(f"there may be more: --after {events[-1]['event_seq']}")


@exec_app.command("cancel")
def cancel_run(
    run: RunId, url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """End a run."""
    with connected(url, api_key) as server:
        found = _found(server, run)
        server.post(path("executions", found, "cancel"))
    if as_json:
        show.print_json({"id": found, "cancelled": True})
        return
    show.say(f"cancelled {found}")


@exec_app.command("fork")
def fork_run(
    run: RunId,
    at: Annotated[int, typer.Option(metavar="SEQ", min=1, help="The last event to keep.")],
    session: Annotated[str | None, typer.Option(help="The session of the new run.")] = None,
    policy: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rules for it; - is the standard input.")
    ] = None,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Start a run that begins as a copy of another, up to one of its events."""
    bundle = None if policy is None else text_of(policy)
    with connected(url, api_key) as server:
        body = {"at_seq": at, "session": session, "policy_bundle": bundle}
        forked = server.post(path("executions", _found(server, run), "fork"), body)
    _print_created(forked, as_json)


def _found(server: Server, given: str) -> str:
    if is_whole(given):
        return given
    runs, _ = server.executions({}, IDS_MAX)
    return resolve(given, "run", (run["id"] for run in runs))


def _input_text(given: str) -> str:
    if given == "-" or given.startswith("@"):
        given = text_of(given.removeprefix("@"))
    try:
        parsed(given)
    except (ValueError, RecursionError) as error:
        fail(f"the input is not JSON: {error}", """a text is written in quotes: '"like this"'""")
    # Sent as it was written, since Python would write numbers in its own way.
    return given


def _follow(server: Server, run_id: str, as_json: bool) -> None:
    for frame in server.frames(path("executions", run_id, "watch"), after="after_seq"):
        if frame is None:
            continue
        body = parsed(frame.data)
        if as_json:
            show.print_json_line(body)
        elif frame.event != "end":
            show.out.print(show.event_line(body), no_wrap=True, overflow="ellipsis")
        if frame.event == "end":
            if not as_json:
                _print_end(body)
            if body["status"] in _FAILED:
                raise typer.Exit(1)
            return
    raise ApiError(502, "the stream ended before the run did")


def _print_end(run: Json) -> None:
    show.fields(
        [
            ("run", run["id"]),
            ("status", show.colored(run["status"])),
            ("failure", run.get("failure_reason")),
            ("output", show.pretty(run["output"]) if "output" in run else None),
        ]
    )


def _print_created(run: Json, as_json: bool) -> None:
    if as_json:
        show.print_json(run)
        return
    # Alone on the standard output, so that a script can take it.
    show.say(run["id"])
    show.hint(f"{run['status']}; follow it with: proctor exec watch {show.tail(run['id'])}")


def _text(value: object) -> str | None:
    return None if value is None else str(value)
