"""``feinsum signing``: keys that facts are signed with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feinsum.cli.shared.options import AsJson
from feinsum.cli.shared.output import print_json

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    help="Make and show the keys that facts are signed with.",
    epilog="\b\nExample:\n  feinsum signing create ~/.config/feinsum/signing.pem",
)

KeyFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="The file of a private key.", show_default=False
    ),
]


@app.command(epilog="\b\nExample:\n  feinsum signing create signing.pem")
def create(file: KeyFile, as_json: AsJson = False) -> None:
    """Make a private key of Ed25519 in a new file, and print its public key.

    The file is for its owner alone. Whoever has it can sign as you.
    """
    from feinsum.records.signature import new_signing_key

    _print(new_signing_key(file), as_json)


@app.command(epilog="\b\nExample:\n  feinsum signing show signing.pem")
def show(file: KeyFile, as_json: AsJson = False) -> None:
    """Print the public key of a private one: what others trust."""
    from feinsum.records.signature import public_key_of, read_signing_key

    _print(public_key_of(read_signing_key(file)), as_json)


def _print(public_key: str, as_json: bool) -> None:
    if as_json:
        print_json({"public_key": public_key})
    else:
        typer.echo(public_key)
