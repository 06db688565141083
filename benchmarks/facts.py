"""Tune the workloads of both suites, and write the packaged facts.

``python benchmarks/facts.py`` tunes every entry of the suites without a fact for this
device and driver in the database; with ``--again`` all entries. Recipes that were fast
for the same notation come first, including those of packaged facts for other devices.
Then it writes the best of each entry to the packaged facts, one record per line.

``--summary`` tunes nothing, and prints the number of packaged facts, and their
speed-ups over the untransformed kernel.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import geometric_mean

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.experiments.entries import Entry, list_both_suites
from benchmarks.processes import ROOT
from feinsum import autotune, query
from feinsum.db import (
    LayeredStore,
    ShippedStore,
    get_shipped_facts,
    open_store,
    write_facts,
)
from feinsum.errors import FeinsumError
from feinsum.ir import from_text
from feinsum.measure import open_device
from feinsum.records import MatchLevel, Store, TuningRecord

PACKAGED = ROOT / "db" / "packaged"
STDERR = Console(stderr=True)


def main() -> None:
    options = _parse_options()
    entries = list_both_suites(options.only, max_gflop=options.max_gflop)
    if options.summary:
        Console(width=120).print(summarize_facts(get_shipped_facts().records()))
        return
    options.database.parent.mkdir(parents=True, exist_ok=True)
    with open_store(options.database) as store:
        layers = LayeredStore([store, get_shipped_facts()])
        for entry in track(entries, "entries", console=STDERR):
            if options.again or not _find_best(entry, store, options):
                _tune(entry, layers, options)
        best = [
            fact for entry in entries if (fact := _find_best(entry, store, options))
        ]
    path = PACKAGED / f"{_make_slug(options.device)}.jsonl"
    others = _read_other_facts(path, best)
    write_facts([*others, *best], path)
    print(f"{len(best)} facts of {len(entries)} entries written to {path.name}")


def summarize_facts(facts: Iterable[TuningRecord]) -> Table:
    """Tabulate speed-ups by device, driver and dtype; means are geometric."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for fact in facts:
        device, driver = fact.environment.device, fact.environment.driver_version
        dtype = from_text(fact.workload_text).operands[0].dtype.name
        name = " ".join(filter(None, (str(device), device.microarchitecture)))
        speedups = groups.setdefault((name, driver, dtype), [])
        speedups.append(fact.measurement.speedup)
    heads = (
        "device",
        "driver",
        "dtype",
        "workloads",
        "least",
        "geometric mean",
        "most",
    )
    table = Table(*heads, box=box.MARKDOWN)
    for group, speedups in sorted(groups.items()):
        rates = min(speedups), geometric_mean(speedups), max(speedups)
        table.add_row(*group, str(len(speedups)), *(f"{rate:.1f}" for rate in rates))
    return table


def _read_other_facts(path: Path, best: list[TuningRecord]) -> list[TuningRecord]:
    """Return the facts of a file for other workloads, which stay in it."""
    shipped = ShippedStore((path.read_text("utf-8"),) if path.exists() else ())
    workloads = {fact.workload for fact in best}
    return [fact for fact in shipped.records() if fact.workload not in workloads]


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--summary", action="store_true", help="summarize the packaged facts"
    )
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument(
        "--again", action="store_true", help="tune entries that have a fact, too"
    )
    parser.add_argument("--device", help="part of a device's name")
    parser.add_argument("--dtype", default="float64", help="dtype of all operands")
    parser.add_argument("--trials", type=int, default=12, help="trials of each entry")
    parser.add_argument(
        "--limit", type=float, default=60, help="limit of a trial in seconds"
    )
    parser.add_argument(
        "--max-gflop", type=float, default=4.0, help="tccg: scales entries down to this"
    )
    parser.add_argument(
        "--database", type=Path, default=ROOT / ".cache" / "facts" / "facts.sqlite"
    )
    return parser.parse_args()


def _tune(entry: Entry, store: Store, options: argparse.Namespace) -> None:
    try:
        report = autotune(
            entry.make_einsum(options.dtype),
            sizes=entry.parameters,
            device=options.device,
            database=store,
            n_trials=options.trials,
            trial_limit_s=options.limit,
        )
    except FeinsumError as error:
        STDERR.print(f"{entry.name}: {error}")
        return
    best = report.records[0] if report.records else None
    gflop_s = entry.flops / best.measurement.median_s / 1e9 if best else 0
    STDERR.print(f"{entry.name}: {gflop_s:.1f} Gflop/s, {best and best.spec}")


def _find_best(
    entry: Entry, store: Store, options: argparse.Namespace
) -> TuningRecord | None:
    """Return the best fact of this einsum, device and driver, if there is one.

    Generated code is preferred to a library if it is at most a tenth slower: for
    operands that are functions, the library needs a pass over memory.
    """
    einsum = entry.make_einsum(options.dtype)
    facts = query(einsum, database=store, device=options.device, policy="strict")
    if facts.level != MatchLevel.EXACT or not facts.ranking:
        return None
    first = facts.ranking[0]
    limit_s = 1.1 * first.measurement.median_s
    code = (
        fact
        for fact in facts.ranking
        if not fact.spec.is_on_host and fact.measurement.median_s <= limit_s
    )
    return next(code, first)


def _make_slug(device: str | None) -> str:
    opened = open_device(device).device
    words = (opened.platform, opened.name, opened.microarchitecture or "")
    return re.sub(r"\W+", "-", " ".join(words).lower()).strip("-")


if __name__ == "__main__":
    main()
