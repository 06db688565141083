"""``feinsum cache``: the retrieved kernels on disk."""

from __future__ import annotations

from dataclasses import asdict

import typer

from feinsum.cli.shared.options import AsJson
from feinsum.cli.shared.output import print_document, print_fields
from feinsum.words import format_count

app = typer.Typer(
    rich_markup_mode=None,
    help="Inspect or clear the cache of retrieved kernels.",
    epilog="\b\nExample:\n  feinsum cache info",
)


@app.command(epilog="\b\nExample:\n  feinsum cache info --json")
def info(as_json: AsJson = False) -> None:
    """Print the location and size of the cache."""
    from feinsum.cache import get_default_cache

    cache = get_default_cache()
    fields = asdict(cache.info()) if cache else {"location": None}
    print_document(fields, as_json, lambda: print_fields(fields, missing="off"))


@app.command("clear", epilog="\b\nExample:\n  feinsum cache clear")
def clear_cache(as_json: AsJson = False) -> None:
    """Remove everything from the cache."""
    from feinsum.cache import get_default_cache

    cache = get_default_cache()
    n_removed = cache.clear() if cache else 0
    print_document(
        {"n_removed": n_removed},
        as_json,
        lambda: typer.echo(f"{format_count(n_removed, 'entry')} removed"),
    )
