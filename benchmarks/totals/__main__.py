"""Time programs of einsums as whole processes: ``python -m benchmarks.totals``.

For each program and contestant a process is started in empty folders (*first*), and
again in the same ones (*second*). With ``--tune SECONDS`` our calls are tuned for so
long, those first that take the longest, and a third process of ours follows (*tuned*);
rivals have nothing to tune. Contestants take turns; medians over rounds count.
The exit status is 1 if a child failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.totals.contestants import CONTESTANTS
from benchmarks.totals.processes import ChildFailedError, How, Run, in_fresh_folders
from benchmarks.totals.programs import PROGRAMS, Program, chosen
from benchmarks.totals.summary import Found, Result, over_rounds

__all__ = ["main"]

WARM_UP = PROGRAMS["one-twice"]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    conditions = How(
        options.tiny, options.calls, options.at_once, options.limit_s, options.tune
    )
    contestants = options.contestants or [
        name for name, contestant in CONTESTANTS.items() if contestant.is_installed
    ]
    totals = measure(chosen(options.only), contestants, conditions, options.rounds)
    # What reports import, children would not have: they are started before.
    from benchmarks.totals.report import show, write

    show(totals, contestants, conditions)
    if options.output:
        write(options.output, totals, conditions, options.rounds)
    return int(bool(totals.failures))


def measure(
    programs: Sequence[Program],
    contestants: Sequence[str],
    conditions: How,
    rounds: int,
) -> Found:
    """Every program by every contestant; progress and failures go to stderr."""
    failures: list[str] = []
    for name in contestants:
        _try(
            WARM_UP, name, How(tiny=True), []
        )  # so that modules are compiled, and read
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
        results.append(_result(program, runs))
    return Found(tuple(results), tuple(failures))


def _try(
    program: Program, name: str, conditions: How, failures: list[str]
) -> list[Run] | None:
    try:
        return in_fresh_folders(program, CONTESTANTS[name], conditions)
    except ChildFailedError as error:
        failures.append(str(error))
        print(f"failed: {error}", file=sys.stderr)
        return None


def _result(program: Program, runs: dict[str, list[list[Run]]]) -> Result:
    medians = {}
    for name, pairs in runs.items():
        medians[name] = tuple(
            over_rounds(runs_of_kind) for runs_of_kind in zip(*pairs, strict=True)
        )
    return Result(program.name, medians)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.totals",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--only", default="", help="programs whose names match")
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, help="default: the installed"
    )
    parser.add_argument("--rounds", type=int, default=3, help="medians of so many")
    parser.add_argument(
        "--calls", action="store_true", help="also the worst calls against numpy"
    )
    parser.add_argument(
        "--at-once", type=int, default=1, help="copies at once; the slowest counts"
    )
    parser.add_argument(
        "--tune", type=float, default=0.0, metavar="SECONDS", help="of each program"
    )
    parser.add_argument("--limit-s", type=float, default=How.limit_s, help="per child")
    parser.add_argument("--tiny", action="store_true", help="at sizes for tests")
    parser.add_argument("--output", type=Path, help="write all numbers there, as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
