"""``feinsum db``: the database of facts, its content, its copies."""

from __future__ import annotations

import typer

from feinsum.cli.db import documents, upkeep

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    help="Create, inspect, copy and merge databases.",
    epilog="\b\nExample:\n  feinsum db stats",
)

app.command(epilog=upkeep.INIT_EXAMPLES)(upkeep.init)
app.command(epilog=upkeep.MIGRATE_EXAMPLES)(upkeep.migrate)
app.command(epilog=upkeep.STATS_EXAMPLES)(upkeep.stats)
app.command("import", epilog=documents.IMPORT_EXAMPLES)(documents.import_)
app.command(epilog=documents.EXPORT_EXAMPLES)(documents.export)
app.command(epilog=documents.MERGE_EXAMPLES)(documents.merge)
app.command(epilog=documents.DIFF_EXAMPLES)(documents.diff)
app.command(epilog=documents.RETRACT_EXAMPLES)(documents.retract)
app.command(epilog=upkeep.GC_EXAMPLES)(upkeep.gc)
app.command(epilog=upkeep.BACKUP_EXAMPLES)(upkeep.backup)
