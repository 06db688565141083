"""Compare the figures of the papers with ours: one command for each paper.

``python -m benchmarks.papers.figures deinsum`` (or ``make paper-deinsum``; likewise
``distal``, ``eindecomp``, ``spttn``) prints figures of a paper, ours, and the reasons
of differences. Figures are bounds, costs, grids and numbers of elements: exact, and the
same on every machine. Timings of the papers are listed with the command that times the
same here. The exit code is 1 if a difference has no reason.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

import feinsum
from benchmarks.papers.decompose import count_partitions
from benchmarks.papers.schedules import make_named_plan
from feinsum.bounds import compute_intensity, make_statement
from feinsum.distributed import GroupSchedule, Machine, assemble, groups_of, with_cyclic
from feinsum.distributed.grids import (
    compute_aggregation,
    compute_join,
    compute_repartition,
)
from feinsum.distributed.schedule import derive_distribution, without_copies
from feinsum.ir import BatchedEinsum, sparse_array

N = 576
"""Rows and columns of matrices; DISTAL's counts hold for any multiple of q."""


@dataclass(frozen=True)
class Figure:
    """A figure of a paper.

    Attributes:
        section: of the paper.
        paper, ours: as text; the paper's is empty where it has a formula only.
        reason: of a difference; or how it is measured here.
    """

    section: str
    quantity: str
    paper: str
    ours: str
    reason: str = ""

    @property
    def is_explained(self) -> bool:
        """Return whether both are equal, or the difference has a reason."""
        return self.paper == self.ours or bool(self.reason)


def _make_dense(subscripts: str, every: int = N, **extents: int) -> BatchedEinsum:
    terms = subscripts.split("->")[0].split(",")
    arrays = [
        feinsum.array("ABCDE"[k], tuple(extents.get(i, every) for i in term))
        for k, term in enumerate(terms)
    ]
    return feinsum.einsum(subscripts, *arrays)


# ---- Deinsum


def compare_deinsum() -> Iterator[Figure]:
    """Compare bounds, the running example, and the grids of section VI-B."""
    for name, subscripts, paper in (
        ("product of matrices", "ij,jk->ik", "S^1/2 / 2"),
        ("MTTKRP of order 3", "ijk,ja,ka->ia", "S^2/3 / 3"),
        ("MTTKRP of order 4", "ijkl,ja,ka,la->ia", "S^3/4 / 4"),
        ("MTTKRP of order 5", "ijklm,ja,ka,la,ma->ia", "S^4/5 / 5"),
    ):
        yield Figure(
            "bounds", f"intensity of a {name}", paper, _format_intensity(subscripts)
        )
    yield Figure("bounds", "bound of MTTKRP over Ballard et al.", "> 6",
                 _compare_with_ballard(), "the exact ratio is 3^5/3")  # fmt: skip
    example = _make_dense("ijk,ja,ka,al->il", 10)
    grids = make_named_plan("deinsum", example, processes=8)
    sizes = " and ".join(str(s.machine.sizes) for s in grids.schedules)
    yield Figure(
        "example", "grids of its example on 8", "(2, 2, 2) and (2, 2, 2)", sizes
    )
    moved = feinsum.plan(example, processes=8).counts.moved
    yield Figure("example", "elements that these grids move; the plan",
                 f"{grids.counts.moved:,}", f"{moved:,}",
                 "both counted here; the plan leaves sums in blocks")  # fmt: skip
    for processes, paper in ((16, "(2, 2, 4)"), (32, "(2, 4, 4)")):
        einsum = _make_dense("ij,jk->ik", 4096)
        grid_plan = make_named_plan("deinsum", einsum, processes=processes)
        yield Figure("VI-B", f"grid of a product on {processes} nodes", paper,
                     str(tuple(sorted(grid_plan.schedules[0].machine.sizes)))
                     )  # fmt: skip
    yield Figure("abstract", "speed-up on 512 nodes of Piz Daint", "up to 19", "",
                 "no such machine here; `make bench-plans` compares what its grids "
                 "move, `make bench-plans-seconds` times plans")  # fmt: skip


