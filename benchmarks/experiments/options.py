"""The options of the command, as data."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.experiments.entries import SUITES
from benchmarks.experiments.isolation import ROOT
from benchmarks.experiments.rivals import RIVALS
from benchmarks.experiments.terms import TERMS
from feinsum.suites import EVERYDAY


def _terms(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := sorted(set(names) - set(TERMS)):
        raise argparse.ArgumentTypeError(f"{unknown}; known are {', '.join(TERMS)}")
    return names


def _contender(text: str) -> str:
    names = [*(rival.name for rival in RIVALS), "untransformed"]
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text!r}; known are {', '.join(names)}")
    return text


@dataclass(frozen=True)
class Option:
    """An option with a value; of one whose default is a list there may be several."""

    flag: str
    metavar: str
    of: Callable[[str], Any]
    default: Any
    help: str


OPTIONS = (
    Option("--only", "REGEX", str, "", "entries whose names match"),
    Option("--drawn", "SEED", int, None,
           "everyday: einsums drawn at random instead, 64 of them for a seed"),
    Option("--max-gflop", "G", float, 20.0, "tccg: larger entries are scaled to this"),
    Option("--elements-scale", "X", float, 1.0, "dgfem: times the number of elements"),
    Option("--terms", "NAMES", _terms, tuple(TERMS), "with which memory"),
    Option("--rounds", "N", int, 20, "samples of each contender"),
    Option("--warmup", "N", int, 5, "rounds before the first sample"),
    Option("--cap", "S", float, 20.0, "seconds until a contender gets no more rounds"),
    Option("--pause-ms", "MS", float, 5.0, "before every run"),
    Option("--untransformed-limit", "S", float, 20.0,
           "the untransformed kernel is left out if a run takes longer"),
    Option("--without", "NAME", _contender, [], "a contender to leave out; repeatable"),
    Option("--database", "URL", str, None, "facts; by default the user's own"),
    Option("--tune", "N", int, 0, "first tune every einsum, with N trials"),
    Option("--device", "NAME", str, [], "devices; repeatable: the best counts"),
    Option("--limit", "S", float, 3600.0,
           "seconds until the process of an entry is stopped"),
    Option("--out", "FOLDER", Path, ROOT / ".cache" / "bench",
           "where the JSON file and the PNG are"),
)  # fmt: skip


def parsed(arguments: Sequence[str], description: str) -> argparse.Namespace:
    """The value of every option; ``device`` has at least one, None by default."""
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
            type=option.of,
            default=option.default,
            help=option.help,
            action="append" if isinstance(option.default, list) else "store",
        )
    parser.add_argument(
        "--resume", action="store_true", help="keep the entries that the file has"
    )
    options = parser.parse_args(arguments)
    if options.drawn is not None and options.suite != EVERYDAY:
        parser.error(f"--drawn draws calls of arrays: give the suite {EVERYDAY}")
    options.device = options.device or [None]
    return options
