"""``feinsum db sign``."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import Annotated

import typer

from feinsum.cli.shared.options import AsJson, Database, Write
from feinsum.cli.shared.output import print_json
from feinsum.words import counted

EXAMPLES = """\b
Examples:
  feinsum db sign --key signing.pem
  feinsum db sign --key signing.pem --write
"""


def sign(
    key: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            envvar="FEINSUM_SIGNING_KEY",
            show_envvar=False,
            help="File of the private key. Default: FEINSUM_SIGNING_KEY.",
            show_default=False,
        ),
    ],
    write: Write = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Sign the facts of a database that this key has not signed.

    A signed fact is a new fact; the one without this signature is retracted. Sign what
    you measured: a signature vouches for it. Facts that an untrusted key sent to a
    service are left alone.
    """
    from feinsum.db import open_store
    from feinsum.db.exchange import sign_facts
    from feinsum.records.signature import public_key_of, read_signing_key

    private = read_signing_key(key)
    with open_store(database, may_create=False) as store:
        by = getpass.getuser()
        outcome = sign_facts(store, private, retracted_by=by, is_dry_run=not write)
    document = {
        "public_key": public_key_of(private),
        "n_records": outcome.n_records,
        "n_signed": outcome.n_signed,
        "is_written": write,
    }
    if as_json:
        print_json(document)
        return
    n_before = outcome.n_records - outcome.n_signed
    typer.echo(f"{counted(n_before, 'fact')} are already signed with this key")
    if write:
        typer.echo(f"facts signed: {outcome.n_signed}, by {document['public_key']}")
    else:
        typer.echo(
            f"facts to sign: {outcome.n_signed}; nothing was written; use --write"
        )
