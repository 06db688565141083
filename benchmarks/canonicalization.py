"""Time canonicalization: the contractions of TCCG, batches, and growth with size.

Prints tables and draws two figures. Times are wall-clock medians over rounds that visit
every workload once; a sample is the mean over equal einsums that were created before,
so that nothing is cached.

Source: paper, section 8.3, figure 6.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import networkx as nx
import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track

from benchmarks.processes import ROOT
from benchmarks.tables import make_table
from feinsum.canonical import build_induced_graph, canonicalize
from feinsum.canonical.form import compute_form
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum
from feinsum.records import compute_quartiles
from feinsum.suites import read_suite_documents
from tests.canonical import graphs, instances

Make = Callable[[], BatchedEinsum]

STDERR = Console(stderr=True)
TITLE = {
    "title": "n vertices; microseconds: median (quartiles)",
    "title_justify": "left",
}

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
"""Colors that are distinct for the color-blind (Okabe and Ito)."""


@dataclass(frozen=True)
class Workload:
    """An einsum that can be created repeatedly."""

    name: str
    make: Make
    n_copies: int

    @property
    def n_vertices(self) -> int:
        return len(build_induced_graph(self.make()).colors)


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles, in microseconds."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        digits = 1 if self.high < 100 else 0
        low, middle, high = (
            f"{x:.{digits}f}" for x in (self.low, self.middle, self.high)
        )
        return f"{middle} ({low}-{high})"


def compute_key(e: BatchedEinsum) -> None:
    """Time from the einsum to the key"""
    _ = compute_form(e).key


def compute_all(e: BatchedEinsum) -> None:
    """Time of key, canonical einsum and relabeling"""
    form = compute_form(e)
    _ = form.key, form.einsum, form.relabeling


def repeat_key(e: BatchedEinsum) -> None:
    """Time for an einsum that was canonicalized before"""
    _ = canonicalize(e).key


def measure(
    action: Callable[[BatchedEinsum], None],
    workloads: Sequence[Workload],
    n_rounds: int,
) -> list[Spread]:
    """Time an action on each workload."""
    samples: list[list[float]] = [[] for _ in workloads]
    for _ in track(
        range(n_rounds), action.__doc__ or "", console=STDERR, transient=True
    ):
        for workload, times in zip(workloads, samples, strict=True):
            times.append(_time_mean_us(action, workload))
    return [Spread(*compute_quartiles(times)) for times in samples]


def _time_mean_us(action: Callable[[BatchedEinsum], None], workload: Workload) -> float:
    einsums = [workload.make() for _ in range(workload.n_copies)]
    gc.collect(0)
    start = time.perf_counter()
    for e in einsums:
        action(e)
    return (time.perf_counter() - start) / len(einsums) * 1e6


def list_tccg() -> list[Workload]:
    """List the 48 contractions of the suite."""
    return [
        Workload(e["name"], _make_contraction(e), 20)
        for e in read_suite_documents("tccg")
    ]


def _make_contraction(entry: dict) -> Make:
    subscripts, sizes = entry["subscripts"], entry["sizes"]
    terms = subscripts.partition("->")[0].split(",")

    def make() -> BatchedEinsum:
        operands = [
            array(name, tuple(sizes[i] for i in term))
            for name, term in zip("AB", terms, strict=True)
        ]
        return einsum(subscripts, *operands)

    return make


def make_divergence(b: int) -> Make:
    """Make a batch of b divergences of discontinuous Galerkin, order 3."""

    def make() -> BatchedEinsum:
        jacobian, matrices = array("J", (3, 3, "N")), array("D", (3, 20, 20))
        fields = [array(f"u{k}", (3, "N", 20)) for k in range(b)]
        rows = [[jacobian, matrices, field] for field in fields]
        return batched_einsum("xre,rij,xej->ei", rows)

    return make


def make_chain(n: int) -> Make:
    """Make a product of n matrices."""

    def make() -> BatchedEinsum:
        names = [f"i{k}" for k in range(n + 1)]
        terms = ",".join(f"{{{left}}}{{{right}}}" for left, right in pairwise(names))
        matrices = [array(f"M{k}", ("N", "N")) for k in range(n)]
        return einsum(f"{terms}->{{{names[0]}}}{{{names[-1]}}}", *matrices)

    return make


def make_hadamard(n: int) -> Make:
    """Make a pointwise product of n vectors."""

    def make() -> BatchedEinsum:
        vectors = [array(f"v{k}", ("N",)) for k in range(n)]
        return einsum(",".join("i" * n) + "->i", *vectors)

    return make


def list_sizes(name: str, family: Callable[[int], Make], most: int) -> list[Workload]:
    """List a family at sizes 1, 2, 4, ... up to ``most``."""
    sizes = [2**k for k in range(most.bit_length())]
    return [Workload(f"{name} {n}", family(n), max(1, 32 // n)) for n in sizes]


FAMILIES = {
    "chain of matrices": list_sizes("chain", make_chain, 1024),
    "DG batch (divergence)": list_sizes("divergence", make_divergence, 256),
    "pointwise product": list_sizes("pointwise", make_hadamard, 1024),
}


def list_hard_instances() -> list[Workload]:
    """List symmetric einsums, and those of graphs that are hard to distinguish."""
    petersen, dodecahedron = nx.petersen_graph(), nx.dodecahedral_graph()
    figures = {
        "trace of 64 matrices": instances.ring(64),
        "complete network K12": instances.cyclic_network(12),
        "Shrikhande graph": instances.adjacency(graphs.shrikhande()),
        "Paley graph 29": instances.adjacency(graphs.paley(29)),
        "Chang graph": instances.adjacency(graphs.chang(0)),
        "CFI over Petersen": instances.adjacency(graphs.cfi(petersen)),
        "CFI over Petersen, rows": instances.incidence_batch(
            graphs.cfi(petersen).edges
        ),
        "CFI over dodecahedron": instances.adjacency(graphs.cfi(dodecahedron)),
    }
    return [Workload(name, lambda e=e: e, 1) for name, e in figures.items()]


def fit_slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Fit the exponent of a power law."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def compute_n_log_n(sizes: Iterable[float]) -> list[float]:
    return [n * math.log(n) for n in sizes]


def draw_bars(
    path: Path, names: Sequence[str], columns: dict[str, list[Spread]]
) -> None:
    """Draw one group of bars per contraction, as in figure 6 of the paper."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    axes = figure.subplots()
    at = np.arange(len(names))
    for k, (label, spreads_us) in enumerate(columns.items()):
        middle = [s.middle for s in spreads_us]
        below = [s.middle - s.low for s in spreads_us]
        above = [s.high - s.middle for s in spreads_us]
        left, color = at + 0.42 * k - 0.21, (BLUE, ORANGE)[k]
        axes.bar(left, middle, 0.4, label=label, color=color,
                 yerr=(below, above), ecolor=GREY, error_kw={"lw": 0.8})  # fmt: skip
    axes.set_xticks(at, names, rotation=60, ha="right", rotation_mode="anchor", size=8)
    axes.set_xlim(-0.8, len(names) - 0.2)
    axes.set_ylabel("time (µs)")
    axes.set_title(
        "Canonicalization of the 48 contractions of TCCG (median, quartiles)"
    )
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", ncols=2, framealpha=1)
    axes.set_ylim(0, 1.2 * max(s.high for column in columns.values() for s in column))
    figure.savefig(path, dpi=110)


