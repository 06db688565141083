"""Measure a database of many facts: look-ups, opening, space, writing.

The facts are the packaged ones under the keys of many workloads, for several devices,
with perturbed samples, so that all documents differ.

Times are wall-clock and processor times of this process; those of look-ups are medians
without the first tenth.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import track

from benchmarks.tables import make_table
from feinsum.canonical import WorkloadKey
from feinsum.db import SqlStore, get_shipped_facts, open_store
from feinsum.records import Device, TuningRecord, find_best_match

N_DEVICES, N_RECIPES = 4, 10
"""Devices of a workload, and recipes of each."""

CHUNK = 5000
STDERR = Console(stderr=True)
SHIPPED = tuple(get_shipped_facts().records())


def make_key(number: int) -> WorkloadKey:
    return WorkloadKey(f"{SHIPPED[0].workload[:-8]}{number:08x}")


def make_device(number: int) -> Device:
    shipped = SHIPPED[0].environment.device
    return replace(shipped, name=f"{shipped.name} {number}")


DEVICES = tuple(make_device(number) for number in range(N_DEVICES))


def make_facts(n_records: int, seed: int = 0) -> Iterator[TuningRecord]:
    """Yield facts, workload by workload; the last one may have fewer."""
    rng = random.Random(seed)
    for number in range(n_records):
        shipped = SHIPPED[number % len(SHIPPED)]
        measured = shipped.measurement
        samples = tuple(t * rng.uniform(0.8, 1.2) for t in measured.samples_s)
        device = DEVICES[number // N_RECIPES % N_DEVICES]
        yield replace(
            shipped,
            workload=make_key(number // (N_RECIPES * N_DEVICES)),
            environment=replace(shipped.environment, device=device),
            measurement=replace(measured, samples_s=samples),
        )


@dataclass(frozen=True)
class Cost:
    """Wall-clock and processor time."""

    wall_s: float
    processor_s: float


def measure_cost(step: Callable[[], object]) -> Cost:
    wall, processor = time.perf_counter(), time.process_time()
    step()
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


def measure_median(step: Callable[[int], object], inputs: Sequence[int]) -> Cost:
    """Return the median over the inputs."""
    costs = [measure_cost(partial(step, value)) for value in inputs][
        len(inputs) // 10 :
    ]
    return Cost(
        median(cost.wall_s for cost in costs),
        median(cost.processor_s for cost in costs),
    )


def fill(store: SqlStore, n_records: int) -> None:
    records = make_facts(n_records)
    for _ in track(range(0, n_records, CHUNK), "facts", console=STDERR):
        store.add_all(islice(records, CHUNK))


def format_cost(cost: Cost, n_parts: int = 1) -> tuple[str, str]:
    """Format milliseconds of a step, divided by its number of parts."""
    seconds = cost.wall_s, cost.processor_s
    wall, processor = (f"{1e3 * value / n_parts:.3f} ms" for value in seconds)
    return wall, processor


def measure(path: Path, n_records: int, rounds: int) -> Iterator[tuple[str, ...]]:
    """Yield rows of the table: a name, and its values."""
    with open_store(path) as store:
        yield "facts", f"{n_records}"
        yield (
            "writing, a fact",
            *format_cost(measure_cost(lambda: fill(store, n_records)), n_records),
        )
        size = store.stats().size_bytes
        yield "size on disk", f"{size / 1e6:.0f} MB"
        yield "size on disk, a fact", f"{size / n_records:.0f} bytes"
    os.sync()  # pending writes would slow down look-ups
    yield (
        "opening, and closing",
        *format_cost(measure_median(lambda _: _open(path), range(20))),
    )
    n_workloads = max(1, n_records // (N_RECIPES * N_DEVICES))
    keys = random.Random(1).choices(range(n_workloads), k=rounds)
    environment = replace(SHIPPED[0].environment, device=DEVICES[0])
    with open_store(path) as store:

        def look_up(number: int) -> None:
            matches = store.query(make_key(number), device_id=DEVICES[0].id)
            assert find_best_match(matches, environment).record is not None

        def look_up_on_all(number: int) -> None:
            assert (
                find_best_match(store.query(make_key(number)), environment).record
                is not None
            )

        def look_up_batch(first: int) -> None:
            for number in keys[first : first + 100]:
                look_up(number)

        def look_up_missing(number: int) -> None:
            assert not store.query(make_key(n_workloads + 1 + number))

        n_of_device, n_of_all = N_RECIPES, N_RECIPES * N_DEVICES
        yield (
            f"exact look-up, {n_of_device} facts",
            *format_cost(measure_median(look_up, keys)),
        )
        yield (
            f"all devices, {n_of_all} facts",
            *format_cost(measure_median(look_up_on_all, keys)),
        )
        yield "a miss", *format_cost(measure_median(look_up_missing, keys))
        firsts = range(0, max(1, rounds - 100), 100)
        yield "100 exact look-ups", *format_cost(measure_median(look_up_batch, firsts))


def _open(path: Path) -> None:
    open_store(path).close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000,
                        help="facts in the database (default: 1000000)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=2000,
                        help="look-ups of each kind (default: 2000)")  # fmt: skip
    parser.add_argument("--folder", type=Path,
                        help="parent of the temporary folder")  # fmt: skip
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "facts.sqlite"
        rows = list(measure(path, options.records, options.rounds))
    table = make_table(["quantity"], ("by the clock", "processor"), rows)
    Console().print(table)


if __name__ == "__main__":
    main()
