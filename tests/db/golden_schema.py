"""The schema of lines as a file: ``python -m tests.db.golden_schema`` writes it."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from feinsum.db.exchange.files import make_line_schema

__all__ = ["GOLDEN", "schema_text"]

GOLDEN = Path(str(files("feinsum.db.exchange") / "line.schema.json"))


def schema_text() -> str:
    """The schema as the dataclasses make it, as text that diffs."""
    return json.dumps(make_line_schema(), indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(schema_text())
