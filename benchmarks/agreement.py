"""Do two runs of the tuner agree? Tune workloads twice, then compare the winners.

With two numbers of trials, such as ``--trials 100 5``: how far behind a long tuning is
a short one, whose trials are those that are predicted to be the fastest?

Each workload is tuned with two seeds, each time in a fresh database. Then the winners
run in turns, in one run, and the ratio of their times is told: the median over the
rounds, with its quartiles. Two recipes that are equally fast agree, however different
they are; of a recipe that won twice the ratio is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.experiments.entries import SUITES, Entry, both_suites  # noqa: E402
from feinsum.errors import FeinsumError, MeasurementError  # noqa: E402
from feinsum.measure import open_device  # noqa: E402
from feinsum.records import InMemoryStore, TransformSpec  # noqa: E402
from feinsum.suites import EVERYDAY  # noqa: E402
from feinsum.tuning import IsolatedBench, TuningProblem, TuningReport, tune_einsum  # noqa: E402

TOLERANCE = 0.03
"""Winners agree if neither takes longer than the other by more than this part."""
BEHIND = 0.10
"""What the winner of fewer trials may take longer than that of more."""

INTERRUPTED = 130
HEADINGS = ("workload", "ms", "ratio", "quartiles", "winners")
EXAMPLES = """examples:
  python benchmarks/agreement.py --only divergence_b1_Ni4 --trials 10
  python benchmarks/agreement.py --only "^abc-ad" --max-gflop 2 --seeds 7 8
  python benchmarks/agreement.py --json > agreement.json
  python benchmarks/agreement.py --suite everyday --only "pyscf-0[0-9]" --trials 100 5
"""

OnStep = Callable[[float, str], None]
"""Is told which part of a workload is done, and what is done next."""


@dataclass(frozen=True)
class Agreement:
    """The winners of two tunings of a workload, timed in one run.

    Attributes:
        times_s: their medians.
        ratio, quartiles: of the second one's time over the first one's, in the same
            rounds.
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
        """How alike the winners are, in words."""
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


def agreement_of(
    name: str,
    winners: tuple[TransformSpec, TransformSpec],
    samples_s: Sequence[Sequence[float]],
    *,
    is_even: bool = True,
) -> Agreement:
    """What the samples of the same rounds say of the winners.

    A recipe that won twice has its samples twice.
    """
    first, second = samples_s
    ratios = [b / a for a, b in zip(first, second, strict=False)]
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    times_s = median(first), median(second)
    return Agreement(name, winners, times_s, median(ratios), (low, high), is_even)


def measured(entry: Entry, options: argparse.Namespace, on_step: OnStep) -> Agreement:
    """Tune a workload twice, compare the winners.

    Raises:
        FeinsumError: if a tuning finds nothing, or a winner fails when it runs again.
    """
    reports = [_tuned(entry, options, k, on_step) for k in range(2)]
    first, second = (report.records[0].spec for report in reports)
    on_step(2 / 3, "comparing")
    samples_s = _compared(reports[0].problem, [first, second], options)
    is_even = len({*options.trials}) == 1
    return agreement_of(entry.name, (first, second), samples_s, is_even=is_even)


def _tuned(
    entry: Entry, options: argparse.Namespace, k: int, on_step: OnStep
) -> TuningReport:
    seed = options.seeds[k]
    on_step(k / 3, f"seed {seed}")
    report = tune_einsum(
        entry.einsum(),
        sizes=entry.parameters,
        device=options.device,
        database=InMemoryStore(),
        n_trials=options.trials[k],
        trial_limit_s=options.limit,
        seed=seed,
        on_progress=lambda p: on_step(
            (k + p.n_done / p.n_trials) / 3, f"seed {seed}, {p.n_done}/{p.n_trials}"
        ),
    )
    if not report.records:
        raise MeasurementError(f"none of {len(report.trials)} trials passed")
    return report


def _compared(
    problem: TuningProblem, specs: Sequence[TransformSpec], options: argparse.Namespace
) -> list[Sequence[float]]:
    """The samples of each recipe, all from one run in turns."""
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


def measured_all(
    entries: Sequence[Entry],
    options: argparse.Namespace,
    results: list[Agreement],
    failed: dict[str, str],
) -> None:
    """Fill both collections entry by entry, so that an interrupt loses none."""
    columns = TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(entries))
        for n_done, entry in enumerate(entries):

            def on_step(part: float, stage: str, entry: Entry = entry) -> None:
                bar.update(
                    task,
                    completed=n_done + part,  # noqa: B023  (called in this turn only)
                    description=f"{entry.name}: {stage}",
                )

            try:
                results.append(measured(entry, options, on_step))
                bar.console.print(*results[-1].cells, markup=False, highlight=False)
            except FeinsumError as error:
                failed[entry.name] = str(error)
                bar.console.print(f"{entry.name}: {error}", markup=False)
            bar.update(task, completed=n_done + 1)


def document(
    results: Sequence[Agreement],
    failed: dict[str, str],
    options: argparse.Namespace,
) -> dict[str, Any]:
    return {
        "device": str(open_device(options.device).device),
        "seeds": options.seeds,
        "n_trials": options.trials,
        "rounds": options.rounds,
        "tolerance": _tolerance(options),
        "n_within": sum(a.is_within for a in results),
        "workloads": [a.document for a in results],
        "failed": failed,
    }


def _tolerance(options: argparse.Namespace) -> float:
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
    print(f"within {_tolerance(options):.0%}: {numbers}; failed: {len(failed)}")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, with ``entries``: the workloads that were chosen."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.seeds[0] == options.seeds[1]:
        parser.error(f"--seeds {options.seeds[0]} twice; give two that differ")
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds}; a spread needs two rounds at least")
    if len(options.trials) > 2:
        parser.error(f"--trials has {len(options.trials)} numbers; give one or two")
    options.trials = [options.trials[0], options.trials[-1]]
    options.entries = _chosen(options)
    if not options.entries:
        parser.error(f"--only {options.only!r} matches no workload of the suites")
    return options


def _parser() -> argparse.ArgumentParser:
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


def _chosen(options: argparse.Namespace) -> list[Entry]:
    if options.suite == EVERYDAY:
        return [e for e in SUITES[EVERYDAY]() if re.search(options.only, e.name)]
    return both_suites(
        options.only,
        max_gflop=options.max_gflop,
        elements_scale=options.elements_scale,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a workload failed, 130 if interrupted."""
    options = parsed(arguments)
    warnings.simplefilter("ignore")
    results: list[Agreement] = []
    failed: dict[str, str] = {}
    is_interrupted = False
    try:
        measured_all(options.entries, options, results, failed)
    except KeyboardInterrupt:
        is_interrupted = True
    if options.json:
        print(json.dumps(document(results, failed, options), indent=2))
    else:
        print_table(results, failed, options)
    return INTERRUPTED if is_interrupted else bool(failed)


if __name__ == "__main__":
    sys.exit(main())
