"""Tables of times, ratios, rates and recipes, and the reasons of missing times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.results import (
    Comparison,
    Limits,
    Report,
    compute_geometric_mean,
)
from benchmarks.tables import make_table

SHORT = {"torch.compile": "tcompile"}
TIED = "≈"


def show_report(report: Report, console: Console) -> None:
    """Print all tables, which are at most 80 columns wide."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    say("medians in ms; ratio: time of the rival over ours, ≈ tied in the noise")
    console.print(_tabulate_times(report))
    for line in _summarize(report):
        say(line)
    if len(devices := _list_devices(report)) > 1:
        say("\nmedians of ours by device, each with its ratio")
        console.print(_tabulate_devices(report, devices))
        for name in devices:
            label = f"the best rival on {_get_device(name)}"
            say(_format_mean(report, label, ours=name))
    say("\nrates of ours (GFLOP/s, GB/s), and the share of the roofline")
    console.print(_tabulate_rates(report))
    if report.limits:
        say(_describe_limits(report.limits))
    for line in _list_missing(report):
        say(line)


def make_compact_table(names: Sequence[str], *others: str) -> Table:
    """Make a table with narrow columns: text, then numbers."""
    return make_table(names, others, no_wrap=True, box=None, padding=(0, 1, 0, 0))


def _tabulate_times(report: Report) -> Table:
    table = make_compact_table(["entry"], "ours", "plain", "best rival", "ratio", "JAX",
                               "first s")  # fmt: skip
    for result in report.results.values():
        ours, best = result.find_fastest_of_ours(), result.find_best_rival()
        plain = result.find_untransformed()
        table.add_row(
            result.name,
            format_ms(ours.median_s if ours else None),
            format_ms(plain.median_s if plain and plain.is_ok else None),
            _format_named(best[0], best[1].median_s) if best else "-",
            format_ratio(result.compare()),
            format_ratio(result.compare("jax")),
            f"{ours.first_s:.1f}" if ours and ours.first_s is not None else "-",
        )
    return table


def _list_devices(report: Report) -> list[str]:
    """Return the names of our contenders, one for each device."""
    names = (
        name
        for result in report.results.values()
        for terms in result.runs
        for name in result.list_ours(terms)
    )
    return list(dict.fromkeys(names))


def _tabulate_devices(report: Report, devices: Sequence[str]) -> Table:
    """Tabulate our times on each device, under the terms that suit the best rival."""
    headings = (x for name in devices for x in (_get_device(name), "ratio"))
    table = make_compact_table(["entry"], *headings)
    for result in report.results.values():
        cells = []
        for name in devices:
            compared = result.compare(ours=name)
            cells.append(format_ms(compared.ours.median_s if compared else None))
            cells.append(format_ratio(compared))
        table.add_row(result.name, *cells)
    return table


def _get_device(contender: str) -> str:
    """Return the device of a contender, in 16 characters: two fit into 80 columns.

    >>> _get_device("feinsum on portable computing language")
    'portable computi'
    """
    return contender.partition(" on ")[2][:16] or "default"


def _tabulate_rates(report: Report) -> Table:
    table = make_compact_table(("entry", "extents"), "Gflop", "GF/s", "GB/s", "roof")
    table.add_column("recipe", no_wrap=True)
    for result in report.results.values():
        ours = result.find_fastest_of_ours()
        cells = ["-", "-", "-", _explain_missing(report, result.name)]
        if ours:
            rate = result.flops / ours.median_s
            roof = report.limits.compute_roofline(result) if report.limits else None
            cells = [
                f"{rate / 1e9:.1f}",
                f"{result.footprint_bytes / ours.median_s / 1e9:.1f}",
                f"{rate / roof:.0%}" if roof else "-",
                ours.note.partition("@")[0],
            ]
        head = result.name, format_extents(result.sizes), f"{result.flops / 1e9:.2g}"
        table.add_row(*head, *cells)
    return table


def _explain_missing(report: Report, name: str) -> str:
    """Return our status at an entry without a time."""
    from benchmarks.experiments.ours import OURS

    ratios = [
        outcome
        for outcomes in report.results[name].runs.values()
        for contender, outcome in outcomes.items()
        if contender.startswith(OURS)
    ]
    if not ratios:
        return "did not run"
    return "no recipe" if ratios[0].status == "left out" else ratios[0].status


def _summarize(report: Report) -> Iterator[str]:
    yield _format_mean(report, "the best rival")
    yield _format_mean(report, "JAX", rival="jax")


def _format_mean(
    report: Report, label: str, *, rival: str | None = None, ours: str | None = None
) -> str:
    """Summarize the ratios to a rival, or to the best of each entry."""
    ratios = [c for r in report.results.values() if (c := r.compare(rival, ours=ours))]
    mean = compute_geometric_mean(c.ratio for c in ratios)
    if mean is None:
        return f"geometric mean against {label}: no entry has both times"
    n_tied = sum(c.is_tied for c in ratios)
    n_won = sum(c.ratio > 1 and not c.is_tied for c in ratios)
    return (
        f"geometric mean against {label}: {mean:.2f} over {len(ratios)} of "
        f"{len(report.results)} entries; faster {n_won}, tied {n_tied}, "
        f"slower {len(ratios) - n_won - n_tied}"
    )


def _describe_limits(limits: Limits) -> str:
    dgemm = limits.dgemm_operations_per_s
    product = f", {dgemm / 1e9:.1f} by a product of matrices" if dgemm else ""
    return (
        f"{limits.device}: {limits.bandwidth_bytes_per_s / 1e9:.1f} GB/s; "
        f"{limits.fma_operations_per_s / 1e9:.1f} GFLOP/s by multiply-adds{product}"
    )


def _list_missing(report: Report) -> Iterator[str]:
    """Report missing times, entries with the same reason in one line."""
    entries: dict[str, dict[str, None]] = {}
    for result in report.results.values():
        reasons = [text for text in result.tuned if text.startswith("tuning failed")]
        for outcomes in result.runs.values():
            for name, outcome in outcomes.items():
                if not outcome.is_ok:
                    why = outcome.why.partition(" (workload")[0]
                    reasons.append(f"{name} {outcome.status}: {why}")
        for text in reasons:
            entries.setdefault(text, {})[result.name] = None
    for text, names in entries.items():
        entries_text = ", ".join(names) if len(names) <= 3 else f"{len(names)} entries"
        yield f"{text} [{entries_text}]"


def _format_named(name: str, seconds: float) -> str:
    return f"{SHORT.get(name, name)} {format_ms(seconds)}"


def format_ms(seconds: float | None) -> str:
    """Format a time with three digits.

    >>> [format_ms(s) for s in (None, 0.0012345, 0.012345, 1.2345)]
    ['-', '1.23', '12.3', '1234']
    """
    if seconds is None:
        return "-"
    ms = seconds * 1e3
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}" if ms < 100 else f"{ms:.0f}"


def format_ratio(comparison: Comparison | None) -> str:
    if comparison is None:
        return "-"
    return f"{comparison.ratio:.2f}{TIED if comparison.is_tied else ' '}"


def format_extents(sizes: Mapping[str, int]) -> str:
    """Format the number of indices of each extent, the largest first, in 16 columns.

    >>> format_extents({"a": 24, "b": 16, "c": 24, "d": 8})
    '24²·16·8'
    >>> format_extents({"f": 4, "i": 35, "j": 15, "e": 80000})
    '80000·35·15·4'
    """
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    counts = sorted(Counter(sizes.values()).items(), reverse=True)
    return "·".join(
        f"{extent}{str(n).translate(raised) if n > 1 else ''}" for extent, n in counts
    )
