"""Starting a child in fresh folders, and again in those that the first one filled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.caches import empty_caches
from benchmarks.totals.contestants import OURS, Contestant
from benchmarks.totals.programs import Program

__all__ = ["ChildFailedError", "How", "Run", "in_fresh_folders"]

ROOT = Path(__file__).parents[2]


class ChildFailedError(Exception):
    """A child ended with an error, or took too long; says which one."""


@dataclass(frozen=True)
class How:
    """How children are run.

    Attributes:
        at_once: copies of each, of which the slowest counts.
        limit_s: after so many seconds a child has failed.
        tune_s: for which our calls are tuned before a third process; 0 for none.
    """

    tiny: bool = False
    calls: bool = False
    at_once: int = 1
    limit_s: float = 600.0
    tune_s: float = 0.0


@dataclass(frozen=True)
class Run:
    """One process from start to end.

    Attributes:
        total_s: timed by the process that started it; without what it did only for
            this benchmark, and without imports that do not count.
        import_s: of the library, after numpy was imported.
        calls_s: inside of the calls.
        fingerprint: of the last result.
        calls: subscripts and seconds of each, where asked for.
        numpy_s: of the same calls.
    """

    total_s: float
    import_s: float
    calls_s: float
    n_calls: int
    peak_bytes: int
    fingerprint: float
    calls: tuple[tuple[str, float], ...] = ()
    numpy_s: tuple[float, ...] = ()


def in_fresh_folders(
    program: Program, contestant: Contestant, conditions: How
) -> list[Run]:
    """A process without anything kept on disk, then one with what the first kept.

    Of ours a third one follows, if its calls are tuned after the second.
    """
    with TemporaryDirectory() as folder:
        variables = empty_caches(folder)
        variables |= {
            "HOME": f"{folder}/home",
            "FEINSUM_DATABASE": f"{folder}/user.sqlite",
        }
        Path(variables["HOME"]).mkdir()
        runs = [_slowest(program, contestant, conditions, variables) for _ in range(2)]
        if conditions.tune_s and contestant.name == OURS:
            _tune(program, conditions, variables)
            runs.append(_slowest(program, contestant, conditions, variables))
        return runs


def _tune(program: Program, conditions: How, variables: dict[str, str]) -> None:
    command = [sys.executable, "-m", "benchmarks.totals.child", program.name, OURS]
    command += ["--tiny"] * conditions.tiny + ["--tune", str(conditions.tune_s)]
    _said(command, os.environ | variables, f"tuning {program.name}", conditions)


def _slowest(
    program: Program, contestant: Contestant, conditions: How, variables: dict[str, str]
) -> Run:
    """Of copies that are started at once, in the same folders."""
    with ThreadPoolExecutor(conditions.at_once) as threads:
        runs = threads.map(
            lambda _: _run(program, contestant, conditions, variables),
            range(conditions.at_once),
        )
        return max(runs, key=lambda run: run.total_s)


def _run(
    program: Program, contestant: Contestant, conditions: How, variables: dict[str, str]
) -> Run:
    command = [sys.executable, "-m", "benchmarks.totals.child"]
    command += [program.name, contestant.name]
    command += ["--tiny"] * conditions.tiny + ["--calls"] * conditions.calls
    start = time.perf_counter()
    stdout = _said(
        command,
        os.environ | variables,
        f"{program.name} by {contestant.name}",
        conditions,
    )
    total_s = time.perf_counter() - start - stdout.pop("after_s")
    if not contestant.counts_import:
        total_s -= stdout["import_s"]
    calls = tuple(
        (subscripts, seconds) for subscripts, seconds in stdout.pop("calls", ())
    )
    numpy_s = tuple(stdout.pop("numpy_s", ()))
    return Run(total_s=total_s, calls=calls, numpy_s=numpy_s, **stdout)


def _said(
    command: Sequence[str], environment: dict[str, str], name: str, conditions: How
) -> dict[str, Any]:
    """What a child printed last."""
    try:
        completed = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=conditions.limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChildFailedError(
            f"{name}: not done in {conditions.limit_s:g} s"
        ) from None
    lines = (
        completed.stdout if not completed.returncode else completed.stderr
    ).splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "no output")
    if completed.returncode:
        raise ChildFailedError(
            f"{name}: exit code {completed.returncode}: {last.strip()}"
        )
    answer: dict[str, Any] = json.loads(last)
    return answer
