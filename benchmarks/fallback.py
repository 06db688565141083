"""The family for every einsum, ``generic``, against the untransformed kernel.

``python benchmarks/fallback.py`` takes the einsums of ``tests/transforms`` at sizes of
some tens of megabytes, verifies the first configuration of ``generic`` for each, and
times it in turns with the untransformed kernel; where that takes seconds, it runs once.
A row says how many times as fast the family is, and in which interval, as
:attr:`feinsum.records.Measurement.speedup_interval` has it.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from feinsum.ir import BatchedEinsum  # noqa: E402
from feinsum.records import Measurement  # noqa: E402
from feinsum.transforms import find_transform, list_configurations  # noqa: E402
from feinsum.tuning import make_problem  # noqa: E402
from feinsum.tuning.bench import Bench  # noqa: E402
from tests.transforms.support import EINSUMS  # noqa: E402

STDERR = Console(stderr=True)


def measured(einsum: BatchedEinsum, device: str | None) -> Measurement:
    """Times of both, of kernels that were verified."""
    problem = make_problem(einsum, device=device)
    spec = next(list_configurations(find_transform("generic", 3), problem.einsum))
    return Bench(problem).trial(spec, None).measurement


def table_of(results: Mapping[str, Measurement]) -> Table:
    """A row for each einsum, the slowest first."""
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
    wanted = {n: e for n, e in EINSUMS.items() if re.search(options.only, n)}
    results = {
        name: measured(einsum, options.device)
        for name, einsum in track(wanted.items(), "einsums", console=STDERR)
    }
    Console(width=88).print(table_of(results))
    slower = [name for name, r in results.items() if r.speedup_interval[1] < 1]
    print(f"slower than the untransformed kernel: {', '.join(slower) or 'none'}")


if __name__ == "__main__":
    main()
