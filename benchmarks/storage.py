"""Measure the bytes of a fact: in SQLite, in PostgreSQL, exported, and in an answer.

The facts are those of ``benchmarks/database.py``. Sizes are those of whole files or
databases, including indexes, minus that of an empty database.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rich.console import Console

from benchmarks.database import (
    DEVICES,
    N_DEVICES,
    N_RECIPES,
    fill,
    make_facts,
    make_key,
)
from benchmarks.service import add_database_options, open_databases
from benchmarks.tables import make_table
from feinsum.db import SqlStore, open_store
from feinsum.db.exchange.files import write_file
from feinsum.db.exchange.merging import list_documents
from feinsum.db.server.reader import StoredFact
from feinsum.records import to_json
from feinsum.service.answers import DeviceQuery, make_answer

STDERR = Console(stderr=True)


def measure_databases(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield the growth of each database."""
    with open_databases(options) as urls:
        for name, url in urls.items():
            with open_store(url) as store:
                before = store.stats().size_bytes
                fill(store, options.records)
                yield name, store.stats().size_bytes - before
                if name == "SQLite":
                    yield from measure_exports(store)


def measure_exports(store: SqlStore) -> Iterator[tuple[str, int]]:
    """Yield the sizes of exported files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, suffix in {"JSON Lines": "jsonl", "Parquet": "parquet"}.items():
            path = Path(folder) / f"facts.{suffix}"
            write_file(list_documents(store, has_trials=False), path)
            yield name, path.stat().st_size


def measure_answers() -> Iterator[tuple[str, int]]:
    """Yield the sizes of an answer of ``best``, for one device of several."""
    of_one = list(islice(make_facts(N_RECIPES * N_DEVICES), N_RECIPES * N_DEVICES))
    stored = [StoredFact(record, to_json(record)) for record in of_one]
    devices = {device.id: device for device in DEVICES}
    answer = make_answer(
        make_key(0), stored, DeviceQuery(DEVICES[0].id, "", "strict"), devices
    )
    assert answer is not None
    n_facts = len(json.loads(answer.body)["facts"])
    yield f"an answer of {n_facts} facts", len(answer.body)
    yield "the same with gzip", len(answer.compressed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    add_database_options(parser)
    options = parser.parse_args()
    table = make_table([f"{options.records} facts"], ("total", "per fact"))
    for name, size in measure_databases(options):
        of_one = f"{size / options.records:.0f} bytes"
        table.add_row(name, f"{size / 1e6:.1f} MB", of_one)
    for name, size in measure_answers():
        table.add_row(name, f"{size} bytes", "")
    Console().print(table)


if __name__ == "__main__":
    main()
