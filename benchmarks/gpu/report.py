"""What contests and calls on a GPU measured: tables, JSON and a figure.

``python -m benchmarks.gpu.report OUT FILE...`` reads the files that ``contest.py`` and
``benchmarks.gpu.everyday`` write, and makes ``OUT/gpu.json`` and ``OUT/gpu.png``.
A copy is in the folder of a contest. It needs only Python, and matplotlib for the
figure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

OURS, JAX = "feinsum", "jax"
SLOW = 0.9
"""The best rival's time over ours, below which an entry is counted as slower."""
KINDS = {"seconds": "", "one_s": ", single"}
"""Samples of a line, and the suffix of the name of its suite."""
HEAD = "  ours us  TB/s TFLOP/s   best rival ratio   JAX"
BLUE, ORANGE = "#0072B2", "#D55E00"
"""Which color-blind readers can tell apart (Okabe and Ito)."""


@dataclass(frozen=True)
class Measured:
    """The median seconds of an entry, by contender.

    Attributes:
        n_flops, n_bytes: of the entry, for rates.
    """

    suite: str
    name: str
    seconds: Mapping[str, float]
    n_flops: float
    n_bytes: float

    @property
    def is_ok(self) -> bool:
        """Whether ours and a rival ran."""
        return OURS in self.seconds and len(self.seconds) > 1

    @property
    def ours(self) -> float:
        return self.seconds[OURS]

    @property
    def best(self) -> str:
        """The name of the fastest rival."""
        rivals = [name for name in self.seconds if name != OURS]
        return min(rivals, key=self.seconds.__getitem__)

    def against(self, rival: str) -> float | None:
        """The time of a rival over ours."""
        seconds = self.seconds.get(rival)
        return None if seconds is None else seconds / self.ours

    @property
    def ratio(self) -> float:
        """The time of the fastest rival over ours."""
        return self.seconds[self.best] / self.ours


def main() -> int:
    options = _options()
    lines = list(chain.from_iterable(map(read, options.files)))
    measured = measurements(lines)
    print(summary(lines))
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"device": device(lines), "suites": means(measured),
                "entries": [_document(one) for one in measured]}  # fmt: skip
    (options.out / "gpu.json").write_text(json.dumps(document, indent=1) + "\n")
    try:
        draw(measured, options.out / "gpu.png")
    except ModuleNotFoundError as error:
        print(f"no figure: {error}", file=sys.stderr)
    return 0 if measured else 1


def read(path: str | Path) -> list[Any]:
    """The complete lines of a file of results; none if there is no such file."""
    lines: list[Any] = []
    if not Path(path).exists():
        return lines
    for line in Path(path).read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # its process was ended while it wrote
            continue
    return lines


def append(path: str | Path, line: Mapping[str, Any]) -> None:
    """Add a line to a file of results."""
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """The entries without a time of ours, with the reasons, and the tables."""
    return "\n".join([*failures(lines), text(measurements(lines))])


