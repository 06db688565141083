"""Measure what limits recorded recipes, by timing them with one limit removed.

``python benchmarks/limits.py --device intel`` takes the recorded recipe of each entry
of the suites, and times it in interleaved rounds at up to three sizes:

whole
    the sizes of the suite;
near
    the longest of rows, columns and sums, or the elements of an operator, so few that
    all arrays fit into the last cache level;
deep
    contractions only: in the cache too, with hundreds of rows, columns and terms.

Per operation, the difference of ``whole`` and ``near`` is the cost of memory transfers,
and that of ``near`` and ``deep`` the cost of packing, and of starting and storing
register tiles. The rest is the cost of products in registers; for an operator, whose
extents depend on its elements, it is the cost of everything in the cores. Times are the
shortest of several runs. Next to these shares are the limits of the machine: its
bandwidth for every array once, and its rate of multiply-adds. Operands are arrays, as
in the facts.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.experiments.entries import Entry, list_both_suites
from feinsum import query
from feinsum.ir import BatchedEinsum, SizeParam, with_extents
from feinsum.measure import (
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
from feinsum.measure.cases import make_case
from feinsum.records import DevicePeaks, MatchLevel, TransformSpec
from feinsum.transforms import apply_spec
from feinsum.tuning import TuningProblem, make_problem

STDERR = Console(stderr=True)
NEAR_BYTES = 12_000_000
"""Size of all arrays together, which fits into the last cache level."""
LANES = 8
"""Lanes of the longest vectors in double precision."""
SIDE = 512
"""Number of rows, columns and terms for which packing and stores are negligible."""


@dataclass(frozen=True)
class Instance:
    """An einsum at the sizes at which a recipe is timed."""

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
class WarmKernel:
    """A kernel that runs once before each timed run, so that its data is cached."""

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
        near, deep: time of the same operations without memory transfers, and without
            the work around register tiles, over ``whole_s``.
        triad, peak: time of moving every array once, and of all operations, at the
            limits of the device, over ``whole_s``.
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
        """Return parts of the time; negative ones are noise, or due to another tile
        order.
        """
        memory = {"memory": 1 - self.near}
        if self.deep is None:
            return {**memory, "cores": self.near}
        return {**memory, "tiles": self.near - self.deep, "cores": self.deep}

    @property
    def largest(self) -> str:
        return max(self.shares, key=self.shares.__getitem__)


def shrink_to_cache(instance: Instance, spec: TransformSpec) -> Instance:
    """Halve the longest side until the arrays fit the cache.

    For operators that is the number of elements; for contractions rows, columns or
    terms, preferably along indices that the recipe does not name.
    """
    einsum, sizes = instance.einsum, dict(instance.sizes)
    if einsum.n_operands != 2:
        while count_footprint_bytes(einsum, sizes) > NEAR_BYTES:
            sizes = {name: -(-size // 2) for name, size in sizes.items()}
        return Instance(einsum, sizes)
    named, extents = _list_named(spec), instance.extents
    einsum = with_extents(einsum, extents)
    while count_footprint_bytes(einsum, {}) > NEAR_BYTES:
        longest = max(
            _group_indices(einsum), key=lambda side: prod(extents[i] for i in side)
        )
        index = max(
            longest, key=lambda i: (i not in named and extents[i] > 1, extents[i])
        )
        extents[index] = _round_to_vectors(-(-extents[index] // 2), index in named)
        einsum = with_extents(einsum, extents)
    return Instance(einsum, {})


def _group_indices(einsum: BatchedEinsum) -> tuple[set[str], ...]:
    """Return the indices of the rows, columns and terms of a matrix product."""
    first, second = map(set, einsum.inputs)
    return first - second, second - first, {*einsum.summation_indices}


def _list_named(spec: TransformSpec) -> set[str]:
    return set(map(str, spec.parameters.values()))


def _round_to_vectors(length: int, is_named: bool) -> int:
    """Round up to whole vectors along an index that may be that of the lanes."""
    return -(-length // LANES) * LANES if is_named else length


def deepen(instance: Instance, spec: TransformSpec) -> Instance | None:
    """Return a matrix product with three long sides, or None for other einsums.

    Rows, columns and sums are shortened or lengthened, preferably along indices that
    the recipe does not name.
    """
    einsum = instance.einsum
    if einsum.n_operands != 2:
        return None
    named, extents = _list_named(spec), instance.extents
    for side in _group_indices(einsum):
        order = sorted(side, key=lambda i: (i in named, extents[i]))
        for index in order:
            others = prod(extents[i] for i in side if i != index)
            extent = _round_to_vectors(-(-SIDE // others), index in named)
            extents[index] = min(extents[index], extent)
        extents[order[-1]] *= -(-SIDE // prod(extents[i] for i in side))
    return Instance(with_extents(einsum, extents), {})


def bind(instance: Instance, spec: TransformSpec, opened: OpenDevice) -> WarmKernel:
    """Compile and verify the recipe on an instance."""
    case = make_case(instance.einsum, instance.sizes)
    unit = apply_spec(spec, case.t_unit, case.nest)
    kernel = compile_kernel(unit, opened).bind(case.arguments)
    verify(kernel, case.expected, tolerance=case.tolerance)
    return WarmKernel(kernel)


def measure_limits(
    name: str,
    problem: TuningProblem,
    spec: TransformSpec,
    opened: OpenDevice,
    peaks: DevicePeaks,
    rounds: int,
) -> Limits:
    """Time the recipe at all sizes, in interleaved rounds."""
    whole = Instance(problem.einsum, problem.sizes)
    cube = deepen(whole, spec)
    instances = [whole, shrink_to_cache(whole, spec)]
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


def make_table(limits: Iterable[Limits]) -> Table:
    """Tabulate shares of the time of each entry."""
    parts = ("memory", "tiles", "cores")
    heads = ("entry", "ms", *parts, "of triad", "of peak", "most")
    table = Table(*heads, box=box.MARKDOWN)
    table.columns[0].no_wrap = True
    for limit in limits:
        shares = [_format_percent(limit.shares.get(part)) for part in parts]
        bounds = _format_percent(limit.triad), _format_percent(limit.peak)
        time = f"{limit.whole_s * 1e3:.2f}"
        table.add_row(limit.name, time, *shares, *bounds, limit.largest)
    return table


def _format_percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f}"


def find_recipe(
    entry: Entry, device: str | None, database: str | None
) -> TransformSpec | None:
    """Return the best recorded recipe for this device, unless it calls a library.

    It was recorded on this architecture, for exactly this einsum.
    """
    match = query(entry.make_einsum(), device=device, database=database)
    if match.level > MatchLevel.SAME_ARCHITECTURE or match.record is None:
        return None
    return None if match.record.spec.is_on_host else match.record.spec


def main() -> None:
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--only", default="", help="entries whose names match")
    parser.add_argument("--device", help="part of a device's name")
    parser.add_argument("--database", help="facts; by default the user's database")
    parser.add_argument(
        "--max-gflop",
        type=float,
        default=4.0,
        help="tccg: scale larger entries down to this",
    )
    parser.add_argument(
        "--elements-scale",
        type=float,
        default=1.0,
        help="factor of the mesh of operators",
    )
    parser.add_argument("--rounds", type=int, default=9, help="runs of each instance")
    parser.add_argument("--json", metavar="FILE", help="write all shares to this file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    opened = open_device(options.device)
    peaks = measure_peaks(opened, ["<f8"])
    cached = measure_peaks(opened, ["<f8"], array_bytes=NEAR_BYTES // 3)
    limits, without = [], []
    entries = list_both_suites(
        options.only,
        max_gflop=options.max_gflop,
        elements_scale=options.elements_scale,
    )
    for entry in track(entries, "entries", console=STDERR):
        spec = find_recipe(entry, options.device, options.database)
        if spec is None:
            without.append(entry.name)
            continue
        problem = make_problem(entry.make_einsum(), entry.parameters, options.device)
        limits.append(
            measure_limits(entry.name, problem, spec, opened, peaks, options.rounds)
        )
    print(
        f"percent of the time on {opened.device}; the triad has "
        f"{peaks.bandwidth_bytes_per_s / 1e9:.1f} GB/s, in the cache "
        f"{cached.bandwidth_bytes_per_s / 1e9:.1f}, and multiply-adds "
        f"{peaks.operations_per_s['<f8'] / 1e9:.1f} GFLOP/s"
    )
    Console(width=100).print(make_table(limits))
    others = ", ".join(without) or "none"
    print(f"without a recipe of this device that is a kernel: {others}")
    if options.json:
        document = [{**asdict(limit), "most": limit.largest} for limit in limits]
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