def draw_growth(path: Path, growth: dict[str, tuple[list[int], list[Spread]]]) -> None:
    """Draw time over the number of vertices, with the slopes of the fits."""
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    styles = zip((BLUE, ORANGE, GREEN), "os^", strict=True)
    for (name, (sizes, spreads_us)), (color, marker) in zip(
        growth.items(), styles, strict=True
    ):
        times = [s.middle / 1e3 for s in spreads_us]
        label = f"{name}: slope {fit_slope(sizes, times):.2f}"
        axes.loglog(sizes, times, marker=marker, color=color, label=label, lw=1.2, ms=5)
    sizes = np.geomspace(*_find_range(growth), 50)
    guide = np.array(compute_n_log_n(sizes))
    axes.loglog(sizes, guide * _choose_lift(growth), "--", color=GREY, lw=1,
                label=f"n log n: slope {fit_slope(sizes, guide):.2f}")  # fmt: skip
    axes.set_xlabel("vertices of the induced graph")
    axes.set_ylabel("time from the einsum to its key (ms)")
    axes.set_title("Growth of canonicalization (medians)")
    axes.grid(which="both", alpha=0.25)
    axes.legend()
    figure.savefig(path, dpi=110)


def _find_range(growth: dict[str, tuple[list[int], list[Spread]]]) -> tuple[int, int]:
    sizes = [n for ns, _ in growth.values() for n in ns]
    return min(sizes), max(sizes)


