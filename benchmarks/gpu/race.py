"""Prepare entries in several processes, and time them in turns; requires only Python.

A crash costs one entry. When all entries are prepared, or most of the time is over, one
process after the other times its entries: compilers would slow down the host's part of
a call. Entries with results are skipped, so that the same command resumes an
interrupted run::

    {"name": "a"}                     its preparation, or its timing, has begun
    {"name": "a", "is_cut": True}     it ended without a crash
    {"name": "a", "seconds": ...}     the result; or ``failed`` with the reason
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu import report

WAIT_S = 8.0
"""Time to wait for processes that are still building."""
TIMING_SHARE = 0.35
"""Share of the budget for timing."""
MOST_STARTS = 3
"""Crashes of an entry, after which it is skipped."""

Prepared = tuple[Mapping[str, Any], dict[str, Any]]
"""Calls of an entry by contender, and a line for the results."""


def make_parser(text: str | None, budget: float) -> argparse.ArgumentParser:
    """Return a parser with the options of every race; suppressed ones are internal."""
    parser = argparse.ArgumentParser(description=str(text).splitlines()[0])
    parser.add_argument("--budget", type=float, default=budget)
    parser.add_argument("--out", required=True)
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1))
    for name, kind in (("worker", int), ("end", float), ("meeting", Path)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser


@dataclass(frozen=True)
class Race:
    """The entries of one process, or of all.

    Attributes:
        module: the module that each process runs, with the same arguments.
        names: names of all entries, in order.
        options: options of :func:`make_parser`.
    """

    module: str
    names: Sequence[str]
    options: argparse.Namespace

    @property
    def entries(self) -> range:
        """Return the numbers of the entries."""
        every, worker = range(len(self.names)), self.options.worker
        return every if worker is None else every[worker :: self.options.jobs]

    def read_lines(self) -> list[Any]:
        """Read the lines of these entries from the file of results."""
        names = {self.names[k] for k in self.entries}
        return [x for x in report.read_lines(self.options.out) if x["name"] in names]

    def list_missing(self) -> list[int]:
        """Return the entries without a result."""
        lines = self.read_lines()
        finished = {line["name"] for line in lines if report.is_result(line)}
        starts: Counter[str] = Counter()
        for line in lines:
            if not report.is_result(line):
                starts[line["name"]] += -1 if "is_cut" in line else 1
        finished |= {name for name, n in starts.items() if n >= MOST_STARTS}
        return [k for k in self.entries if self.names[k] not in finished]

    def run(self) -> int:
        """Run all processes and print means; return 1 if entries are left, else 0."""
        self.options.end = time.time() + self.options.budget
        with (
            TemporaryDirectory() as folder,
            ThreadPoolExecutor(self.options.jobs) as pool,
        ):
            self.options.meeting = Path(folder)
            list(pool.map(self._supervise, range(self.options.jobs)))
        print(report.summarize(report.read_lines(self.options.out)))
        n_left = len(self.list_missing())
        if n_left:
            print(f"{n_left} entries are left; run it again to resume", file=sys.stderr)
        return int(n_left > 0)

    def _supervise(self, k: int) -> None:
        """Run a process for every ``jobs``-th entry, and another one after each
        crash.
        """
        options = argparse.Namespace(**{**vars(self.options), "worker": k})
        race = replace(self, options=options)
        command = [sys.executable, "-m", self.module, *sys.argv[1:],
                   "--worker", k, "--jobs", options.jobs,
                   "--end", options.end, "--meeting", options.meeting]  # fmt: skip
        try:
            while race.list_missing() and time.time() < options.end:
                left, n_lines = options.end - time.time(), len(race.read_lines())
                subprocess.run([*map(str, command)], timeout=left + 10, check=False)
                if len(race.read_lines()) == n_lines:
                    return  # it started no entry, and the next one would not either
        except subprocess.TimeoutExpired:
            lines = race.read_lines()
            if lines and not (report.is_result(lines[-1]) or "is_cut" in lines[-1]):
                report.append_line(
                    options.out, {"name": lines[-1]["name"], "is_cut": True}
                )
        finally:
            (options.meeting / str(k)).touch()

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Reserve the right to time."""
        with (self.options.meeting / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            yield

    def _wait_for_others(self, limit: float) -> None:
        """Wait until no process builds anything, or until a time."""
        folder, options = self.options.meeting, self.options
        (folder / str(options.worker)).touch()
        marks = [folder / str(k) for k in range(options.jobs)]
        while time.time() < limit and not all(mark.exists() for mark in marks):
            time.sleep(0.1)

    def work(
        self,
        prepare: Callable[[int], Prepared],
        measure: Callable[[Any], Mapping[str, Any]],
        turn: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Prepare the entries of this process, wait for the others, and time all.

        Args:
            prepare: prepares an entry, given its number.
            measure: times the calls of an entry.
            turn: a context in which no other process times anything.
        """
        out, prepared = self.options.out, []
        building_end = self.options.end - TIMING_SHARE * self.options.budget
        for k in self.list_missing():
            if time.time() > building_end:
                break
            name = {"name": self.names[k]}
            report.append_line(out, name)
            prepared.append(prepare(k))
            # a later crash is not caused by this entry
            report.append_line(out, {**name, "is_cut": True})
        self._wait_for_others(building_end + WAIT_S)
        self.time_all(prepared, measure, turn)

    def time_all(
        self,
        prepared: Sequence[Prepared],
        measure: Callable[[Any], Mapping[str, Any]],
        turn: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Time entries until the end, and append a line for each."""
        out = self.options.out
        for calls, line in prepared:
            if not calls:
                report.append_line(out, {**line, "seconds": {}})
                continue
            if time.time() > self.options.end:
                continue
            report.append_line(out, {"name": line["name"]})
            try:
                with turn():
                    line |= measure(calls)
            except Exception as error:
                # without a result, a resumed run would end there, too
                failed = {"failed": [f"{error!r:.300}"]}
                report.append_line(out, {**line, **failed, "seconds": {}})
                raise
            report.append_line(out, line)
