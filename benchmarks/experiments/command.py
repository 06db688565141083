"""The command: which entries, under which terms, against whom.

Every entry runs in processes of its own, one for each of the terms. The file is
written after each entry, so that a run can be stopped and taken up again.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from benchmarks.experiments.calls import show_calls
from benchmarks.experiments.contest import Task, contenders
from benchmarks.experiments.entries import (
    SUITES,
    Entry,
    drawn,
    scaled_to,
    with_elements,
)
from benchmarks.experiments.figures import draw
from benchmarks.experiments.isolation import held, measured_limits, tuned
from benchmarks.experiments.machine import about
from benchmarks.experiments.options import parsed
from benchmarks.experiments.report import show
from benchmarks.experiments.results import Outcome, Report, Result
from feinsum.suites import EVERYDAY


def main(arguments: Sequence[str] | None = None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parsed(arguments, __doc__ or "")
    drawing = "" if options.drawn is None else f"-drawn-{options.drawn}"
    path = options.out / f"{options.suite}{drawing}.json"
    report = _report(arguments, options, path)
    todo = [e for e in chosen(options) if not _is_done(report, e, options.terms)]
    if report.limits is None:
        report.limits = measured_limits(options.device[0])
    stderr = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=stderr) as bar:
        all_of_them = bar.add_task(options.suite, total=len(todo))
        for entry in todo:
            bar.update(all_of_them, description=entry.name)
            report.results[entry.name] = run(entry, options)
            report.save(path)
            bar.advance(all_of_them)
    report.save(path)
    console = Console(width=80) if not sys.stdout.isatty() else Console()
    (show_calls if options.suite == EVERYDAY else show)(report, console)
    figure = path.with_suffix(".png")
    draw(report, figure)
    print(f"samples: {path}\nfigure: {figure}")


def chosen(options: argparse.Namespace) -> list[Entry]:
    """The entries that match, at the sizes that were asked for."""
    every = SUITES[options.suite]() if options.drawn is None else drawn(options.drawn)
    entries = [e for e in every if re.search(options.only, e.name)]
    if options.suite == "tccg":
        return [scaled_to(entry, options.max_gflop) for entry in entries]
    if options.suite == EVERYDAY:
        return entries
    return [with_elements(entry, options.elements_scale) for entry in entries]


def _report(
    arguments: Sequence[str], options: argparse.Namespace, path: Path
) -> Report:
    """A new one, or that of the file; an old file is kept beside the new one."""
    settings = {
        k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()
    }
    now = about(arguments, settings)
    if options.resume and path.is_file():
        report = Report.load(path)
        report.about.append(now)
        return report
    if path.is_file():
        path.replace(path.with_suffix(".previous.json"))
    return Report(options.suite, [now])


def _is_done(report: Report, entry: Entry, terms: Sequence[str]) -> bool:
    """Whether the file has the entry, at these sizes and under these terms."""
    result = report.results.get(entry.name)
    if result is None or dict(result.sizes) != dict(entry.sizes):
        return False
    return set(terms) <= set(result.runs)


def run(entry: Entry, options: argparse.Namespace) -> Result:
    """Tune if asked to, then a contest under each of the terms.

    The untransformed kernel takes part under the first of them only.
    """
    task = _task(entry, options)
    facts = tuned(task, options.tune, options.limit) if options.tune else []
    names = [n for n in contenders(task) if n not in options.without]
    runs: dict[str, dict[str, Outcome]] = {}
    for terms in options.terms:
        now = [n for n in names if n != "untransformed" or not runs]
        runs[terms] = held(
            Task(**{**vars(task), "contenders": now}), terms, options.limit
        )
    return Result.of(entry, runs, facts)


def _task(entry: Entry, options: argparse.Namespace) -> Task:
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
