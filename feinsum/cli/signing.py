"""``feinsum signing``: the keys that sign facts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feinsum.cli.shared.options import AsJson
from feinsum.cli.shared.output import print_document

app = typer.Typer(
    rich_markup_mode=None,
    help="Create and show the keys that sign facts.",
    epilog="\b\nExample:\n  feinsum signing create ~/.config/feinsum/signing.pem",
)

KeyFile = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="File of a private key.", show_default=False),
]


@app.command("create", epilog="\b\nExample:\n  feinsum signing create signing.pem")
def create_signing_key(file: KeyFile, as_json: AsJson = False) -> None:
    """Create an Ed25519 private key in a new file, and print its public key.

    Only its owner can read the file. Anyone who has it can sign as you.
    """
    from feinsum.records.signature import create_signing_key

    _print(create_signing_key(file), as_json)


@app.command("show", epilog="\b\nExample:\n  feinsum signing show signing.pem")
def show_public_key(file: KeyFile, as_json: AsJson = False) -> None:
    """Print the public key of a private one, for others to trust."""
    from feinsum.records.signature import format_public_key, read_signing_key

    _print(format_public_key(read_signing_key(file)), as_json)


def _print(public_key: str, as_json: bool) -> None:
    document = {"public_key": public_key}
    print_document(document, as_json, lambda: typer.echo(public_key))
