"""``feinsum serve``: answer other machines over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from feinsum.cli.options import Database
from feinsum.errors import FeinsumError

__all__ = ["EXAMPLES", "serve"]

EXAMPLES = """\b
Examples:
  feinsum serve
  feinsum serve --host 0.0.0.0 --port 8000 --database team.sqlite
"""


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8765,
    database: Database = None,
) -> None:
    """Run the REST service over a database until it is interrupted."""
    try:
        from feinsum.service import run
    except ImportError as error:
        raise FeinsumError(
            f"the service needs packages that are missing ({error.name}); "
            "install 'feinsum[service]'"
        ) from None
    run(database, host, port)
