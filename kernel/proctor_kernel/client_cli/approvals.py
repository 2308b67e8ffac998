"""`proctor approvals ...`: calls that wait for people, and what people say of them."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, Literal

import typer
from rich.text import Text

from proctor.wire.json_text import parsed
from proctor.wire.words import SERVER_URL_DEFAULT, ApprovalStatus
from proctor_kernel.client_cli import show
from proctor_kernel.client_cli.connection import (
    ApiError,
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
from proctor_kernel.client_cli.show import Json

approvals_app = typer.Typer(no_args_is_help=True, help="See what waits for people, and decide.")


class Which(StrEnum):
    """The approvals that a list has."""

    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    EXPIRED = "expired"
    ALL = "all"


ApprovalId = Annotated[
    str, typer.Argument(metavar="ID", help="The approval; its id may be cut short.")
]
MaybeApprovalId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="The approval; left out in a terminal, you are asked."),
]
By = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Who decides; believed only by `proctor dev`, elsewhere the key says who you are.",
    ),
]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; it is recorded.")]

_Vote = Literal["grant", "deny"]
_EVERY: Final = tuple(ApprovalStatus)


@approvals_app.command("ls")
def list_approvals(
    status: Annotated[
        Which | None, typer.Option(help="Only these; pending ones when left out.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on with what is asked and decided from now on.")
    ] = False,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """List approvals, the oldest first."""
    wanted = _wanted(status, (ApprovalStatus.PENDING,))
    with connected(url, api_key) as server:
        if watch:
            # Without --status, a decision about what was listed as pending is news as well.
            _follow(server, wanted, _wanted(status, _EVERY), as_json)
            return
        found = _listed(server, wanted)
    if as_json:
        show.print_json(found)
    elif found:
        _print_table(found, numbered=False)
    else:
        show.hint("no approvals")


@approvals_app.command("show")
def show_approval(
    approval: ApprovalId,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Show one approval, with the call that it is about."""
    with connected(url, api_key) as server:
        found = server.get(path("approvals", _found(server, approval, _EVERY)))
    if as_json:
        show.print_json(found)
    else:
        _print_call(found)


