"""`proctor audit keygen`: the key that checkpoints are signed with."""

from pathlib import Path
from typing import Annotated

import typer

from proctor_kernel.audit import signing
from proctor_kernel.audit.signing import KeyUnusable
from proctor_kernel.client_cli import show
from proctor_kernel.client_cli.connection import fail


def keygen(
    path: Annotated[
        Path, typer.Argument(help="Where the private key goes; nothing is overwritten.")
    ],
) -> None:
    """Make a key to sign checkpoints with, and print its public key.

    The private key is for `proctor serve --signing-key`. The public key goes to whoever verifies,
    by a way that does not lead through the database: it is printed alone, so that
    `proctor audit keygen signing-key.pem > signing-key.pub` keeps it.
    """
    try:
        made = signing.generate(path)
    except KeyUnusable as error:
        fail(str(error))
    print(made.public_pem, end="")
    show.hint(f"private key: {path}, for its owner alone")
    show.hint(f"key id: {made.key_id}")
