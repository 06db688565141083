"""Compare einsums that are bound by memory bandwidth with the triad and numpy.

In every round each contender runs once, including the triad ``a = b + 3*c``, so that
other load on the machine affects ratios little. Times are medians; bytes count every
array once.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from statistics import median
from time import perf_counter
from typing import Any

import loopy as lp
import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from feinsum import array, batched_einsum
from feinsum.ir import BatchedEinsum
from feinsum.measure import (
    BoundKernel,
    OpenDevice,
    compile_kernel,
    count_footprint_bytes,
    draw_arguments,
    interleave,
    open_device,
    verify,
)
from feinsum.measure.cases import make_case
from feinsum.measure.trial import Timeable
from feinsum.transforms import apply_spec, find_transform, list_configurations

FAMILIES = (("generic", 3), ("turned", 1), ("rowwise", 1))

ENTRIES: Mapping[str, tuple[int, dict[str, int]]] = {
    "ij,ij->ij": (1, {"i": 4096, "j": 4096}),
    "e,ei->ei": (3, {"e": 1 << 19, "i": 20}),
    "i,j->ij": (1, {"i": 4096, "j": 4096}),
    "ai,bj->abij": (1, {"a": 64, "b": 64, "i": 64, "j": 64}),
    "ij->ji": (1, {"i": 4096, "j": 4096}),
    "abcd->dbca": (1, {"a": 64, "b": 64, "c": 64, "d": 64}),
    "ij->i": (1, {"i": 4096, "j": 4096}),
    "ij->j": (1, {"i": 4096, "j": 4096}),
    "ijk->j": (1, {"i": 64, "j": 256, "k": 1024}),
    "ij,j->i": (1, {"i": 4096, "j": 4096}),
    "ij,i->j": (1, {"i": 4096, "j": 4096}),
    "xi,xi->x": (1, {"x": 4096, "i": 4096}),
    "ij->": (1, {"i": 4096, "j": 4096}),
}
"""Number of rows, and extents, by subscripts."""


@dataclass(frozen=True)
class Numpy:
    """``numpy.einsum`` of every row, into reused memory."""

    einsum: BatchedEinsum
    arrays: Mapping[str, Any]
    outputs: Sequence[Any]
    timer: str = "wall"

    def run(self, timer: str | None = None) -> float:
        start = perf_counter()
        for row, output in zip(self.einsum.rows, self.outputs, strict=True):
            arrays = [self.arrays[operand.name] for operand in row]
            np.einsum(self.einsum.subscripts, *arrays, out=output, optimize=True)
        return perf_counter() - start


@dataclass(frozen=True)
class Result:
    """The seconds of an entry's contenders, and the bytes that each has to move."""

    subscripts: str
    recipe: str
    n_bytes: int
    triad_bytes: int
    ours_s: float
    triad_s: float
    untransformed_s: float
    numpy_s: float

    @property
    def cells(self) -> list[str]:
        rate, triad = self.n_bytes / self.ours_s, self.triad_bytes / self.triad_s
        return [
            self.subscripts,
            f"{rate / 1e9:.1f}",
            f"{100 * rate / triad:.0f} %",
            f"{self.untransformed_s / self.ours_s:.1f}",
            f"{self.numpy_s / self.ours_s:.1f}",
            self.recipe,
        ]


def make_einsum(
    subscripts: str, n_rows: int, sizes: Mapping[str, int]
) -> BatchedEinsum:
    """Make an einsum in double precision, whose rows differ in their last operand."""
    *shared, last = subscripts.partition("->")[0].split(",")
    head = [array(f"A{k}", [sizes[i] for i in t]) for k, t in enumerate(shared)]
    shape = [sizes[i] for i in last]
    return batched_einsum(
        subscripts, [[*head, array(f"B{k}", shape)] for k in range(n_rows)]
    )


def make_triad(opened: OpenDevice, n_entries: int) -> BoundKernel:
    """Compile the kernel ``a = b + 3*c`` over doubles."""
    t_unit = lp.make_kernel(
        f"{{[i]: 0 <= i < {n_entries}}}",
        "a[i] = b[i] + 3*c[i]",
        [lp.GlobalArg(name, np.float64, shape=n_entries) for name in "abc"],
        index_dtype=np.dtype(np.int64),
        lang_version=(2018, 2),
    )
    t_unit = lp.split_iname(t_unit, "i", 4096, outer_tag="g.0")
    arguments = draw_arguments(t_unit, {}, np.random.default_rng(0))
    return compile_kernel(t_unit, opened).bind(arguments)


def measure(
    einsum: BatchedEinsum, opened: OpenDevice, triad: BoundKernel, rounds: int
) -> Result:
    """Verify the first recipe of each family, time all, and take the fastest."""
    case = make_case(einsum, {})
    families = [find_transform(*family) for family in FAMILIES]
    specs = [next(list_configurations(t, einsum)) for t in families if t.fits(einsum)]
    units = [case.t_unit, *(apply_spec(s, case.t_unit, case.nest) for s in specs)]
    kernels = [compile_kernel(unit, opened).bind(case.arguments) for unit in units]
    for kernel in kernels:
        verify(kernel, case.expected, tolerance=case.tolerance)
    results = [np.empty_like(case.expected[name]) for name in case.nest.outputs]
    rival = Numpy(einsum, case.arguments, results)
    contenders: list[Timeable] = [triad, rival, *kernels]
    times = interleave(contenders, rounds=rounds, warmup=2, max_total_s=60)
    triad_s, numpy_s, plain_s, *ours = map(median, times)
    best = min(range(len(specs)), key=ours.__getitem__)
    return Result(
        einsum.subscripts + (f" ({n} rows)" if (n := einsum.batch_size) > 1 else ""),
        str(specs[best]),
        count_footprint_bytes(einsum, {}),
        sum(prod(slot.array.shape) * 8 for slot in triad.slots.values()),
        ours[best],
        triad_s,
        plain_s,
        numpy_s,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="entries whose subscripts match")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--triad-entries", type=int, default=1 << 24)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    opened = open_device()
    triad = make_triad(opened, options.triad_entries)
    heads = ("einsum", "GB/s", "of triad", "untransformed", "numpy", "recipe")
    table = Table(*heads, box=box.MARKDOWN)
    for subscripts, (n_rows, sizes) in ENTRIES.items():
        if re.search(options.only, subscripts):
            einsum = make_einsum(subscripts, n_rows, sizes)
            result = measure(einsum, opened, triad, options.rounds)
            table.add_row(*result.cells)
            Console(stderr=True).print(*result.cells[:5])
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
