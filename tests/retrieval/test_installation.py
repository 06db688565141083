"""What a kept retrieval depends on."""

from __future__ import annotations

from pathlib import Path

import feinsum.db
import feinsum.targets
from feinsum.retrieval.identity import deciding_files


def test_packaged_facts_and_compiled_sources_decide():
    """As modules do; bytecode and other files do not."""
    names = {
        path.relative_to(room).as_posix()
        for room in (Path(m.__path__[0]) for m in (feinsum.db, feinsum.targets))
        for path in deciding_files(room)
    }
    assert {"shipped.py", "host/pool.c"} <= names
    assert any(name.startswith("packaged/host-") for name in names)
    assert {Path(name).suffix for name in names} == {".c", ".jsonl", ".py"}
