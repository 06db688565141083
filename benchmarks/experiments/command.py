"""Run the experiments: select entries, time them, print tables and draw the figure.

Every entry runs in a separate process for each of the terms. Results are saved after
each entry, so that an interrupted run can be resumed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from benchmarks.experiments.calls import show_calls
from benchmarks.experiments.contest import Task, list_contenders
from benchmarks.experiments.entries import (
    SUITES,
    Entry,
    limit_operations,
    list_drawn,
    scale_elements,
)
from benchmarks.experiments.figures import draw_figure
from benchmarks.experiments.isolation import ROOT, run_contest, run_limits, run_tuning
from benchmarks.experiments.machine import describe_run
from benchmarks.experiments.report import show_report
from benchmarks.experiments.results import Outcome, Report, Result
from benchmarks.experiments.rivals import RIVALS
from benchmarks.experiments.terms import TERMS
from feinsum.suites import EVERYDAY


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parse_options(arguments, __doc__ or "")
    drawing = "" if options.drawn is None else f"-drawn-{options.drawn}"
    path = options.out / f"{options.suite}{drawing}.json"
    report = _open_report(arguments, options, path)
    todo = [
        e for e in select_entries(options) if not _is_done(report, e, options.terms)
    ]
    if report.limits is None:
        report.limits = run_limits(options.device[0])
    stderr = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=stderr) as bar:
        progress = bar.add_task(options.suite, total=len(todo))
        for entry in todo:
            bar.update(progress, description=entry.name)
            report.results[entry.name] = run(entry, options)
            report.save(path)
            bar.advance(progress)
    report.save(path)
    console = Console(width=80) if not sys.stdout.isatty() else Console()
    (show_calls if options.suite == EVERYDAY else show_report)(report, console)
    figure = path.with_suffix(".png")
    draw_figure(report, figure)
    print(f"samples: {path}\nfigure: {figure}")


def select_entries(options: argparse.Namespace) -> list[Entry]:
    """Return the entries that match, scaled to the requested sizes."""
    every = (
        SUITES[options.suite]() if options.drawn is None else list_drawn(options.drawn)
    )
    entries = [e for e in every if re.search(options.only, e.name)]
    if options.suite == "tccg":
        return [limit_operations(entry, options.max_gflop) for entry in entries]
    if options.suite == EVERYDAY:
        return entries
    return [scale_elements(entry, options.elements_scale) for entry in entries]


def _open_report(
    arguments: Sequence[str], options: argparse.Namespace, path: Path
) -> Report:
    """Make a new report, or resume that of the file; a previous file is renamed."""
    settings = {
        k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()
    }
    now = describe_run(arguments, settings)
    if options.resume and path.is_file():
        report = Report.load(path)
        report.about.append(now)
        return report
    if path.is_file():
        path.replace(path.with_suffix(".previous.json"))
    return Report(options.suite, [now])


def _is_done(report: Report, entry: Entry, terms: Sequence[str]) -> bool:
    """Return whether the report has the entry at these sizes and under these terms."""
    result = report.results.get(entry.name)
    if result is None or dict(result.sizes) != dict(entry.sizes):
        return False
    return set(terms) <= set(result.runs)


def run(entry: Entry, options: argparse.Namespace) -> Result:
    """Tune if requested, then time the entry under each of the terms.

    The untransformed kernel is timed under the first terms only.
    """
    task = _make_task(entry, options)
    facts = run_tuning(task, options.tune, options.limit) if options.tune else []
    names = [n for n in list_contenders(task) if n not in options.without]
    runs: dict[str, dict[str, Outcome]] = {}
    for terms in options.terms:
        now = [n for n in names if n != "untransformed" or not runs]
        runs[terms] = run_contest(
            Task(**{**vars(task), "contenders": now}), terms, options.limit
        )
    return Result.of(entry, runs, facts)


def _make_task(entry: Entry, options: argparse.Namespace) -> Task:
    return Task(
        entry.suite,
        entry.name,
        dict(entry.sizes),
        (),
        devices=tuple(options.device),
        database=options.database,
        rounds=options.rounds,
        warmup=options.warmup,
        cap_s=options.cap,
        pause_s=options.pause_ms / 1e3,
        untransformed_limit_s=options.untransformed_limit,
    )


def _parse_terms(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(TERMS)):
        raise argparse.ArgumentTypeError(f"{unknown}; expected {', '.join(TERMS)}")
    return names


def _parse_contender(text: str) -> str:
    names = [*(rival.name for rival in RIVALS), "untransformed"]
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r}; expected {', '.join(names)}")
    return text


@dataclass(frozen=True)
class Option:
    """An option with a value; it is repeatable if its default is a list."""

    flag: str
    metavar: str
    parse: Callable[[str], Any]
    default: Any
    help: str


OPTIONS = (
    Option("--only", "REGEX", str, "", "entries whose names match"),
    Option("--drawn", "SEED", int, None,
           "everyday: 64 random einsums instead, which depend on the seed"),
    Option("--max-gflop", "G", float, 20.0, "tccg: scale larger entries down to this"),
    Option("--elements-scale", "X", float, 1.0, "dgfem: factor of elements"),
    Option("--terms", "NAMES", _parse_terms, tuple(TERMS),
           "settings of the allocator, comma-separated"),
    Option("--rounds", "N", int, 20, "samples of each contender"),
    Option("--warmup", "N", int, 5, "rounds before the first sample"),
    Option("--cap", "S", float, 20.0,
           "total seconds after which a contender gets no more rounds"),
    Option("--pause-ms", "MS", float, 5.0, "shortest pause before every run"),
    Option("--untransformed-limit", "S", float, 20.0,
           "skip the untransformed kernel if a run takes longer"),
    Option("--without", "NAME", _parse_contender, [], "contender to skip; repeatable"),
    Option("--database", "URL", str, None, "facts; by default the user's database"),
    Option("--tune", "N", int, 0, "tune every einsum first, with N trials"),
    Option("--device", "NAME", str, [], "repeatable: the fastest device counts"),
    Option("--limit", "S", float, 3600.0,
           "seconds until the process of an entry is stopped"),
    Option("--out", "FOLDER", Path, ROOT / ".cache" / "bench",
           "folder of the JSON file and of the figure"),
)  # fmt: skip


def parse_options(arguments: Sequence[str], description: str) -> argparse.Namespace:
    """Parse the options; ``device`` is a list that has None by default."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.experiments",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("suite", choices=SUITES)
    for option in OPTIONS:
        parser.add_argument(
            option.flag,
            metavar=option.metavar,
            type=option.parse,
            default=option.default,
            help=option.help,
            action="append" if isinstance(option.default, list) else "store",
        )
    parser.add_argument(
        "--resume", action="store_true", help="skip entries that are in the file"
    )
    options = parser.parse_args(arguments)
    if options.drawn is not None and options.suite != EVERYDAY:
        parser.error(f"--drawn draws calls of arrays: give the suite {EVERYDAY}")
    options.device = options.device or [None]
    return options
