"""The `proctor` command."""

from pathlib import Path
from typing import Annotated

import typer

from proctor_kernel import serving
from proctor_kernel.audit_cli import audit_app
from proctor_kernel.client_cli import add_policy_commands, register
from proctor_policy import starter
from proctor_policy.cli import policy_app

app = typer.Typer(no_args_is_help=True, help="Governance for AI agents.")
app.command()(serving.dev)
app.command()(serving.serve)
add_policy_commands(policy_app)
app.add_typer(policy_app, name="policy")
register(app)
app.add_typer(audit_app, name="audit")


@app.callback()
def main() -> None:
    """Govern AI agents: every call asks the rules first, is recorded, and replays."""


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Where the rules go.")] = Path("rules"),
) -> None:
    """Write a commented rules folder to begin with, tests included."""
    try:
        written = starter.write(folder)
    except FileExistsError as error:
        typer.echo(f"error {error}", err=True)
        raise typer.Exit(1) from None
    for path in written:
        typer.echo(f"wrote  {path}")
    typer.echo(f"\nNow edit {folder / 'rules.cedar'}, and run: proctor policy test {folder}")
