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


def in_fresh_folders(program: Program, contestant: Contestant, how: How) -> list[Run]:
    """A process without anything kept on disk, then one with what the first kept.

    Of ours a third one follows, if its calls are tuned after the second.
    """
    with TemporaryDirectory() as folder:
        own = empty_caches(folder)
        own |= {"HOME": f"{folder}/home", "FEINSUM_DATABASE": f"{folder}/user.sqlite"}
        Path(own["HOME"]).mkdir()
        runs = [_slowest(program, contestant, how, own) for _ in range(2)]
        if how.tune_s and contestant.name == OURS:
            _tune(program, how, own)
            runs.append(_slowest(program, contestant, how, own))
        return runs


def _tune(program: Program, how: How, own: dict[str, str]) -> None:
    command = [sys.executable, "-m", "benchmarks.totals.child", program.name, OURS]
    command += ["--tiny"] * how.tiny + ["--tune", str(how.tune_s)]
    _said(command, os.environ | own, f"tuning {program.name}", how)


def _slowest(
    program: Program, contestant: Contestant, how: How, own: dict[str, str]
) -> Run:
    """Of copies that are started at once, in the same folders."""
    with ThreadPoolExecutor(how.at_once) as threads:
        runs = threads.map(
            lambda _: _run(program, contestant, how, own), range(how.at_once)
        )
        return max(runs, key=lambda run: run.total_s)


def _run(
    program: Program, contestant: Contestant, how: How, own: dict[str, str]
) -> Run:
    command = [sys.executable, "-m", "benchmarks.totals.child"]
    command += [program.name, contestant.name]
    command += ["--tiny"] * how.tiny + ["--calls"] * how.calls
    start = time.perf_counter()
    said = _said(command, os.environ | own, f"{program.name} by {contestant.name}", how)
    total_s = time.perf_counter() - start - said.pop("after_s")
    if not contestant.counts_import:
        total_s -= said["import_s"]
    calls = tuple(
        (subscripts, seconds) for subscripts, seconds in said.pop("calls", ())
    )
    numpy_s = tuple(said.pop("numpy_s", ()))
    return Run(total_s=total_s, calls=calls, numpy_s=numpy_s, **said)


def _said(
    command: Sequence[str], environment: dict[str, str], name: str, how: How
) -> dict[str, Any]:
    """What a child printed last."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=how.limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChildFailedError(f"{name}: not done in {how.limit_s:g} s") from None
    lines = (done.stdout if not done.returncode else done.stderr).splitlines()
    last = next((line for line in reversed(lines) if line.strip()), "no output")
    if done.returncode:
        raise ChildFailedError(f"{name}: exit code {done.returncode}: {last.strip()}")
    found: dict[str, Any] = json.loads(last)
    return found
