"""``feinsum db``: the database of facts, its content, its copies."""

from __future__ import annotations

import typer

from feinsum.cli.db import exchange, retract, stats, upkeep

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    help="Create, inspect, copy and merge databases.",
    epilog="\b\nExample:\n  feinsum db stats",
)

app.command(epilog=upkeep.INIT_EXAMPLES)(upkeep.init)
app.command(epilog=upkeep.MIGRATE_EXAMPLES)(upkeep.migrate)
app.command(epilog=stats.EXAMPLES)(stats.stats)
app.command("import", epilog=exchange.IMPORT_EXAMPLES)(exchange.import_)
app.command(epilog=exchange.EXPORT_EXAMPLES)(exchange.export)
app.command(epilog=exchange.MERGE_EXAMPLES)(exchange.merge)
app.command(epilog=exchange.DIFF_EXAMPLES)(exchange.diff)
app.command(epilog=retract.EXAMPLES)(retract.retract)
app.command(epilog=upkeep.GC_EXAMPLES)(upkeep.gc)
app.command(epilog=upkeep.BACKUP_EXAMPLES)(upkeep.backup)
