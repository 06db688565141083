"""Time programs of einsums as whole processes: ``python -m benchmarks.totals``.

For each program and library, a process is started with empty caches (*first*), and
another one with the caches of the first (*second*). With ``--tune SECONDS``, our calls
are tuned for that time, the most expensive ones first, before a third process of ours
(*tuned*). Libraries take turns; the table has medians over rounds. The exit status is 1
if a child failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import ChildFailedError
from benchmarks.totals.contestants import CONTESTANTS
from benchmarks.totals.processes import Conditions, Run, run_processes
from benchmarks.totals.programs import PROGRAMS, Program, select_programs
from benchmarks.totals.summary import Result, Totals, compute_medians

__all__ = ["main"]

WARM_UP = PROGRAMS["one-twice"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse_options(arguments)
    conditions = Conditions(
        options.tiny, options.calls, options.at_once, options.limit_s, options.tune
    )
    contestants = options.contestants or [
        name for name, contestant in CONTESTANTS.items() if contestant.is_installed
    ]
    totals = measure(
        select_programs(options.only), contestants, conditions, options.rounds
    )
    # Imported late: children must not find these modules in the page cache first.
    from benchmarks.totals.report import show_totals, write_totals

    show_totals(totals, contestants, conditions)
    if options.output:
        write_totals(options.output, totals, conditions, options.rounds)
    return int(bool(totals.failures))


def measure(
    programs: Sequence[Program],
    contestants: Sequence[str],
    conditions: Conditions,
    rounds: int,
) -> Totals:
    """Time every program with every library; progress and failures go to stderr."""
    failures: list[str] = []
    for name in contestants:
        _try(WARM_UP, name, Conditions(tiny=True), [])  # compiles modules to bytecode
    results = []
    for program in programs:
        runs: dict[str, list[list[Run]]] = {
            name: [] for name in contestants if name not in program.unfit
        }
        for k in range(rounds):
            for name in [*runs]:
                print(f"{program.name}: {name}, round {k + 1}", file=sys.stderr)
                pair = _try(program, name, conditions, failures)
                if pair is None:
                    del runs[name]
                else:
                    runs[name].append(pair)
        results.append(_summarize_runs(program, runs))
    return Totals(tuple(results), tuple(failures))


def _try(
    program: Program, name: str, conditions: Conditions, failures: list[str]
) -> list[Run] | None:
    try:
        return run_processes(program, CONTESTANTS[name], conditions)
    except ChildFailedError as error:
        failures.append(str(error))
        print(f"failed: {error}", file=sys.stderr)
        return None


def _summarize_runs(program: Program, runs: dict[str, list[list[Run]]]) -> Result:
    medians = {}
    for name, pairs in runs.items():
        medians[name] = tuple(
            compute_medians(runs_of_kind) for runs_of_kind in zip(*pairs, strict=True)
        )
    return Result(program.name, medians)


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.totals",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--only", default="", help="programs whose names match")
    parser.add_argument(
        "--contestants",
        nargs="+",
        choices=CONTESTANTS,
        help="libraries; default: all installed",
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of samples")
    parser.add_argument(
        "--calls", action="store_true", help="also print the worst calls against numpy"
    )
    parser.add_argument(
        "--at-once", type=int, default=1, help="concurrent copies; the slowest counts"
    )
    parser.add_argument(
        "--tune", type=float, default=0.0, metavar="SECONDS", help="tune each program"
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=Conditions.limit_s,
        help="limit of a child in seconds",
    )
    parser.add_argument("--tiny", action="store_true", help="use tiny sizes")
    parser.add_argument(
        "--output", type=Path, help="write all samples to this JSON file"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
