"""Measure whether two runs of the tuner agree: tune twice, and compare the winners.

With two numbers of trials, such as ``--trials 100 5``, measure how far a short tuning,
whose trials have the best predictions, is behind a long one.

Each workload is tuned with two seeds, each time with an empty database. Then the
winners are timed in interleaved rounds. The result is the median ratio of their times
over the rounds, with quartiles. Different recipes with equal times agree; the ratio is
1 if the same recipe wins twice.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.experiments.entries import SUITES, Entry, list_both_suites
from feinsum.errors import FeinsumError, MeasurementError
from feinsum.measure import open_device
from feinsum.records import InMemoryStore, TransformSpec, compute_quartiles
from feinsum.suites import EVERYDAY
from feinsum.tuning import IsolatedBench, TuningProblem, TuningReport, tune_einsum

TOLERANCE = 0.03
"""Relative difference of times up to which winners agree."""
BEHIND = 0.10
"""Relative loss that the winner of fewer trials may have."""

INTERRUPTED = 130
HEADINGS = ("workload", "ms", "ratio", "quartiles", "winners")
EXAMPLES = """examples:
  python benchmarks/agreement.py --only divergence_b1_Ni4 --trials 10
  python benchmarks/agreement.py --only "^abc-ad" --max-gflop 2 --seeds 7 8
  python benchmarks/agreement.py --json > agreement.json
  python benchmarks/agreement.py --suite everyday --only "pyscf-0[0-9]" --trials 100 5
