"""The tables of the suite of everyday einsums: what a call gains, and what it loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.entries import entry_at
from benchmarks.experiments.report import milliseconds
from benchmarks.experiments.results import (
    Comparison,
    Outcome,
    Report,
    Result,
    geometric_mean,
)
from feinsum.suites import EVERYDAY

__all__ = ["SIZES", "class_of", "show_calls"]

SIZES = ("small", "medium", "large")
OURS = ("feinsum untuned", "feinsum tuned")
LOST = 0.9
"""The ratio below which an entry is lost."""


def show_calls(report: Report, console: Console) -> None:
    """By size, by class, and every entry that is lost; at most 80 columns wide."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    results = [*report.results.values()]
    for name in OURS:
        if not any(r.against(ours=name) for r in results):
            continue
        say(f"\n{name}: ratios of times, a rival's over ours (above 1, ours is faster)")
        groups = {size: [r for r in results if r.group == size] for size in SIZES}
        groups["medium and large"] = [*groups["medium"], *groups["large"]]
        console.print(_means(groups, name, "size"))
        console.print(_means(_by_class(results), name, "class"))
        say(f"lost: below {LOST} of the best rival")
        console.print(_lost(results, name))
    for line in _wrong(results):
        say(line)


def class_of(subscripts: str) -> str:
    """What kind of einsum it is, by who has which index.

    >>> [class_of(x) for x in ("ij->ji", "ij->i", "ij,jk->ik", "bij,bj->bi", "i,j->ij")]
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


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(names[0], no_wrap=True)
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _by_class(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Without small entries, whose times are those of calls."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.group != "small":
            entry = entry_at(EVERYDAY, result.name, result.sizes)
            groups.setdefault(class_of(entry.subscripts), []).append(result)
    return dict(sorted(groups.items()))


def _means(groups: dict[str, list[Result]], ours: str, heading: str) -> Table:
    table = _table(
        heading, "entries", "best", "numpy", "lost", "worst", "first s", "second s"
    )
    for group, results in groups.items():
        compared = _compared(results, ours)
        if not compared:
            continue
        ratios = [c.ratio for _, c in compared]
        against = [c.ratio for r in results if (c := r.against("numpy", ours=ours))]
        firsts = [c.ours.first_s for _, c in compared if c.ours.first_s is not None]
        seconds = [c.ours.second_s for _, c in compared if c.ours.second_s is not None]
        table.add_row(
            group,
            str(len(compared)),
            _number(geometric_mean(ratios)),
            _number(geometric_mean(against)),
            f"{sum(x < LOST for x in ratios) / len(ratios):.0%}",
            f"{min(ratios):.2f}",
            f"{median(firsts):.2f}" if firsts else "-",
            f"{median(seconds):.2f}" if seconds else "-",
        )
    return table


def _compared(results: Sequence[Result], ours: str) -> list[tuple[Result, Comparison]]:
    return [(r, c) for r in results if (c := r.against(ours=ours))]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _lost(results: Sequence[Result], ours: str) -> Table:
    table = _table("entry", "ratio", "ours ms", "rival ms")
    table.add_column("rival, our recipe", no_wrap=True)
    compared = sorted(
        _compared(results, ours), key=lambda comparison: comparison[1].ratio
    )
    for result, comparison in compared:
        if comparison.ratio < LOST:
            table.add_row(
                result.name,
                f"{comparison.ratio:.2f}",
                milliseconds(comparison.ours.median_s),
                milliseconds(comparison.rival.median_s),
                f"{comparison.name}, {comparison.ours.note.partition('@')[0]}",
            )
    return table


def _wrong(results: Sequence[Result]) -> Iterator[str]:
    """Whoever of ours has no time, or a wrong result."""
    for result in results:
        for outcomes in result.runs.values():
            for name, outcome in outcomes.items():
                if name == OURS[0] and not outcome.is_ok:
                    yield f"{name} at {result.name}: {_why(outcome)}"


def _why(outcome: Outcome) -> str:
    return f"{outcome.status}: {outcome.why}"
