"""Count the elements that plans move, and compare Deinsum's heuristic and named
schedules.

Nothing is run: counts are sums over the steps of every process, and exact. The einsums
are the ten of Deinsum's benchmarks; the extents are ours, the same for every number of
processes. All schedules of a line have the same contraction path. For an einsum on the
command line, all schedules are listed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean

import feinsum
from benchmarks.papers.schedules import make_named_plans
from feinsum.cli.shared.notation import read_einsum
from feinsum.distributed import Counts, Plan
from feinsum.ir import BatchedEinsum

PROCESSES = (8, 16, 64, 512)
PAPERS = ("deinsum", "footprint", "eindecomp")
MATRIX, ORDER_3, ORDER_5, RANK = 4096, 1024, 88, 24

SUBSCRIPTS = {
    "1MM": "ij,jk->ik",
    "2MM": "ij,jk,kl->il",
    "3MM": "ij,jk,kl,lm->im",
    "MTTKRP-03-M0": "ijk,ja,ka->ia",
    "MTTKRP-03-M1": "ijk,ia,ka->ja",
    "MTTKRP-03-M2": "ijk,ia,ja->ka",
    "MTTKRP-05-M0": "ijklm,ja,ka,la,ma->ia",
    "MTTKRP-05-M2": "ijklm,ia,ja,la,ma->ka",
    "MTTKRP-05-M4": "ijklm,ia,ja,ka,la->ma",
    "TTMc-05-M0": "ijklm,jb,kc,ld,me->ibcde",
}


@dataclass(frozen=True, eq=False)
class Line:
    """The counts of one einsum on a number of processes."""

    name: str
    processes: int
    planned: Counts
    others: dict[str, Counts]

    def find_best(self, names: Sequence[str]) -> Counts | None:
        """Return the counts of the given schedule that moves the least."""
        counts = [self.others[n] for n in names if n in self.others]
        return min(counts, key=lambda c: c.moved, default=None)


def make_einsum(name: str) -> BatchedEinsum:
    subscripts = SUBSCRIPTS[name]
    extent = MATRIX if "MM" in name else ORDER_3 if "-03" in name else ORDER_5
    extent = ORDER_5 if "-05" in name else extent
    terms = subscripts.split("->")[0].split(",")
    arrays = [
        feinsum.array(f"A{k}", tuple(RANK if i in "abcde" else extent for i in term))
        for k, term in enumerate(terms)
    ]
    return feinsum.einsum(subscripts, *arrays)


def count_line(name: str, processes: int) -> Line:
    einsum = make_einsum(name)
    ranks_plan = feinsum.plan(einsum, processes=processes)
    others = make_named_plans(einsum, processes=processes, path=ranks_plan.path)
    counts = {other: plan.counts for other, plan in others.items()}
    return Line(name, processes, ranks_plan.counts, counts)


def compute_mean(ratios: Sequence[float]) -> float:
    return geometric_mean(ratios) if ratios else float("nan")


def compute_ratio(other: Counts, line: Line) -> float:
    return other.moved / line.planned.moved


def report(lines: Sequence[Line]) -> None:
    heading = f"{'einsum':<14}{'P':>5}{'planned':>15}{'at work':>9}{'deinsum':>15}"
    print(f"{heading}{'ratio':>9}{'footprint':>15}{'eindecomp':>15}{'others':>9}")
    for row in lines:
        deinsum, footprint, eindecomp = (row.others[n] for n in PAPERS)
        rest = row.find_best([n for n in row.others if n not in PAPERS])
        best = "-" if rest is None else f"{compute_ratio(rest, row):.2f}"
        ratio = compute_ratio(deinsum, row)
        print(
            f"{row.name:<14}{row.processes:>5}{row.planned.moved:>15,}"
            f"{row.planned.busy:>9}{deinsum.moved:>15,}{ratio:>9.2f}"
            f"{footprint.moved:>15,}{eindecomp.moved:>15,}{best:>9}"
        )
    for processes in sorted({row.processes for row in lines}):
        rows = [row for row in lines if row.processes == processes]
        print(f"P = {processes}: {summarize(rows)}")
    print(f"all: {summarize(lines)}")


def summarize(lines: Sequence[Line]) -> str:
    """Summarize lines by geometric means."""
    # geometric: ratios of 2 and 1/2 cancel
    ratios = {row: compute_ratio(row.others["deinsum"], row) for row in lines}
    differing = [r for r in ratios.values() if abs(r - 1) > 1e-9]
    without = [r for row, r in ratios.items() if not row.name.startswith("TTMc")]
    return (
        f"ratio {compute_mean(list(ratios.values())):.3f}, where it is not 1 "
        f"{compute_mean(differing):.3f} ({len(differing)} of {len(lines)}); "
        f"without TTMc {compute_mean(without):.3f}"
    )


def show_schedules(ranks_plan: Plan, others: dict[str, Plan]) -> None:
    """Print the traffic and memory of the plan and of each schedule."""
    print(f"{'schedule':<12}{'moved':>18}{'ratio':>8}{'bytes held':>18}{'at work':>9}")
    for name, plan in {"planned": ranks_plan, **others}.items():
        moved = ranks_plan.counts.moved
        of_planned = f"{plan.counts.moved / moved:.2f}" if moved else "-"
        print(
            f"{name:<12}{plan.counts.moved:>18,}{of_planned:>8}{plan.peak_bytes:>18,}"
            f"{plan.counts.busy:>9}"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subscripts", nargs="?", help="an einsum to plan instead")
    parser.add_argument("--sizes", help="its extents, such as i=600,j=600,k=600")
    parser.add_argument("--only", default="", help="part of the name of an einsum")
    parser.add_argument("--processes", type=int, nargs="*", default=list(PROCESSES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.subscripts is not None:
        einsum = read_einsum(options.subscripts, [options.sizes or ""])
        for processes in options.processes:
            ranks_plan = feinsum.plan(einsum, processes=processes)
            print(f"{einsum.subscripts} on {processes} processes")
            show_schedules(
                ranks_plan,
                make_named_plans(einsum, processes=processes, path=ranks_plan.path),
            )
        return
    lines = [
        count_line(name, processes)
        for name in SUBSCRIPTS
        if options.only in name
        for processes in options.processes
    ]
    if options.json:
        document = [
            {
                "einsum": row.name,
                "processes": row.processes,
                "planned": row.planned.document(),
                "others": {n: c.document() for n, c in row.others.items()},
            }
            for row in lines
        ]
        json.dump(document, sys.stdout, indent=1)
    else:
        report(lines)
