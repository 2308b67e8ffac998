"""The group of commands, one file each."""

import typer

from proctor_kernel.audit_cli.keygen import keygen
from proctor_kernel.audit_cli.show import show_run
from proctor_kernel.audit_cli.verify import verify

audit_app = typer.Typer(no_args_is_help=True, help="Show and prove what happened.")
audit_app.command("verify")(verify)
audit_app.command("show")(show_run)
audit_app.command("keygen")(keygen)
