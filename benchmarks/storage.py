"""How many bytes a fact takes: in SQLite, in PostgreSQL, exported, and as an answer.

The facts are those of ``benchmarks/database.py``: those of the package, under the keys
of many workloads, with samples that vary. Sizes are of whole files or databases, their
tables and indexes included; an empty database is taken off.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.database import DEVICES, N_DEVICES, N_RECIPES, facts, fill, workload
from benchmarks.service import databases
from feinsum.db import SqlStore, open_store
from feinsum.db.exchange.files import write_file
from feinsum.db.exchange.merging import list_documents
from feinsum.db.server.reader import StoredFact
from feinsum.records import to_json
from feinsum.service.answers import DeviceQuery, make_answer

STDERR = Console(stderr=True)


def of_databases(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """What each database grows by."""
    with databases(options) as urls:
        for name, url in urls.items():
            with open_store(url) as store:
                before = store.stats().size_bytes
                fill(store, options.records)
                yield name, store.stats().size_bytes - before
                if name == "SQLite":
                    yield from of_exports(store)


def of_exports(store: SqlStore) -> Iterator[tuple[str, int]]:
    """The sizes of exported files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, suffix in {"JSON Lines": "jsonl", "Parquet": "parquet"}.items():
            path = Path(folder) / f"facts.{suffix}"
            write_file(list_documents(store, has_trials=False), path)
            yield name, path.stat().st_size


def of_answers() -> Iterator[tuple[str, int]]:
    """The bodies of an answer of ``best``, for one device of several."""
    of_one = list(islice(facts(N_RECIPES * N_DEVICES), N_RECIPES * N_DEVICES))
    stored = [StoredFact(record, to_json(record)) for record in of_one]
    devices = {device.id: device for device in DEVICES}
    answer = make_answer(
        workload(0), stored, DeviceQuery(DEVICES[0].id, "", "strict"), devices
    )
    assert answer is not None
    n_facts = len(json.loads(answer.body)["facts"])
    yield f"an answer of {n_facts} facts", len(answer.body)
    yield "the same with gzip", len(answer.compressed)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--on", choices=["sqlite", "postgresql"], nargs="+",
                        default=["sqlite", "postgresql"])  # fmt: skip
    parser.add_argument("--url", help="of an empty PostgreSQL database to use")
    options = parser.parse_args()
    table = Table(f"{options.records} facts", box=box.SIMPLE, pad_edge=False)
    table.add_column("in all", justify="right")
    table.add_column("of a fact", justify="right")
    for name, size in of_databases(options):
        of_one = f"{size / options.records:.0f} bytes"
        table.add_row(name, f"{size / 1e6:.1f} MB", of_one)
    for name, size in of_answers():
        table.add_row(name, f"{size} bytes", "")
    Console().print(table)


if __name__ == "__main__":
    main()
