"""The paper's figures: rates below the roofline, and speed-ups over JAX.

Source: paper, figures 4 and 5.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.experiments.results import (
    Outcome,
    Report,
    Result,
    compute_geometric_mean,
)
from feinsum.suites import EVERYDAY

OURS, JAX, BEST, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
"""Colors that are distinct for the color-blind (Okabe and Ito)."""
SHADES = ("#9ecae1", "#4292c6", "#2171b5", "#08306b")


def draw_figure(report: Report, path: Path) -> None:
    """Draw the figure of the suite into a PNG file."""
    figure = FIGURES[report.suite](report)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def draw_rates(report: Report) -> Figure:
    """Draw figure 5: GFLOP/s of every contraction, with marks at the roofline."""
    results = list(report.results.values())
    figure = Figure(figsize=(max(7, 1.5 + 0.3 * len(results)), 5.2),
                    layout="constrained")  # fmt: skip
    axes = figure.subplots()
    at = np.arange(len(results))
    bars = (
        ("feinsum", OURS, [r.find_fastest_of_ours() for r in results]),
        ("JAX", JAX, [_find_fastest(r, "jax") for r in results]),
        (
            "best rival",
            BEST,
            [best[1] if (best := r.find_best_rival()) else None for r in results],
        ),
    )
    for k, (label, color, outcomes) in enumerate(bars):
        _draw_bars(axes, at + 0.28 * (k - 1), results, outcomes, label, color)
    if report.limits:
        roofs = [report.limits.compute_roofline(r) / 1e9 for r in results]
        axes.plot(at, roofs, ls="", marker="_", ms=14, mew=2, color="black",
                  label="roofline")  # fmt: skip
    _label_entries(axes, at, [r.name for r in results])
    axes.set_ylabel("GFLOP/s")
    axes.set_title("TCCG with operands alpha*A + beta, gamma*B + delta")
    axes.set_ylim(bottom=0)
    axes.margins(y=0.1)
    figure.legend(loc="outside lower right", ncols=4, frameon=False)
    return figure


def _draw_bars(
    axes: Any,
    at: np.ndarray,
    results: Sequence[Result],
    outcomes: Sequence[Outcome | None],
    label: str,
    color: str,
) -> None:
    """Draw rates with their quartiles; there is no bar without a time."""
    points = [(x, r, o) for x, r, o in zip(at, results, outcomes, strict=True) if o]
    middle = np.array([r.flops / o.median_s for _, r, o in points]) / 1e9
    ends = [[r.flops / s for s in o.quartiles_s] for _, r, o in points]
    high, low = np.array(ends).reshape(-1, 2).T / 1e9
    axes.bar([x for x, _, _ in points], middle, 0.28, label=label, color=color,
             yerr=(middle - low, high - middle), ecolor=GREY,
             error_kw={"lw": 0.8})  # fmt: skip


def draw_speed_ups(report: Report) -> Figure:
    """Draw figure 4: speed-ups over JAX, by operator, batch and degree."""
    results = list(report.results.values())
    groups = list(dict.fromkeys(r.group for r in results))
    figure = Figure(figsize=(12, 4.6), layout="constrained")
    panels = figure.subplots(1, max(len(groups), 1), sharey=True, squeeze=False)[0]
    colors = dict(zip(_list_degrees(results), SHADES, strict=False))
    for axes, group in zip(panels, groups, strict=False):
        _draw_speed_up_panel(
            axes, group, [r for r in results if r.group == group], colors
        )
    panels[0].set_ylabel("speed-up over JAX")
    handles = {
        text: handle
        for axes in panels
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5,
                  frameon=False)  # fmt: skip
    return figure


def _draw_speed_up_panel(
    axes: Any, group: str, results: Sequence[Result], colors: dict[int, str]
) -> None:
    batches = sorted({r.batch_size for r in results})
    width = 0.8 / max(len(colors), 1)
    ratios = {(r.batch_size, r.sizes["i"]): r.compare("jax") for r in results}
    for k, (degree, color) in enumerate(colors.items()):
        bars = [
            (x, c)
            for x, b in enumerate(batches)
            if (c := ratios.get((b, degree))) is not None
        ]
        if not bars:
            continue
        left = [x + width * (k - (len(colors) - 1) / 2) for x, _ in bars]
        axes.bar(left, [c.ratio for _, c in bars], width, color=color,
                 label=f"{degree} degrees of freedom")  # fmt: skip
        for x, (_, c) in zip(left, bars, strict=True):
            axes.annotate(f"{c.ratio:.1f}", (x, c.ratio), ha="center", va="bottom",
                          size=7)  # fmt: skip
    mean = compute_geometric_mean(c.ratio for c in ratios.values() if c is not None)
    suffix = f" (geometric mean {mean:.2f})" if mean else ""
    axes.set_title(group.replace("_", " ") + suffix, size=10)
    axes.axhline(1, color=GREY, lw=1, ls="--")
    axes.set_xticks(range(len(batches)), [f"b = {b}" for b in batches])
    axes.set_xlim(-0.6, len(batches) - 0.4)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _list_degrees(results: Sequence[Result]) -> list[int]:
    return sorted({r.sizes["i"] for r in results})


def _find_fastest(result: Result, name: str) -> Outcome | None:
    outcomes = [o for _, rival, o in result.list_rivals() if rival == name]
    return min(outcomes, key=lambda o: o.median_s, default=None)


def _label_entries(axes: Any, at: np.ndarray, names: Sequence[str]) -> None:
    short = [re.sub(r"_", " ", name) for name in names]
    axes.set_xticks(at, short, rotation=60, ha="right", rotation_mode="anchor", size=8)
    axes.set_xlim(-0.8, len(names) - 0.2)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def draw_everyday_ratios(report: Report) -> Figure:
    """Draw the ratios to the best rival, sorted, by size."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    axes = figure.subplots()
    for size, color in zip(("small", "medium", "large"), SHADES[1:], strict=True):
        of_size = [r for r in report.results.values() if r.group == size]
        for name, style in (("feinsum untuned", "--"), ("feinsum tuned", "-")):
            ratios = [c.ratio for r in of_size if (c := r.compare(ours=name))]
            if not ratios:
                continue
            share = np.linspace(0, 100, len(ratios))
            mean = compute_geometric_mean(ratios)
            label = f"{size}, {name.split()[-1]}: {mean:.2f} in the geometric mean"
            axes.plot(share, sorted(ratios), style, color=color, label=label)
    axes.axhline(1, color=GREY, lw=1)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("share of entries (%)")
    axes.set_ylabel("time of the best rival over ours")
    axes.set_title("Everyday einsums: above 1, feinsum is faster")
    axes.grid(alpha=0.3)
    if axes.lines[1:]:
        axes.legend(frameon=False)
    return figure


FIGURES = {"tccg": draw_rates, "dgfem": draw_speed_ups, EVERYDAY: draw_everyday_ratios}
