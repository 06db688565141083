"""Tables for the everyday suite: speed-ups by size and class, and the entries that
lose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.entries import find_entry
from benchmarks.experiments.report import format_ms, make_compact_table
from benchmarks.experiments.results import (
    Comparison,
    Outcome,
    Report,
    Result,
    compute_geometric_mean,
)
from feinsum.suites import EVERYDAY

__all__ = ["SIZES", "classify_einsum", "show_calls"]

SIZES = ("small", "medium", "large")
OURS = ("feinsum untuned", "feinsum tuned")
LOST = 0.9
"""Ratio below which an entry counts as a loss."""


def show_calls(report: Report, console: Console) -> None:
    """Print ratios by size, by class, and every loss; at most 80 columns wide."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    results = [*report.results.values()]
    for name in OURS:
        if not any(r.compare(ours=name) for r in results):
            continue
        say(f"\n{name}: ratios of times, a rival's over ours (above 1, ours is faster)")
        groups = {size: [r for r in results if r.group == size] for size in SIZES}
        groups["medium and large"] = [*groups["medium"], *groups["large"]]
        console.print(_tabulate_means(groups, name, "size"))
        console.print(_tabulate_means(_group_by_class(results), name, "class"))
        say(f"lost: below {LOST} of the best rival")
        console.print(_tabulate_losses(results, name))
    for line in _list_failures(results):
        say(line)


def classify_einsum(subscripts: str) -> str:
    """Classify an einsum by which operands have which indices.

    >>> examples = "ij->ji", "ij->i", "ij,jk->ik", "bij,bj->bi", "i,j->ij"
    >>> [classify_einsum(x) for x in examples]
    ['view', 'sum of one', 'product of matrices', 'matrix times vector', 'pointwise']
    """
    inputs, _, output = subscripts.partition("->")
    terms = inputs.split(",")
    if len(terms) > 2:
        return "three operands and more"
    summed = set(inputs) - set(output) - {","}
    if len(terms) == 1:
        return "sum of one" if summed else "view"
    if not summed:
        return "pointwise"
    first, second = map(set, terms)
    n_free = bool(first - second - summed) + bool(second - first - summed)
    return ("inner product", "matrix times vector", "product of matrices")[n_free]


def _group_by_class(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Group medium and large entries by class; the time of small ones is overhead."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.group != "small":
            entry = find_entry(EVERYDAY, result.name, result.sizes)
            groups.setdefault(classify_einsum(entry.subscripts), []).append(result)
    return dict(sorted(groups.items()))


def _tabulate_means(groups: dict[str, list[Result]], ours: str, heading: str) -> Table:
    table = make_compact_table(
        [heading], "entries", "best", "numpy", "lost", "worst", "first s", "second s"
    )
    for group, results in groups.items():
        compared = _compare_all(results, ours)
        if not compared:
            continue
        ratios = [c.ratio for _, c in compared]
        against = [c.ratio for r in results if (c := r.compare("numpy", ours=ours))]
        firsts = [c.ours.first_s for _, c in compared if c.ours.first_s is not None]
        seconds = [c.ours.second_s for _, c in compared if c.ours.second_s is not None]
        table.add_row(
            group,
            str(len(compared)),
            _format_ratio(compute_geometric_mean(ratios)),
            _format_ratio(compute_geometric_mean(against)),
            f"{sum(x < LOST for x in ratios) / len(ratios):.0%}",
            f"{min(ratios):.2f}",
            f"{median(firsts):.2f}" if firsts else "-",
            f"{median(seconds):.2f}" if seconds else "-",
        )
    return table


def _compare_all(
    results: Sequence[Result], ours: str
) -> list[tuple[Result, Comparison]]:
    return [(r, c) for r in results if (c := r.compare(ours=ours))]


def _format_ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _tabulate_losses(results: Sequence[Result], ours: str) -> Table:
    table = make_compact_table(["entry"], "ratio", "ours ms", "rival ms")
    table.add_column("rival, our recipe", no_wrap=True)
    compared = sorted(
        _compare_all(results, ours), key=lambda comparison: comparison[1].ratio
    )
    for result, comparison in compared:
        if comparison.ratio < LOST:
            table.add_row(
                result.name,
                f"{comparison.ratio:.2f}",
                format_ms(comparison.ours.median_s),
                format_ms(comparison.rival.median_s),
                f"{comparison.name}, {comparison.ours.note.partition('@')[0]}",
            )
    return table


def _list_failures(results: Sequence[Result]) -> Iterator[str]:
    """Report results of ours that are wrong or missing."""
    for result in results:
        for outcomes in result.runs.values():
            for name, outcome in outcomes.items():
                if name == OURS[0] and not outcome.is_ok:
                    yield f"{name} at {result.name}: {_explain_failure(outcome)}"


def _explain_failure(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.why}"
