"""``feinsum serve``: answer other machines over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from feinsum.cli.options import AsJson, Database
from feinsum.cli.output import print_json
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
    as_json: AsJson = False,
) -> None:
    """Run the REST service over a database."""
    try:
        from feinsum.service import run
    except ImportError as error:
        raise FeinsumError(
            f"the service needs packages that are missing ({error.name}); "
            "install 'feinsum[service]'"
        ) from None
    url = f"http://{host}:{port}"
    if as_json:
        print_json({"url": url})
    else:
        typer.echo(f"serving {url}, Ctrl-C ends it")
    run(database, host, port)
