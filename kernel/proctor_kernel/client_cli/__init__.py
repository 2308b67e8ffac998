"""The commands that talk to a running server over HTTP: agents, exec, approvals, keys, policy."""

import typer

from proctor_kernel.client_cli.agents import agents_app
from proctor_kernel.client_cli.approvals import approvals_app
from proctor_kernel.client_cli.executions import exec_app
from proctor_kernel.client_cli.keys import keys_app
from proctor_kernel.client_cli.policies import add_policy_commands

__all__ = ["add_policy_commands", "register"]


def register(app: typer.Typer) -> None:
    """Add the sub-apps to the `proctor` command; those of `policy`: `add_policy_commands`."""
    app.add_typer(agents_app, name="agents")
    app.add_typer(exec_app, name="exec")
    app.add_typer(approvals_app, name="approvals")
    app.add_typer(keys_app, name="keys")
