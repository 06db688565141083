"""What limits the recipes on record: the same recipes where one limit is taken away.

``python benchmarks/limits.py --device intel`` takes the recipe that the database has
for each entry of the suites, and times it in turns at up to three sizes:

whole
    the sizes of the suite;
near
    the longest of rows, columns and sums, or the elements of an operator, so few that
    all arrays lie in the last cache level;
deep
    contractions only: in the cache too, with hundreds of rows, columns and terms.

Per operation, what ``whole`` takes more than ``near`` is for the way to the memory, and
what ``near`` takes more than ``deep`` for packing, and for starting and storing
register tiles. What is left is for products in registers; of an operator, whose extents
belong to its elements, it is everything that the cores do. The times are the shortest
of several runs. Beside these shares of the time stand those of the limits of the
machine: of its bandwidth for every array once, and of its rate of multiply-adds.
Operands are arrays, as in the facts.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.experiments.entries import Entry, both_suites  # noqa: E402
from feinsum import query  # noqa: E402
from feinsum.ir import BatchedEinsum, SizeParam, with_extents  # noqa: E402
from feinsum.measure import (  # noqa: E402
    BoundKernel,
    OpenDevice,
    Timer,
    compile_kernel,
    count_footprint_bytes,
    count_operations,
    interleave,
    measure_peaks,
    open_device,
    verify,
)
from feinsum.measure.cases import make_case  # noqa: E402
from feinsum.records import DevicePeaks, MatchLevel, TransformSpec  # noqa: E402
from feinsum.transforms import apply_spec  # noqa: E402
from feinsum.tuning import TuningProblem, make_problem  # noqa: E402

STDERR = Console(stderr=True)
NEAR_BYTES = 12_000_000
"""Of all arrays together; a last cache level has more."""
LANES = 8
"""Of the longest vectors in double precision."""
SIDE = 512
"""Rows, columns and terms beside which packing and stores hardly count."""


@dataclass(frozen=True)
class Instance:
    """An einsum at sizes at which a recipe is timed."""

    einsum: BatchedEinsum
    sizes: Mapping[str, int]

    @property
    def extents(self) -> dict[str, int]:
        """Every extent as a number."""
        return {
            index: self.sizes[extent.name] if isinstance(extent, SizeParam) else extent
            for index, extent in self.einsum.extents.items()
        }

    @property
    def operations(self) -> int:
        return sum(count_operations(self.einsum, self.sizes).values())

    @property
    def footprint_bytes(self) -> int:
        return count_footprint_bytes(self.einsum, self.sizes)


@dataclass(frozen=True)
class Again:
    """Every run that is timed follows one of the same kernel, whose data it finds."""

    kernel: BoundKernel

    @property
    def timer(self) -> Timer:
        return self.kernel.timer

    def run(self, timer: Timer | None = None) -> float:
        self.kernel.run(timer)
        return self.kernel.run(timer)


@dataclass(frozen=True)
class Limits:
    """Shares of the time of a recipe.

    Attributes:
        whole_s: the time of a run.
        near, deep: what the same operations take without the way to the memory, and
            without what is done around register tiles, over ``whole_s``.
        triad, peak: what moving every array once, and all operations, would take at
            the limits of the device, over ``whole_s``.
    """

    name: str
    recipe: str
    whole_s: float
    near: float
    deep: float | None
    triad: float
    peak: float

    @property
    def shares(self) -> dict[str, float]:
        """Parts of the time; a part below zero is noise, or another order of tiles."""
        memory = {"memory": 1 - self.near}
        if self.deep is None:
            return {**memory, "cores": self.near}
        return {**memory, "tiles": self.near - self.deep, "cores": self.deep}

    @property
    def largest(self) -> str:
        return max(self.shares, key=self.shares.__getitem__)


def near(instance: Instance, spec: TransformSpec) -> Instance:
    """The longest side halved until the arrays fit the cache.

    Of operators that is the number of elements; of contractions the rows, the columns
    or the terms, along indices that the recipe does not name if there are such.
    """
    einsum, sizes = instance.einsum, dict(instance.sizes)
    if einsum.n_operands != 2:
        while count_footprint_bytes(einsum, sizes) > NEAR_BYTES:
            sizes = {name: -(-size // 2) for name, size in sizes.items()}
        return Instance(einsum, sizes)
    named, extents = _named(spec), instance.extents
    einsum = with_extents(einsum, extents)
    while count_footprint_bytes(einsum, {}) > NEAR_BYTES:
        longest = max(_sides(einsum), key=lambda side: prod(extents[i] for i in side))
        index = max(
            longest, key=lambda i: (i not in named and extents[i] > 1, extents[i])
        )
        extents[index] = _in_vectors(-(-extents[index] // 2), index in named)
        einsum = with_extents(einsum, extents)
    return Instance(einsum, {})


def _sides(einsum: BatchedEinsum) -> tuple[set[str], ...]:
    """The indices of the rows, the columns and the terms of a product of matrices."""
    first, second = map(set, einsum.inputs)
    return first - second, second - first, {*einsum.summation_indices}


def _named(spec: TransformSpec) -> set[str]:
    return set(map(str, spec.parameters.values()))


def _in_vectors(length: int, is_named: bool) -> int:
    """Rounded up to whole vectors along what may be the index of the lanes."""
    return -(-length // LANES) * LANES if is_named else length


def deep(instance: Instance, spec: TransformSpec) -> Instance | None:
    """A product of matrices with three long sides; None of what is no contraction.

    Rows, columns and sums are shortened or lengthened, those indices last that the
    recipe names.
    """
    einsum = instance.einsum
    if einsum.n_operands != 2:
        return None
    named, extents = _named(spec), instance.extents
    for side in _sides(einsum):
        order = sorted(side, key=lambda i: (i in named, extents[i]))
        for index in order:
            others = prod(extents[i] for i in side if i != index)
            wanted = _in_vectors(-(-SIDE // others), index in named)
            extents[index] = min(extents[index], wanted)
        extents[order[-1]] *= -(-SIDE // prod(extents[i] for i in side))
    return Instance(with_extents(einsum, extents), {})


def bind(instance: Instance, spec: TransformSpec, opened: OpenDevice) -> Again:
    """The recipe on an instance, verified."""
    case = make_case(instance.einsum, instance.sizes)
    unit = apply_spec(spec, case.t_unit, case.nest)
    kernel = compile_kernel(unit, opened).bind(case.arguments)
    verify(kernel, case.expected, tolerance=case.tolerance)
    return Again(kernel)


def limits_of(
    name: str,
    problem: TuningProblem,
    spec: TransformSpec,
    opened: OpenDevice,
    peaks: DevicePeaks,
    rounds: int,
) -> Limits:
    """Time the recipe at its sizes, in turns."""
    whole = Instance(problem.einsum, problem.sizes)
    cube = deep(whole, spec)
    instances = [whole, near(whole, spec)]
    instances += [] if cube is None else [cube]
    kernels = [bind(instance, spec, opened) for instance in instances]
    times = interleave(kernels, rounds=rounds, warmup=1, max_total_s=20)
    per_operation = [
        min(samples) / instance.operations
        for samples, instance in zip(times, instances, strict=True)
    ]
    whole_s = min(times[0])
    shares = [time / per_operation[0] for time in per_operation[1:]]
    triad_s = whole.footprint_bytes / peaks.bandwidth_bytes_per_s
    peak_s = whole.operations / peaks.operations_per_s["<f8"]
    return Limits(
        name,
        str(spec),
        whole_s,
        shares[0],
        shares[1] if len(shares) == 2 else None,
        triad_s / whole_s,
        peak_s / whole_s,
    )


def table_of(found: Iterable[Limits]) -> Table:
    """A row for each entry; shares of its time."""
    parts = ("memory", "tiles", "cores")
    heads = ("entry", "ms", *parts, "of triad", "of peak", "most")
    table = Table(*heads, box=box.MARKDOWN)
    table.columns[0].no_wrap = True
    for limit in found:
        shares = [_percent(limit.shares.get(part)) for part in parts]
        limits = _percent(limit.triad), _percent(limit.peak)
        time = f"{limit.whole_s * 1e3:.2f}"
        table.add_row(limit.name, time, *shares, *limits, limit.largest)
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def recipe_of(
    entry: Entry, device: str | None, database: str | None
) -> TransformSpec | None:
    """The recipe on record that fits this device best, unless a library is called.

    It is of this architecture at the least, and of this very einsum.
    """
    match = query(entry.einsum(), device=device, database=database)
    if match.level > MatchLevel.SAME_ARCHITECTURE or match.record is None:
        return None
    return None if match.record.spec.is_on_host else match.record.spec


def main() -> None:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument("--device", help="part of a device's name")
    parser.add_argument("--database", help="facts; by default the user's own")
    parser.add_argument(
        "--max-gflop", type=float, default=4.0, help="tccg: scales entries down to this"
    )
    parser.add_argument(
        "--elements-scale", type=float, default=1.0, help="times the mesh of operators"
    )
    parser.add_argument("--rounds", type=int, default=9, help="runs of each instance")
    parser.add_argument("--json", metavar="FILE", help="write all shares there")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    opened = open_device(options.device)
    peaks = measure_peaks(opened, ["<f8"])
    cached = measure_peaks(opened, ["<f8"], array_bytes=NEAR_BYTES // 3)
    limits, without = [], []
    entries = both_suites(
        options.only,
        max_gflop=options.max_gflop,
        elements_scale=options.elements_scale,
    )
    for entry in track(entries, "entries", console=STDERR):
        spec = recipe_of(entry, options.device, options.database)
        if spec is None:
            without.append(entry.name)
            continue
        problem = make_problem(entry.einsum(), entry.parameters, options.device)
        limits.append(
            limits_of(entry.name, problem, spec, opened, peaks, options.rounds)
        )
    print(
        f"percent of the time on {opened.device}; the triad has "
        f"{peaks.bandwidth_bytes_per_s / 1e9:.1f} GB/s, in the cache "
        f"{cached.bandwidth_bytes_per_s / 1e9:.1f}, and multiply-adds "
        f"{peaks.operations_per_s['<f8'] / 1e9:.1f} GFLOP/s"
    )
    Console(width=100).print(table_of(limits))
    others = ", ".join(without) or "none"
    print(f"without a recipe of this device that is a kernel: {others}")
    if options.json:
        document = [{**asdict(limit), "most": limit.largest} for limit in limits]
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
