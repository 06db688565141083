"""The tables: times and ratios, then rates and recipes, then whoever did not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.results import Comparison, Limits, Report, geometric_mean

SHORT = {"torch.compile": "tcompile"}
TIED = "≈"


def show(report: Report, console: Console) -> None:
    """Print everything; the tables are at most 80 columns wide."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    say("medians in ms; ratio: time of the rival over ours, ≈ tied in the noise")
    console.print(_times(report))
    for line in _means(report):
        say(line)
    if len(devices := _devices(report)) > 1:
        say("\nmedians of ours by device, each with its ratio")
        console.print(_times_by_device(report, devices))
        for name in devices:
            words = f"the best rival on {_of_device(name)}"
            say(_mean(report, words, ours=name))
    say("\nrates of ours (GFLOP/s, GB/s), and the share of the roofline")
    console.print(_rates(report))
    if report.limits:
        say(_about(report.limits))
    for line in _absences(report):
        say(line)


def _table(names: Iterable[str], *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _times(report: Report) -> Table:
    table = _table(("entry",), "ours", "plain", "best rival", "ratio", "JAX",
                   "first s")  # fmt: skip
    for result in report.results.values():
        ours, best = result.fastest_of_ours(), result.best()
        plain = result.untransformed()
        table.add_row(
            result.name,
            milliseconds(ours.median_s if ours else None),
            milliseconds(plain.median_s if plain and plain.is_ok else None),
            _named(best[0], best[1].median_s) if best else "-",
            ratio(result.against()),
            ratio(result.against("jax")),
            f"{ours.first_s:.1f}" if ours and ours.first_s is not None else "-",
        )
    return table


def _devices(report: Report) -> list[str]:
    """The contenders that are ours, one for each device."""
    names = (
        name
        for result in report.results.values()
        for terms in result.runs
        for name in result.ours_by_device(terms)
    )
    return list(dict.fromkeys(names))


def _times_by_device(report: Report, devices: Sequence[str]) -> Table:
    """Ours on each device, under the terms that suit the best rival best."""
    headings = (x for name in devices for x in (_of_device(name), "ratio"))
    table = _table(("entry",), *headings)
    for result in report.results.values():
        cells = []
        for name in devices:
            compared = result.against(ours=name)
            cells.append(milliseconds(compared.ours.median_s if compared else None))
            cells.append(ratio(compared))
        table.add_row(result.name, *cells)
    return table


def _of_device(contender: str) -> str:
    """At most 16 columns, for a terminal of 80 and two devices.

    >>> _of_device("feinsum on portable computing language")
    'portable computi'
    """
    return contender.partition(" on ")[2][:16] or "default"


def _rates(report: Report) -> Table:
    table = _table(("entry", "extents"), "Gflop", "GF/s", "GB/s", "roof")
    table.add_column("recipe", no_wrap=True)
    for result in report.results.values():
        ours = result.fastest_of_ours()
        cells = ["-", "-", "-", _why_not(report, result.name)]
        if ours:
            rate = result.flops / ours.median_s
            roof = report.limits.roofline(result) if report.limits else None
            cells = [
                f"{rate / 1e9:.1f}",
                f"{result.footprint_bytes / ours.median_s / 1e9:.1f}",
                f"{rate / roof:.0%}" if roof else "-",
                ours.note.partition("@")[0],
            ]
        head = result.name, extents(result.sizes), f"{result.flops / 1e9:.2g}"
        table.add_row(*head, *cells)
    return table


def _why_not(report: Report, name: str) -> str:
    """The status of ours where it has no time."""
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


def _means(report: Report) -> Iterator[str]:
    yield _mean(report, "the best rival")
    yield _mean(report, "JAX", rival="jax")


def _mean(
    report: Report, words: str, *, rival: str | None = None, ours: str | None = None
) -> str:
    """Of the ratios to a rival, or to the best of each; of ours, or of the fastest."""
    ratios = [c for r in report.results.values() if (c := r.against(rival, ours=ours))]
    mean = geometric_mean(c.ratio for c in ratios)
    if mean is None:
        return f"geometric mean against {words}: no entry has both times"
    n_tied = sum(c.is_tied for c in ratios)
    n_won = sum(c.ratio > 1 and not c.is_tied for c in ratios)
    return (
        f"geometric mean against {words}: {mean:.2f} over {len(ratios)} of "
        f"{len(report.results)} entries; faster {n_won}, tied {n_tied}, "
        f"slower {len(ratios) - n_won - n_tied}"
    )


def _about(limits: Limits) -> str:
    dgemm = limits.dgemm_operations_per_s
    product = f", {dgemm / 1e9:.1f} by a product of matrices" if dgemm else ""
    return (
        f"{limits.device}: {limits.bandwidth_bytes_per_s / 1e9:.1f} GB/s; "
        f"{limits.fma_operations_per_s / 1e9:.1f} GFLOP/s by multiply-adds{product}"
    )


def _absences(report: Report) -> Iterator[str]:
    """Everyone without a time, once for all entries with the same reason."""
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


def _named(name: str, seconds: float) -> str:
    return f"{SHORT.get(name, name)} {milliseconds(seconds)}"


def milliseconds(seconds: float | None) -> str:
    """Three digits.

    >>> [milliseconds(s) for s in (None, 0.0012345, 0.012345, 1.2345)]
    ['-', '1.23', '12.3', '1234']
    """
    if seconds is None:
        return "-"
    ms = seconds * 1e3
    return f"{ms:.2f}" if ms < 10 else f"{ms:.1f}" if ms < 100 else f"{ms:.0f}"


def ratio(comparison: Comparison | None) -> str:
    if comparison is None:
        return "-"
    return f"{comparison.ratio:.2f}{TIED if comparison.is_tied else ' '}"


def extents(sizes: Mapping[str, int]) -> str:
    """How many indices have which extent, the largest first; never above 16 columns.

    >>> extents({"a": 24, "b": 16, "c": 24, "d": 8})
    '24²·16·8'
    >>> extents({"f": 4, "i": 35, "j": 15, "e": 80000})
    '80000·35·15·4'
    """
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
    counts = sorted(Counter(sizes.values()).items(), reverse=True)
    return "·".join(
        f"{extent}{str(n).translate(raised) if n > 1 else ''}" for extent, n in counts
    )