@approvals_app.command("grant")
def grant_approval(
    approval: MaybeApprovalId = None,
    reason: Reason = None,
    by: By = None,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Let a call go on, as far as you may."""
    with connected(url, api_key) as server:
        _decide(server, approval, "grant", reason, by, as_json)


@approvals_app.command("deny")
def deny_approval(
    approval: MaybeApprovalId = None,
    reason: Reason = None,
    by: By = None,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a call."""
    with connected(url, api_key) as server:
        _decide(server, approval, "deny", reason, by, as_json)


def _decide(
    server: Server,
    given: str | None,
    vote: _Vote,
    reason: str | None,
    by: str | None,
    as_json: bool,
) -> None:
    if given is not None:
        approval_id = _found(server, given, (ApprovalStatus.PENDING,))
    elif as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail(
            "name the approval: there is no terminal to ask at, or --json was given",
            f"proctor approvals {vote} ID; those that wait: proctor approvals ls",
        )
    else:
        approval_id, vote, reason = _asked(server, reason)
    server.post(path("approvals", approval_id, vote), {"rationale": reason, "decided_by": by})
    after = _after(server, approval_id)
    if as_json:
        show.print_json(after or {"id": approval_id, "vote": vote})
        return
    if after.get("status") == ApprovalStatus.PENDING:
        show.say(f"your vote on {approval_id} is recorded; it needs others too:")
        for line in _gate_lines(after):
            show.say(f"  {line}")
    else:
        show.say(f"{'granted' if vote == 'grant' else 'denied'} {approval_id}")


def _asked(server: Server, reason: str | None) -> tuple[str, _Vote, str | None]:
    """Let the person at the terminal choose an approval and what to do with it."""
    pending = _listed(server, (ApprovalStatus.PENDING,))
    if not pending:
        show.hint("nothing waits for approval")
        raise typer.Exit
    _print_table(pending, numbered=True)
    number = 0
    while not 1 <= number <= len(pending):
        number = typer.prompt(f"\nwhich, 1 to {len(pending)}", type=int)
    chosen = pending[number - 1]
    show.out.print()
    _print_call(chosen)
    answers: dict[str, _Vote] = {"g": "grant", "grant": "grant", "d": "deny", "deny": "deny"}
    # Nothing is the default: a call must not go on because somebody pressed return.
    answer = str(typer.prompt("\ngrant, deny, or leave it (g/d/n)", default="n")).strip().lower()
    if answer not in answers:
        show.hint("left as it is")
        raise typer.Exit
    if reason is None:
        reason = typer.prompt("reason", default="", show_default=False) or None
    return chosen["id"], answers[answer], reason


def _after(server: Server, approval_id: str) -> Json:
    try:
        found: Json = server.get(path("approvals", approval_id))
    except ApiError as error:
        # A key may be allowed to decide and not to read; the decision is made all the same.
        if error.status == 403:
            return {}
        raise
    return found


def _wanted(status: Which | None, otherwise: Sequence[ApprovalStatus]) -> Sequence[ApprovalStatus]:
    if status is None:
        return otherwise
    return _EVERY if status is Which.ALL else (ApprovalStatus(status),)


def _listed(server: Server, wanted: Sequence[ApprovalStatus]) -> list[Json]:
    found = [
        approval
        for status in wanted
        for approval in server.get(path("approvals"), {"status": status})
    ]
    # Something decided between two requests is in both answers; the later one knows more.
    latest = {approval["id"]: approval for approval in found}
    return sorted(latest.values(), key=lambda each: (each["created_at"], each["id"]))


def _found(server: Server, given: str, wanted: Sequence[ApprovalStatus]) -> str:
    if is_whole(given):
        return given
    what = "approval" if len(wanted) > 1 else "pending approval"
    return resolve(given, what, (each["id"] for each in _listed(server, wanted)))


def _follow(
    server: Server,
    listed: Sequence[ApprovalStatus],
    news: Sequence[ApprovalStatus],
    as_json: bool,
) -> None:
    seen: set[tuple[str, str, int]] = set()
    for frame in server.frames(path("approvals", "stream")):
        # The list is read once the stream is open, and again after a break, so that nothing
        # that waits is missed between the two; what is in both is told once.
        approvals = _listed(server, listed) if frame is None else [parsed(frame.data)]
        for approval in approvals:
            key = (approval["id"], approval["status"], len(approval.get("votes") or []))
            if key in seen or (frame is not None and approval["status"] not in news):
                continue
            seen.add(key)
            if as_json:
                show.print_json_line(approval)
            else:
                show.out.print(show.approval_line(approval), no_wrap=True, overflow="ellipsis")


def _print_table(approvals: list[Json], *, numbered: bool) -> None:
    first = ["#"] if numbered else []
    table = show.table(*first, "ID", ("AGENT", 2), ("CALL", 4), "STATUS", "LEFT", ("ASKED", 2))
    for number, approval in enumerate(approvals, 1):
        pending = approval["status"] == ApprovalStatus.PENDING
        table.add_row(
            *([str(number)] if numbered else []),
            show.tail(approval["id"]),
            Text(show.brief(approval.get("agent_id") or "")),
            Text(show.call(approval)),
            show.colored(approval["status"]),
            show.left(approval.get("timeout_at")) if pending else "",
            Text(show.brief(show.approvers(approval) or "")),
        )
    show.out.print(table)


def _print_call(approval: Json) -> None:
    rules = ", ".join(map(str, approval.get("rule_ids") or []))
    pending = approval["status"] == ApprovalStatus.PENDING
    votes = [
        " ".join(
            filter(None, (vote["by"], vote.get("decision"), vote.get("rationale"), vote["at"]))
        )
        for vote in approval.get("votes") or []
    ]
    show.fields(
        [
            ("id", approval["id"]),
            ("status", show.colored(approval["status"])),
            ("agent", approval.get("agent_id")),
            ("run", approval["execution_id"]),
            ("tool", approval.get("target")),
            ("args", show.pretty(approval["args"]) if "args" in approval else None),
            ("reason", approval.get("reason") or None),
            ("rules", rules or None),
            ("message", approval.get("message")),
            ("approvers", show.approvers(approval)),
            ("needs", "\n".join(_gate_lines(approval)) or None),
            ("votes", "\n".join(votes) or None),
            ("expires in", show.left(approval.get("timeout_at")) if pending else None),
            ("asked", show.moment(approval["created_at"])),
            ("decided by", approval.get("decided_by")),
            ("decided", show.moment(approval.get("decided_at"))),
            ("rationale", approval.get("rationale")),
        ]
    )


def _gate_lines(approval: Json) -> list[str]:
    return [
        f"{gate['rule_id']}: {gate.get('granted', 0)} of {gate['quorum']}"
        + (f" by {', '.join(gate['approvers'])}" if gate.get("approvers") else "")
        for gate in approval.get("gates") or []
    ]