def _choose_lift(growth: dict[str, tuple[list[int], list[Spread]]]) -> float:
    """Return a factor that puts the guide a little above every point."""
    return 1.3 * max(
        s.middle / 1e3 / (n * math.log(n))
        for sizes, spreads_us in growth.values()
        for n, s in zip(sizes, spreads_us, strict=True)
    )


def report_contractions(console: Console, n_rounds: int) -> dict[str, list[Spread]]:
    workloads = list_tccg()
    columns = {
        "key": measure(compute_key, workloads, n_rounds),
        "with einsum and relabeling": measure(compute_all, workloads, n_rounds),
    }
    repeated = measure(repeat_key, workloads, n_rounds)
    table = make_table(["contraction"], ("n", "key", "with einsum", "again"), **TITLE)
    for k, workload in enumerate(workloads):
        cells = [str(column[k]) for column in (*columns.values(), repeated)]
        table.add_row(workload.name, str(workload.n_vertices), *cells)
    console.print(table)
    for name, column in (*columns.items(), ("again", repeated)):
        middle = [s.middle for s in column]
        console.print(
            f"{name}: min {min(middle):.1f}, median {median(middle):.1f}, "
            f"max {max(middle):.1f} us",
            soft_wrap=True,
        )
    return columns


def report_growth(
    console: Console, n_rounds: int
) -> dict[str, tuple[list[int], list[Spread]]]:
    growth = {}
    table = make_table(["workload"], ("n", "key", "with einsum"), **TITLE)
    for name, workloads in FAMILIES.items():
        sizes = [w.n_vertices for w in workloads]
        keys = measure(compute_key, workloads, n_rounds)
        whole = measure(compute_all, workloads, n_rounds)
        growth[name] = sizes, keys
        for w, n, a, b in zip(workloads, sizes, keys, whole, strict=True):
            table.add_row(w.name, str(n), str(a), str(b))
    console.print(table)
    for name, (sizes, keys) in growth.items():
        console.print(
            f"{name}: {sizes[0]} to {sizes[-1]} vertices, time grows with slope "
            f"{fit_slope(sizes, [s.middle for s in keys]):.2f}; n log n with "
            f"{fit_slope(sizes, compute_n_log_n(sizes)):.2f}",
            soft_wrap=True,
        )
    return growth


def report_hard_instances(console: Console, n_rounds: int) -> None:
    workloads = list_hard_instances()
    table = make_table(["hard instance"], ("n", "key"), **TITLE)
    times = measure(compute_key, workloads, min(n_rounds, 5))
    for workload, spread in zip(workloads, times, strict=True):
        table.add_row(workload.name, str(workload.n_vertices), str(spread))
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21, help="samples (default: 21)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures",
                        help="folder of the figures")  # fmt: skip
    options = parser.parse_args(arguments)
    console = Console()
    bars = report_contractions(console, options.rounds)
    growth = report_growth(console, options.rounds)
    report_hard_instances(console, options.rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    draw_bars(
        options.out / "canonicalization-tccg.png", [w.name for w in list_tccg()], bars
    )
    draw_growth(options.out / "canonicalization-growth.png", growth)
    console.print(f"figures: {options.out}/canonicalization-*.png")


if __name__ == "__main__":
    main()
