"""``feinsum cache``: what is kept of earlier retrievals, and forgetting it."""

from __future__ import annotations

from dataclasses import asdict

import typer

from feinsum.cli.shared.options import AsJson
from feinsum.cli.shared.output import print_json
from feinsum.words import counted

app = typer.Typer(
    rich_markup_mode=None,
    help="Inspect or clear the cache of retrieved kernels.",
    epilog="\b\nExample:\n  feinsum cache info",
)


@app.command(epilog="\b\nExample:\n  feinsum cache info --json")
def info(as_json: AsJson = False) -> None:
    """Print the location and size of the cache."""
    from feinsum.cache import default_cache

    kept = default_cache()
    found = asdict(kept.info()) if kept else {"location": None}
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        text = "off" if value is None else value
        typer.echo(f"{name.removeprefix('n_').replace('_', ' ')}: {text}")


@app.command(epilog="\b\nExample:\n  feinsum cache clear")
def clear(as_json: AsJson = False) -> None:
    """Remove everything from the cache."""
    from feinsum.cache import default_cache

    kept = default_cache()
    n_removed = kept.clear() if kept else 0
    if as_json:
        print_json({"n_removed": n_removed})
    else:
        typer.echo(f"{counted(n_removed, 'entry')} removed")
