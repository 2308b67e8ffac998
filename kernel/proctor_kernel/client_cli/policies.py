"""`proctor policy status` and `proctor policy set`: the rules of a running server."""

from typing import Annotated

import typer

from proctor.wire.words import SERVER_URL_DEFAULT
from proctor_kernel.client_cli import show
from proctor_kernel.client_cli.connection import (
    ApiKey,
    AsJson,
    Url,
    complete_agents,
    connected,
    path,
    text_of,
)


def add_policy_commands(app: typer.Typer) -> None:
    """Add the commands that ask a server to `proctor policy`, whose others read files."""
    app.command("status")(policy_status)
    app.command("set")(set_policy)


def policy_status(
    url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Say which rules are in force at the server; status 1 when the files have problems."""
    with connected(url, api_key) as server:
        status = server.get(path("policy"))
    problems = status.get("problems") or []
    if as_json:
        show.print_json(status)
    else:
        show.fields(
            [
                ("rules", status["hash"] or "none"),
                ("loaded", show.moment(status.get("loaded_at"))),
                ("reloads", f"{status.get('reloads', 0)}, {status.get('failures', 0)} failed"),
                ("failing since", show.moment(status.get("failing_since"))),
                ("problems", None if problems else show.colored("none")),
            ]
        )
        for problem in problems:
            show.say(f"  {problem}")
    if problems:
        raise typer.Exit(1)


def set_policy(
    agent: Annotated[
        str, typer.Argument(help="Whose rules these are.", autocompletion=complete_agents)
    ],
    file: Annotated[
        str, typer.Argument(help="Cedar rules or a Rebuno bundle; - is the standard input.")
    ],
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Give one agent rules of its own, which must allow its calls beside those of the files."""
    bundle = text_of(file)
    with connected(url, api_key) as server:
        server.post(path("policies", agent), {"bundle": bundle})
    if as_json:
        show.print_json({"agent_id": agent, "set": True})
        return
    show.say(f"the rules of {agent} are in force")
