"""Start child processes with empty caches, and again with the caches they filled."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.processes import make_empty_caches, run_command
from benchmarks.totals.contestants import OURS, Contestant
from benchmarks.totals.programs import Program

__all__ = ["Conditions", "Run", "run_processes"]


@dataclass(frozen=True)
class Conditions:
    """The settings of child processes.

    Attributes:
        at_once: number of concurrent copies, of which the slowest counts.
        limit_s: time after which a child has failed.
        tune_s: time for tuning our calls before a third process; 0 for none.
    """

    tiny: bool = False
    calls: bool = False
    at_once: int = 1
    limit_s: float = 600.0
    tune_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """The measurements of one process.

    Attributes:
        total_s: wall-clock time of the process, without overhead of the benchmark, and
            without imports that do not count.
        import_s: time of the library's import, after that of numpy.
        calls_s: total time of calls.
        fingerprint: sum over the last result.
        calls: subscripts and seconds of each, if requested.
        numpy_s: numpy's seconds of the same calls.
    """

    total_s: float
    import_s: float
    calls_s: float
    n_calls: int
    peak_bytes: int
    fingerprint: float
    calls: tuple[tuple[str, float], ...] = ()
    numpy_s: tuple[float, ...] = ()


def run_processes(
    program: Program, contestant: Contestant, conditions: Conditions
) -> list[Run]:
    """Run a process with empty caches, then one with the caches of the first.

    A third one of ours follows, if its calls are tuned after the second.
    """
    with TemporaryDirectory() as folder:
        variables = make_empty_caches(folder)
        variables |= {
            "HOME": f"{folder}/home",
            "FEINSUM_DATABASE": f"{folder}/user.sqlite",
        }
        Path(variables["HOME"]).mkdir()
        runs = [
            _run_copies(program, contestant, conditions, variables) for _ in range(2)
        ]
        if conditions.tune_s and contestant.name == OURS:
            _tune(program, conditions, variables)
            runs.append(_run_copies(program, contestant, conditions, variables))
        return runs


def _tune(program: Program, conditions: Conditions, variables: dict[str, str]) -> None:
    command = [sys.executable, "-m", "benchmarks.totals.child", program.name, OURS]
    command += ["--tiny"] * conditions.tiny + ["--tune", str(conditions.tune_s)]
    _run_child(command, os.environ | variables, f"tuning {program.name}", conditions)


def _run_copies(
    program: Program,
    contestant: Contestant,
    conditions: Conditions,
    variables: dict[str, str],
) -> Run:
    """Run concurrent copies in the same folders, and return the slowest."""
    with ThreadPoolExecutor(conditions.at_once) as threads:
        runs = threads.map(
            lambda _: _run(program, contestant, conditions, variables),
            range(conditions.at_once),
        )
        return max(runs, key=lambda run: run.total_s)


def _run(
    program: Program,
    contestant: Contestant,
    conditions: Conditions,
    variables: dict[str, str],
) -> Run:
    command = [sys.executable, "-m", "benchmarks.totals.child"]
    command += [program.name, contestant.name]
    command += ["--tiny"] * conditions.tiny + ["--calls"] * conditions.calls
    start = time.perf_counter()
    document = _run_child(
        command,
        os.environ | variables,
        f"{program.name} by {contestant.name}",
        conditions,
    )
    total_s = time.perf_counter() - start - document.pop("after_s")
    if not contestant.counts_import:
        total_s -= document["import_s"]
    calls = tuple(
        (subscripts, seconds) for subscripts, seconds in document.pop("calls", ())
    )
    numpy_s = tuple(document.pop("numpy_s", ()))
    return Run(total_s=total_s, calls=calls, numpy_s=numpy_s, **document)


def _run_child(
    command: Sequence[str],
    environment: dict[str, str],
    name: str,
    conditions: Conditions,
) -> dict[str, Any]:
    """Run a child, and return the JSON document on its last line."""
    text = run_command(command, environment, name=name, limit_s=conditions.limit_s)
    document: dict[str, Any] = json.loads(text.splitlines()[-1])
    return document
