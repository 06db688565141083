"""``feinsum serve``: answer other machines over HTTP."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_document
from feinsum.extras import require_extra

EXAMPLES = """\b
Examples:
  feinsum serve
  feinsum serve --port 8000 --workers 2 --database team.sqlite
  FEINSUM_SERVE_SETTINGS=service.toml feinsum serve
"""


def import_service() -> ModuleType:
    """Import the service, if its dependencies are installed.

    Raises:
        FeinsumError: naming the package that is missing.
    """
    with require_extra("fastapi", "service", "the service"):
        import feinsum.service
    return feinsum.service


def serve(
    host: Annotated[
        str | None,
        typer.Option(
            help="Address to listen on. Default: 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen on. Default: 8765.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Worker processes. Default: 1."),
    ] = None,
    trusted_proxies: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESSES",
            help="Addresses of proxies whose X-Forwarded-For is trusted, separated by "
            "commas. Default: none.",
        ),
    ] = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Run the REST service over a database.

    Options override the file that FEINSUM_SERVE_SETTINGS names, which has all settings;
    see docs/reference/settings.md. Logs are JSON lines on stderr.
    """
    service = import_service()
    settings = service.read_settings(
        host=host,
        port=port,
        workers=workers,
        trusted_proxies=trusted_proxies,
        database=database,
    )

    # the port is known only after it is bound, for --port 0
    def announce(url: str) -> None:
        text = f"serving {url}; press Ctrl-C to stop"
        print_document({"url": url}, as_json, lambda: typer.echo(text))

    service.run(settings, announce)