"""

OnStep = Callable[[float, str], None]
"""Called with the finished share of a workload, and the next stage."""


@dataclass(frozen=True)
class Agreement:
    """The winners of two tunings of a workload, timed in interleaved rounds.

    Attributes:
        times_s: median times of both.
        ratio, quartiles: the second winner's time over the first one's, round by round.
        is_even: whether both tunings had the same number of trials.
    """

    name: str
    winners: tuple[TransformSpec, TransformSpec]
    times_s: tuple[float, float]
    ratio: float
    quartiles: tuple[float, float]
    is_even: bool = True

    @property
    def is_within(self) -> bool:
        if not self.is_even:
            return self.ratio <= 1 + BEHIND
        return max(self.ratio, 1 / self.ratio) <= 1 + TOLERANCE

    @property
    def kinship(self) -> str:
        """Return how similar the recipes are, as text."""
        first, second = self.winners
        if first == second:
            return "same recipe"
        return "same family" if first.name == second.name else "two families"

    @property
    def cells(self) -> list[str]:
        low, high = self.quartiles
        return [
            self.name,
            f"{self.times_s[0] * 1e3:.3f}",
            f"{self.ratio:.3f}",
            f"{low:.3f}-{high:.3f}",
            self.kinship,
        ]

    @property
    def document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "winners": [str(spec) for spec in self.winners],
            "times_s": list(self.times_s),
            "ratio": self.ratio,
            "quartiles": list(self.quartiles),
            "is_within": self.is_within,
        }


def compare_samples(
    name: str,
    winners: tuple[TransformSpec, TransformSpec],
    samples_s: Sequence[Sequence[float]],
    *,
    is_even: bool = True,
) -> Agreement:
    """Compare the samples of two winners, round by round.

    A recipe that won twice has the same samples twice.
    """
    first, second = samples_s
    ratios = [b / a for a, b in zip(first, second, strict=False)]
    low, middle, high = compute_quartiles(ratios)
    times_s = median(first), median(second)
    return Agreement(name, winners, times_s, middle, (low, high), is_even)


def measure(
    entry: Entry, options: argparse.Namespace, report_step: OnStep
) -> Agreement:
    """Tune a workload twice, and compare the winners.

    Raises:
        FeinsumError: if all trials of a tuning fail, or a winner fails in the
            comparison.
    """
    reports = [_tune(entry, options, k, report_step) for k in range(2)]
    first, second = (report.records[0].spec for report in reports)
    report_step(2 / 3, "comparing")
    samples_s = _time_winners(reports[0].problem, [first, second], options)
    is_even = len({*options.trials}) == 1
    return compare_samples(entry.name, (first, second), samples_s, is_even=is_even)


def _tune(
    entry: Entry, options: argparse.Namespace, k: int, report_step: OnStep
) -> TuningReport:
    seed = options.seeds[k]
    report_step(k / 3, f"seed {seed}")
    report = tune_einsum(
        entry.make_einsum(),
        sizes=entry.parameters,
        device=options.device,
        database=InMemoryStore(),
        n_trials=options.trials[k],
        trial_limit_s=options.limit,
        seed=seed,
        on_progress=lambda p: report_step(
            (k + p.n_done / p.n_trials) / 3, f"seed {seed}, {p.n_done}/{p.n_trials}"
        ),
    )
    if not report.records:
        raise MeasurementError(f"none of {len(report.trials)} trials passed")
    return report


def _time_winners(
    problem: TuningProblem, specs: Sequence[TransformSpec], options: argparse.Namespace
) -> list[Sequence[float]]:
    """Time the recipes in interleaved rounds, and return their samples."""
    longer = problem.max_total_s * options.rounds / problem.rounds
    problem = replace(problem, rounds=options.rounds, max_total_s=longer)
    with IsolatedBench(problem, options.limit) as bench:
        outcomes = {o.spec: o for o in bench.compare([*dict.fromkeys(specs)])}
    samples_s: list[Sequence[float]] = []
    for spec in specs:
        measurement = outcomes[spec].measurement
        if measurement is None:
            raise outcomes[spec].to_error()
        samples_s.append(measurement.samples_s)
    return samples_s


def measure_all(
    entries: Sequence[Entry],
    options: argparse.Namespace,
    results: list[Agreement],
    failed: dict[str, str],
) -> None:
    """Measure all workloads, adding to both collections, so that an interrupt loses
    none.
    """
    columns = TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(entries))
        for n_done, entry in enumerate(entries):

            def report_step(part: float, stage: str, entry: Entry = entry) -> None:
                bar.update(
                    task,
                    completed=n_done + part,  # noqa: B023  (called in this turn only)
                    description=f"{entry.name}: {stage}",
                )

            try:
                results.append(measure(entry, options, report_step))
                bar.console.print(*results[-1].cells, markup=False, highlight=False)
            except FeinsumError as error:
                failed[entry.name] = str(error)
                bar.console.print(f"{entry.name}: {error}", markup=False)
            bar.update(task, completed=n_done + 1)


def make_document(
    results: Sequence[Agreement],
    failed: dict[str, str],
    options: argparse.Namespace,
) -> dict[str, Any]:
    return {
        "device": str(open_device(options.device).device),
        "seeds": options.seeds,
        "n_trials": options.trials,
        "rounds": options.rounds,
        "tolerance": _get_tolerance(options),
        "n_within": sum(a.is_within for a in results),
        "workloads": [a.document for a in results],
        "failed": failed,
    }


def _get_tolerance(options: argparse.Namespace) -> float:
    return TOLERANCE if len({*options.trials}) == 1 else BEHIND


def print_table(
    results: Sequence[Agreement], failed: dict[str, str], options: argparse.Namespace
) -> None:
    table = Table(*HEADINGS, box=box.MARKDOWN)
    for agreement in results:
        table.add_row(*agreement.cells)
    Console(width=120).print(table)
    n_within = sum(a.is_within for a in results)
    n_same = sum(a.kinship == "same recipe" for a in results)
    numbers = f"{n_within} of {len(results)}, {n_same} of them by the same recipe"
    print(f"within {_get_tolerance(options):.0%}: {numbers}; failed: {len(failed)}")


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options, and add ``entries``: the selected workloads."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    if options.seeds[0] == options.seeds[1]:
        parser.error(f"--seeds {options.seeds[0]} twice; give two that differ")
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}; a spread needs two rounds at least")
    if len(options.trials) > 2:
        parser.error(f"--trials has {len(options.trials)} numbers; give one or two")
    options.trials = [options.trials[0], options.trials[-1]]
    options.entries = _select_entries(options)
    if not options.entries:
        parser.error(f"--only {options.only!r} matches no workload of the suites")
    return options


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--only",
        metavar="REGEX",
        default="_b[13]_Ni20|^abc-ad",
        help="workloads of the suites whose names match; by default ten of them",
    )
    add(
        "--suite",
        choices=("both", EVERYDAY),
        default="both",
        help="tccg and dgfem (both), or everyday, of which no facts are packaged",
    )
    add(
        "--max-gflop",
        metavar="G",
        type=float,
        default=6.0,
        help="tccg: larger workloads are scaled down to this (6)",
    )
    add(
        "--elements-scale",
        metavar="X",
        type=float,
        default=1.0,
        help="dgfem: times the number of elements (1)",
    )
    add(
        "--trials",
        metavar="N",
        type=int,
        nargs="+",
        default=[20],
        help="of each tuning, or of the first and of the second (20)",
    )
    add(
        "--seeds",
        metavar="N",
        type=int,
        nargs=2,
        default=[0, 1],
        help="of the two tunings (0 1)",
    )
    add(
        "--rounds",
        metavar="N",
        type=int,
        default=40,
        help="in which the winners are compared (40)",
    )
    add("--limit", metavar="SECONDS", type=float, default=60.0, help="of a trial (60)")
    add("--device", metavar="NAME", help="part of a device's name")
    add("--json", action="store_true", help="print JSON, no table")
    return parser


def _select_entries(options: argparse.Namespace) -> list[Entry]:
    if options.suite == EVERYDAY:
        return [e for e in SUITES[EVERYDAY]() if re.search(options.only, e.name)]
    return list_both_suites(
        options.only,
        max_gflop=options.max_gflop,
        elements_scale=options.elements_scale,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a workload failed, 130 if interrupted."""
    options = parse_options(arguments)
    warnings.simplefilter("ignore")
    results: list[Agreement] = []
    failed: dict[str, str] = {}
    is_interrupted = False
    try:
        measure_all(options.entries, options, results, failed)
    except KeyboardInterrupt:
        is_interrupted = True
    if options.json:
        print(json.dumps(make_document(results, failed, options), indent=2))
    else:
        print_table(results, failed, options)
    return INTERRUPTED if is_interrupted else bool(failed)


if __name__ == "__main__":
    sys.exit(main())
