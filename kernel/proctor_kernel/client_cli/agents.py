"""`proctor agents ...`: who may be sent runs."""

import os
from typing import Annotated

import typer
from rich.text import Text

from proctor.wire.words import SERVER_URL_DEFAULT
from proctor_kernel.client_cli import show
from proctor_kernel.client_cli.connection import (
    ApiKey,
    AsJson,
    Url,
    complete_agents,
    connected,
    fail,
    path,
    resolve,
)

agents_app = typer.Typer(no_args_is_help=True, help="Register agents, and list them.")

AgentId = Annotated[
    str, typer.Argument(metavar="ID", help="The agent.", autocompletion=complete_agents)
]


@agents_app.command("ls")
def list_agents(
    url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """List the agents."""
    with connected(url, api_key) as server:
        agents = server.get(path("agents"))
    if as_json:
        show.print_json(agents)
        return
    if not agents:
        show.hint("no agents; add one with: proctor agents add ID --secret-env NAME")
        return
    table = show.table(("AGENT", 2), ("WEBHOOK", 3), "LEASE", "REGISTERED")
    for agent in agents:
        lease = agent.get("lease_timeout_seconds")
        table.add_row(
            Text(show.brief(agent["id"])),
            Text(show.brief(agent.get("webhook_url") or "")),
            "" if lease is None else f"{lease}s",
            show.ago(agent["registered_at"]),
        )
    show.out.print(table)


@agents_app.command("get")
def get_agent(
    agent: AgentId, url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Show one agent; its name may be cut short."""
    with connected(url, api_key) as server:
        known = (str(each["id"]) for each in server.get(path("agents")))
        found = server.get(path("agents", resolve(agent, "agent", known)))
    if as_json:
        show.print_json(found)
        return
    lease = found.get("lease_timeout_seconds")
    show.fields(
        [
            ("id", found["id"]),
            ("description", found.get("description")),
            ("webhook", found.get("webhook_url")),
            ("lease", None if lease is None else f"{lease} s"),
            ("registered", show.moment(found["registered_at"])),
            ("policy bundle", found.get("policy_bundle")),
        ]
    )


@agents_app.command("add")
def add_agent(
    agent: Annotated[str, typer.Argument(metavar="ID", help="The name of the agent.")],
    secret_env: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The variable of the environment that holds the agent's secret.",
        ),
    ],
    webhook_url: Annotated[
        str | None, typer.Option(help="Where runs are delivered; left out, nowhere.")
    ] = None,
    lease_timeout: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS", min=1, help="How long it may be silent before its run is redone."
        ),
    ] = None,
    url: Url = SERVER_URL_DEFAULT,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Register an agent. Its secret signs what it and the server send each other."""
    secret = os.environ.get(secret_env)
    if not secret:
        # A secret among the arguments would be seen by every user of the machine.
        fail(f"the environment has no variable {secret_env}; set it to the agent's secret")
    with connected(url, api_key) as server:
        body = {
            "id": agent,
            "webhook_url": webhook_url,
            "secret": secret,
            "lease_timeout_seconds": lease_timeout,
        }
        added = server.post(path("agents"), body)
    if as_json:
        show.print_json(added)
        return
    show.say(f"registered {agent}")


@agents_app.command("rm")
def remove_agent(
    agent: AgentId, url: Url = SERVER_URL_DEFAULT, api_key: ApiKey = None, as_json: AsJson = False
) -> None:
    """Remove an agent; the name has to be the whole name."""
    with connected(url, api_key) as server:
        server.delete(path("agents", agent))
    if as_json:
        show.print_json({"id": agent, "removed": True})
        return
    show.say(f"removed {agent}")
