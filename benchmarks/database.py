"""What a database of many facts costs: look-ups, opening, space, writing.

The facts are those of the package, under the keys of as many workloads as are wanted,
for several devices, with samples that vary, so that every document is another one.

Times are wall-clock and, beside these, of the processor in this process; of look-ups
they are medians, the first tenth left out.
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

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from feinsum.canonical import WorkloadKey
from feinsum.db import SqlStore, get_shipped_facts, open_store
from feinsum.records import Device, TuningRecord, find_best_match

N_DEVICES, N_RECIPES = 4, 10
"""Facts of a workload: of every device as many."""

CHUNK = 5000
STDERR = Console(stderr=True)
SHIPPED = tuple(get_shipped_facts().records())


def workload(number: int) -> WorkloadKey:
    return WorkloadKey(f"{SHIPPED[0].workload[:-8]}{number:08x}")


def device(number: int) -> Device:
    shipped = SHIPPED[0].environment.device
    return replace(shipped, name=f"{shipped.name} {number}")


DEVICES = tuple(device(number) for number in range(N_DEVICES))


def facts(n_records: int, seed: int = 0) -> Iterator[TuningRecord]:
    """As many facts, workload by workload; the last one may have fewer."""
    noise = random.Random(seed)
    for number in range(n_records):
        shipped = SHIPPED[number % len(SHIPPED)]
        measured = shipped.measurement
        samples = tuple(t * noise.uniform(0.8, 1.2) for t in measured.samples_s)
        device = DEVICES[number // N_RECIPES % N_DEVICES]
        yield replace(
            shipped,
            workload=workload(number // (N_RECIPES * N_DEVICES)),
            environment=replace(shipped.environment, device=device),
            measurement=replace(measured, samples_s=samples),
        )


@dataclass(frozen=True)
class Cost:
    """Seconds by the clock and of the processor."""

    wall_s: float
    processor_s: float


def timed(step: Callable[[], object]) -> Cost:
    wall, processor = time.perf_counter(), time.process_time()
    step()
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


def middle(step: Callable[[int], object], inputs: Sequence[int]) -> Cost:
    """The median over the inputs."""
    costs = [timed(partial(step, value)) for value in inputs][len(inputs) // 10 :]
    return Cost(
        median(cost.wall_s for cost in costs),
        median(cost.processor_s for cost in costs),
    )


def fill(store: SqlStore, n_records: int) -> None:
    records = facts(n_records)
    for _ in track(range(0, n_records, CHUNK), "facts", console=STDERR):
        store.add_all(islice(records, CHUNK))


def cells(cost: Cost, n_of: int = 1) -> tuple[str, str]:
    """Milliseconds of one of so many steps."""
    seconds = cost.wall_s, cost.processor_s
    wall, processor = (f"{1e3 * value / n_of:.3f} ms" for value in seconds)
    return wall, processor


def measure(path: Path, n_records: int, rounds: int) -> Iterator[tuple[str, ...]]:
    """What is shown, and its values."""
    with open_store(path) as store:
        yield "facts", f"{n_records}"
        yield (
            "writing, a fact",
            *cells(timed(lambda: fill(store, n_records)), n_records),
        )
        size = store.stats().size_bytes
        yield "size on disk", f"{size / 1e6:.0f} MB"
        yield "size on disk, a fact", f"{size / n_records:.0f} bytes"
    os.sync()  # or what the system still has to write slows the look-ups down
    yield "opening, and closing", *cells(middle(lambda _: _open(path), range(20)))
    n_workloads = max(1, n_records // (N_RECIPES * N_DEVICES))
    keys = random.Random(1).choices(range(n_workloads), k=rounds)
    environment = replace(SHIPPED[0].environment, device=DEVICES[0])
    with open_store(path) as store:

        def exact(number: int) -> None:
            matches = store.query(workload(number), device_id=DEVICES[0].id)
            assert find_best_match(matches, environment).record is not None

        def every_device(number: int) -> None:
            assert (
                find_best_match(store.query(workload(number)), environment).record
                is not None
            )

        def batch(first: int) -> None:
            for number in keys[first : first + 100]:
                exact(number)

        def miss(number: int) -> None:
            assert not store.query(workload(n_workloads + 1 + number))

        of_one, of_all = N_RECIPES, N_RECIPES * N_DEVICES
        yield f"exact look-up, {of_one} facts", *cells(middle(exact, keys))
        yield f"all devices, {of_all} facts", *cells(middle(every_device, keys))
        yield "a miss", *cells(middle(miss, keys))
        firsts = range(0, max(1, rounds - 100), 100)
        yield "100 exact look-ups", *cells(middle(batch, firsts))


def _open(path: Path) -> None:
    open_store(path).close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--records", type=int, default=1_000_000,
                        help="facts in the database (default: 1000000)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=2000,
                        help="look-ups of each kind (default: 2000)")  # fmt: skip
    parser.add_argument("--folder", type=Path,
                        help="where to make it (default: a new one)")  # fmt: skip
    options = parser.parse_args(arguments)
    table = Table("what", box=box.SIMPLE, pad_edge=False)
    for heading in ("by the clock", "processor"):
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "facts.sqlite"
        for row in measure(path, options.records, options.rounds):
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
