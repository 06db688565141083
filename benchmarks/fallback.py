"""Compare the family ``generic``, which fits every einsum, with the untransformed
kernel.

``python benchmarks/fallback.py`` takes the einsums of ``tests/transforms`` at sizes of
some tens of megabytes, verifies the first configuration of ``generic``, and times it
and the untransformed kernel in interleaved rounds; a kernel that takes seconds runs
once. A row has the speed-up and its interval, see
:attr:`feinsum.records.Measurement.speedup_interval`.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from feinsum.ir import BatchedEinsum
from feinsum.records import Measurement
from feinsum.transforms import find_transform, list_configurations
from feinsum.tuning import make_problem
from feinsum.tuning.bench import Bench
from tests.transforms.support import EINSUMS

STDERR = Console(stderr=True)


def measure(einsum: BatchedEinsum, device: str | None) -> Measurement:
    """Verify and time both kernels."""
    problem = make_problem(einsum, device=device)
    spec = next(list_configurations(find_transform("generic", 3), problem.einsum))
    return Bench(problem).trial(spec, None).measurement


def make_table(results: Mapping[str, Measurement]) -> Table:
    """Tabulate the einsums, the slowest first."""
    table = Table("einsum", "ms", "times as fast", "interval", box=box.MARKDOWN)
    for name, result in sorted(results.items(), key=lambda item: item[1].speedup):
        low, high = result.speedup_interval
        interval = f"{low:.2f} to {high:.2f}"
        cells = f"{result.median_s * 1e3:.2f}", f"{result.speedup:.2f}", interval
        table.add_row(name, *cells)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="einsums whose names match")
    parser.add_argument("--device", help="part of a device's name")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    einsums = {n: e for n, e in EINSUMS.items() if re.search(options.only, n)}
    results = {
        name: measure(einsum, options.device)
        for name, einsum in track(einsums.items(), "einsums", console=STDERR)
    }
    Console(width=88).print(make_table(results))
    slower = [name for name, r in results.items() if r.speedup_interval[1] < 1]
    print(f"slower than the untransformed kernel: {', '.join(slower) or 'none'}")


if __name__ == "__main__":
    main()