def _format_intensity(subscripts: str) -> str:
    """Return the intensity as a power of the memory S over a number."""
    extents = dict.fromkeys("aijklm", 10**6)
    intensity = compute_intensity(make_statement(subscripts, extents))
    exponent = intensity.cover.total - 1
    memory = 10.0**9
    factor = memory ** float(exponent) / intensity.steps_per_byte(memory)
    return f"S^{exponent} / {factor:.0f}"


def _compare_with_ballard() -> str:
    """Return the ratio of our bound of MTTKRP to that of Ballard et al."""
    steps, memory = 1e18, 1e6
    earlier = 3 * steps / (3 ** (5 / 3) * memory ** (2 / 3))
    intensity = compute_intensity(
        make_statement("ijk,ja,ka->ia", dict.fromkeys("aijk", 10**6))
    )
    return f"{steps / intensity.steps_per_byte(memory) / earlier:.2f}"


# ---- DISTAL


def compare_distal() -> Iterator[Figure]:
    """Compare the communication of the matrix products of table 1, and of MTTKRP."""
    square = _make_dense("ij,jk->ik")
    for name in ("summa", "pumma", "cannon"):
        for q in (2, 4, 8):
            counts = make_named_plan(name, square, processes=q * q).counts
            yield Figure("table 1", f"{name}, {q} x {q}: 2 n^2 (q - 1)",
                         _format_elements(2 * N**2 * (q - 1)),
                         _format_elements(counts.moved))  # fmt: skip
    for q in (2, 3, 4):
        counts = make_named_plan("johnson", square, processes=q**3).counts
        yield Figure("table 1", f"johnson, {q} cubed: 3 n^2 (q - 1)",
                     _format_elements(3 * N**2 * (q - 1)),
                     _format_elements(counts.moved))  # fmt: skip
    for q, c in ((2, 2), (4, 4)):
        counts = make_named_plan("2.5d", square, processes=q * q * c).counts
        paper = 2 * (q * N**2 - N**2 // c) + (c - 1) * N**2
        yield Figure("table 1", f"2.5d, {q} x {q} x {c}", _format_elements(paper),
                     _format_elements(counts.moved))  # fmt: skip
    requests = [
        make_named_plan(name, square, processes=16).counts.most_requests
        for name in ("summa", "cannon")
    ]
    yield Figure("3.3", "requests for one block at a time, SUMMA and Cannon on 4 x 4",
                 "3 and 1", " and ".join(map(str, requests)))  # fmt: skip
    mttkrp = _make_dense("ijk,ja,ka->ia", 16, a=10)
    counts = make_named_plan("ballard", mttkrp, processes=8).counts
    yield Figure("table 2", "MTTKRP on 2 x 2 x 2: two matrices fetched, one reduced",
                 "960 and 480", f"{counts.received} and {counts.reduced}")  # fmt: skip
    yield Figure("figures", "flop/s on its machine", "", "",
                 "no such machine here; benchmarks/papers/distal.py has the "
                 "commands, whose schedules run on ranks in tests")  # fmt: skip


# ---- EinDecomp


def compare_eindecomp() -> Iterator[Figure]:
    """Compare numbers of partitions, plans of figure 1, and costs of examples."""
    yield Figure("text", "partitions of six indices on 1024", "3003",
                 str(count_partitions(6, 1024)))  # fmt: skip
    yield Figure("8.2", "partitions of a product on 8", "8",
                 str(count_partitions(3, 8)),
                 "the paper lists eight of the ten")  # fmt: skip
    reason = "by its formula 16 calls of 16 + 16 elements are 512"
    for grid, paper, why in (
        ((4, 1, 4), 256, reason),
        ((2, 1, 8), 640, ""),
        ((2, 4, 2), 448, ""),
        ((2, 2, 4), 448, ""),
    ):
        i, j, k = grid
        cost = compute_join(grid, [64 // (i * j), 64 // (j * k)])
        cost = cost + compute_aggregation(grid, [j], 64 // (i * k))
        yield Figure("figure 1", f"cost of {grid} for 8 x 8 on 16", str(paper),
                     f"{float(cost):.0f}", why)  # fmt: skip
    yield Figure(
        "costs",
        "aggregation of (2, 2, 4)",
        "64",
        f"{float(compute_aggregation([2, 2, 4], [2], 8)):.0f}",
    )
    yield Figure(
        "costs",
        "repartition of 8 x 8 from (2, 4) to (4, 1)",
        "320",
        f"{float(compute_repartition([4, 1], [2, 4], [8, 8])):.0f}",
        "with producer and consumer as its text has them",
    )
    yield Figure("figures", "seconds on its machines", "", "",
                 "no such machines here; `make bench-programs-moved` compares what "
                 "plans of the same programs move with XLA and dask.array")  # fmt: skip


# ---- SpTTN-Cyclops


def compare_spttn() -> Iterator[Figure]:
    """Compare volumes of TTMc on several grids with its formulas."""
    n = {"i": 64, "j": 32, "k": 48, "r": 8, "s": 4}
    for grid in ((2, 2, 2), (4, 2, 1), (1, 4, 4), (8, 1, 1)):
        processes = int(np.prod(grid))
        copies = processes * (n["j"] // grid[1] * n["r"] + n["k"] // grid[2] * n["s"])
        once = n["j"] * n["r"] + n["k"] * n["s"]
        reduced = (processes // grid[0] - 1) * n["i"] * n["r"] * n["s"]
        counts = _plan_ttmc(grid, n).counts
        yield Figure("volumes", f"TTMc on {grid}: factors fetched, sums reduced",
                     f"{copies - once:,} and {reduced:,}",
                     f"{counts.received:,} and {counts.reduced:,}")  # fmt: skip
    terms = "ijk,jr,ks->irs"
    counts = feinsum.plan(_make_sparse(terms, n), processes=8, nonzeros=1000).counts
    yield Figure("volumes", "the plan on 8, of 1,000 entries", "", f"{counts.moved:,}",
                 "factors and sums; the planner chose the grid")  # fmt: skip
    yield Figure("figures", "seconds on its machine", "", "",
                 "no such machine here; `make bench-sparse` times the same kernels "
                 "against SPLATT's algorithm in C")  # fmt: skip


def _make_sparse(subscripts: str, extents: dict[str, int]) -> BatchedEinsum:
    first, *terms = subscripts.split("->")[0].split(",")
    operands = [sparse_array("T", [extents[i] for i in first])]
    for name, term in zip("BC", terms, strict=True):
        operands.append(feinsum.array(name, [extents[i] for i in term]))
    return feinsum.einsum(subscripts, *operands)


def _plan_ttmc(
    grid: Sequence[int], extents: dict[str, int]
) -> feinsum.distributed.Plan:
    """Return TTMc on a grid over the axes of its tensor; sums end on one rank."""
    einsum, machine = _make_sparse("ijk,jr,ks->irs", extents), Machine(tuple(grid))
    path, axes = ((0, 1, 2),), tuple("ijk")
    (group,) = groups_of(einsum, path, extents)
    result = without_copies(derive_distribution(axes, group.output, machine))
    schedule = GroupSchedule(machine, axes, result)
    n_processes = machine.n_processes
    ttmc_plan = assemble(einsum, {}, n_processes, path, [schedule], nonzeros=1000)
    return with_cyclic(ttmc_plan, axes)


def _format_elements(n: int) -> str:
    # in n squared: the figures of the table
    return f"{n:,} ({n / N**2:g} n^2)"


PAPERS: dict[str, tuple[str, Callable[[], Iterator[Figure]]]] = {
    "deinsum": ("Ziogas et al., Deinsum", compare_deinsum),
    "distal": ("Yadav, Aiken and Kjolstad, DISTAL", compare_distal),
    "eindecomp": ("Bourgeois et al., EinDecomp", compare_eindecomp),
    "spttn": ("Kanakagiri and Solomonik, SpTTN-Cyclops", compare_spttn),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures of a paper; returns 1 if a difference has no reason."""
    (name,) = sys.argv[1:] if arguments is None else arguments
    title, list_figures = PAPERS[name]
    table = Table("section", "figure", "paper", "ours", "difference", title=title)
    figures = list(list_figures())
    for figure in figures:
        table.add_row(*_format_row(figure))
    Console().print(table)
    return int(not all(figure.is_explained for figure in figures))


def _format_row(figure: Figure) -> tuple[str, ...]:
    difference = figure.reason or ("none" if figure.is_explained else "UNEXPLAINED")
    return (
        figure.section,
        figure.quantity,
        figure.paper or "-",
        figure.ours or "-",
        difference,
    )


if __name__ == "__main__":
    sys.exit(main())