def measurements(lines: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """The measurements of all suites; calls of the everyday suite are two suites."""
    return [
        Measured(
            line.get("suite", "everyday") + added,
            line["name"],
            {name: median(samples) for name, samples in line[kind].items()},
            line["flops"],
            line["entry_bytes"],
        )
        for kind, added in KINDS.items()
        for line in lines
        if kind in line
    ]


def failures(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why entries have no time of ours."""
    done = {line["name"] for line in lines if {"seconds", "failed"} & {*line}}
    starts = Counter(line["name"] for line in lines if line["name"] not in done)
    return [
        *(
            f"{line['name']}: {'; '.join(line['failed'])}"
            for line in lines
            if "failed" in line and OURS not in line.get("seconds", {})
        ),
        *(f"{name}: started {n} x, no result" for name, n in starts.items()),
    ]


def device(lines: Iterable[Mapping[str, Any]]) -> Any:
    """The GPU of the contests."""
    return next((line["device"] for line in lines if "device" in line), None)


def means(measured: Sequence[Measured]) -> dict[str, Any]:
    """Of each suite: geometric means of rivals' times over ours, and slower entries."""
    found = {}
    for suite in dict.fromkeys(one.suite for one in measured):
        all_of_it = [one for one in measured if one.suite == suite]
        ran = [one for one in all_of_it if one.is_ok]
        if not ran:
            continue
        jax = [ratio for one in ran if (ratio := one.against(JAX)) is not None]
        worst = min(ran, key=lambda one: one.ratio)
        found[suite] = {
            "entries": len(ran),
            "without_ours": [one.name for one in all_of_it if not one.is_ok],
            "against_jax": geometric_mean(jax) if jax else None,
            "against_best_rival": geometric_mean(one.ratio for one in ran),
            "slower": sum(one.ratio < SLOW for one in ran),
            "worst": {"name": worst.name, "ratio": worst.ratio},
        }
    return found


def text(measured: Sequence[Measured]) -> str:
    """A line of at most 80 columns for each entry, and the means."""
    lines = []
    for suite in dict.fromkeys(one.suite for one in measured):
        lines += [f"{suite:29} {HEAD}"]
        lines += [_line(one) for one in measured if one.suite == suite]
    lines += [_mean(suite, mean) for suite, mean in means(measured).items()]
    return "\n".join(lines)


def _line(one: Measured) -> str:
    if not one.is_ok:
        return f"{one.name:29.29} not measured"
    jax = one.against(JAX)
    return (
        f"{one.name:29.29} {one.ours * 1e6:9.1f} {one.n_bytes / one.ours / 1e12:5.2f} "
        f"{one.n_flops / one.ours / 1e12:7.2f} {one.best:>13} {one.ratio:5.2f} "
        f"{'-' if jax is None else f'{jax:.2f}':>5}"
    )


def _mean(suite: str, mean: Mapping[str, Any]) -> str:
    jax, best, worst = mean["against_jax"], mean["against_best_rival"], mean["worst"]
    means = f"{best:.2f} against the best rival"
    if jax is not None:
        means = f"{jax:.2f} against JAX, {means}"
    return (
        f"{suite}, {mean['entries']} entries: {means},\n"
        f"  {mean['slower']} below {SLOW}, the worst {worst['ratio']:.2f} "
        f"({worst['name']})"
    )


def _document(one: Measured) -> dict[str, Any]:
    return {"suite": one.suite, "name": one.name, "seconds": dict(one.seconds),
            "flops": one.n_flops, "bytes": one.n_bytes}  # fmt: skip


def draw(measured: Sequence[Measured], path: Path) -> None:
    """The time of the best rival, and of JAX, over ours: a panel for each suite."""
    from matplotlib.figure import Figure

    ran = [one for one in measured if one.is_ok]
    suites = list(dict.fromkeys(one.suite for one in ran))
    if not suites:
        return
    figure = Figure(figsize=(10, 2.8 * len(suites)), layout="constrained")
    panels = figure.subplots(len(suites), 1, squeeze=False)[:, 0]
    for axes, suite in zip(panels, suites, strict=True):
        _panel(axes, suite, [one for one in ran if one.suite == suite])
    panels[-1].set_xlabel("entries, the slowest against the best rival first")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower right", ncols=2, frameon=False)
    figure.savefig(path, dpi=110)


def _panel(axes: Any, suite: str, ran: Sequence[Measured]) -> None:
    ran = sorted(ran, key=lambda one: one.ratio)
    at = range(len(ran))
    axes.bar(at, [one.ratio - 1 for one in ran], bottom=1, color=BLUE,
             label="best rival")  # fmt: skip
    jax = [(k, ratio) for k in at if (ratio := ran[k].against(JAX)) is not None]
    if jax:
        axes.plot(*zip(*jax, strict=True), ls="", marker="_", mew=2, color=ORANGE,
                  label="JAX")  # fmt: skip
    axes.axhline(1, color="black", lw=0.8)
    axes.set_yscale("log")
    axes.set_yticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    axes.set_xticks([])
    axes.set_ylabel("time over ours")
    mean = geometric_mean(one.ratio for one in ran)
    axes.set_title(f"{suite}: {len(ran)} entries, geometric mean {mean:.2f}", size=10)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the JSON and the figure")
    parser.add_argument("files", type=Path, nargs="+", help="files of results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
