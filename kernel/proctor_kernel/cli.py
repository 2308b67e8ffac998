"""The `proctor` command."""

import typer

from proctor_policy.cli import policy_app

app = typer.Typer(no_args_is_help=True, help="Governance for AI agents.")
app.add_typer(policy_app, name="policy")


@app.callback()
def main() -> None:
    """Govern AI agents: every call asks the rules first, is recorded, and replays."""
