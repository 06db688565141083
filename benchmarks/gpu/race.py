"""Processes that prepare entries, and then time them in turns. Only Python is needed.

Several processes prepare entries, and a crash costs one entry. When all are prepared,
or most of the time is over, one process after the other times its entries: compilers
would slow down the host's part of a call. Entries with results are skipped, so the same
command resumes an interrupted run::

    {"name": "a"}                     its preparation, or its timing, has begun
    {"name": "a", "is_cut": True}     that was no crash
    {"name": "a", "seconds": ...}     the result; or ``failed`` says why there is none
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

PATIENCE_S = 8.0
"""For which processes wait for one that still builds, and after the end."""
TIMING_SHARE = 0.35
"""Of the budget, for timing."""
MOST_STARTS = 3
"""Of an entry: if its process crashed, or was killed, so often, it is given up."""

Prepared = tuple[Mapping[str, Any], dict[str, Any]]
"""What is timed of an entry, by contender, and what is known of it."""


def make_parser(text: str | None, budget: float) -> argparse.ArgumentParser:
    """The options of every race; those after the first three are for its processes."""
    parser = argparse.ArgumentParser(description=str(text).splitlines()[0])
    parser.add_argument("--budget", type=float, default=budget)
    parser.add_argument("--out", required=True)
    parser.add_argument("--jobs", type=int, default=min(12, os.cpu_count() or 1))
    for name, kind in (("worker", int), ("end", float), ("meeting", Path)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser


@dataclass(frozen=True)
class Race:
    """Entries of one process, or of all.

    Attributes:
        module: what ``python -m`` runs, with the same words, as each process.
        names: of all entries, in their order.
        options: of :func:`make_parser`.
    """

    module: str
    names: Sequence[str]
    options: argparse.Namespace

    @property
    def entries(self) -> range:
        """The numbers of the entries."""
        every, worker = range(len(self.names)), self.options.worker
        return every if worker is None else every[worker :: self.options.jobs]

    def lines(self) -> list[Any]:
        """The lines of these entries in the file of results."""
        names = {self.names[k] for k in self.entries}
        return [x for x in report.read(self.options.out) if x["name"] in names]

    def missing(self) -> list[int]:
        """The entries without a result."""
        lines = self.lines()
        done = {line["name"] for line in lines if report.is_result(line)}
        starts: Counter[str] = Counter()
        for line in lines:
            if not report.is_result(line):
                starts[line["name"]] += -1 if "is_cut" in line else 1
        done |= {name for name, n in starts.items() if n >= MOST_STARTS}
        return [k for k in self.entries if self.names[k] not in done]

    def run(self) -> int:
        """Run all processes and print the means; 1 if entries are left, else 0."""
        self.options.end = time.time() + self.options.budget
        with (
            TemporaryDirectory() as folder,
            ThreadPoolExecutor(self.options.jobs) as pool,
        ):
            self.options.meeting = Path(folder)
            list(pool.map(self._supervise, range(self.options.jobs)))
        print(report.summary(report.read(self.options.out)))
        n_left = len(self.missing())
        if n_left:
            print(f"{n_left} entries are left; run it again to resume", file=sys.stderr)
        return int(n_left > 0)

    def _supervise(self, k: int) -> None:
        """Run a process for every ``jobs``-th entry, and another one after a crash."""
        options = argparse.Namespace(**{**vars(self.options), "worker": k})
        race = replace(self, options=options)
        command = [sys.executable, "-m", self.module, *sys.argv[1:],
                   "--worker", k, "--jobs", options.jobs,
                   "--end", options.end, "--meeting", options.meeting]  # fmt: skip
        try:
            while race.missing() and time.time() < options.end:
                left, n_lines = options.end - time.time(), len(race.lines())
                subprocess.run([*map(str, command)], timeout=left + 10, check=False)
                if len(race.lines()) == n_lines:
                    return  # it ends before it starts an entry, and so will the next
        except subprocess.TimeoutExpired:
            lines = race.lines()
            if lines and not (report.is_result(lines[-1]) or "is_cut" in lines[-1]):
                report.append(options.out, {"name": lines[-1]["name"], "is_cut": True})
        finally:
            (options.meeting / str(k)).touch()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process times anything."""
        with (self.options.meeting / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
            yield

    def _wait_for_others(self, limit: float) -> None:
        """Wait until no process builds anything, or the limit, a time, is over."""
        folder, options = self.options.meeting, self.options
        (folder / str(options.worker)).touch()
        places = [folder / str(k) for k in range(options.jobs)]
        while time.time() < limit and not all(place.exists() for place in places):
            time.sleep(0.1)

    def work(
        self,
        prepare: Callable[[int], Prepared],
        timed: Callable[[Any], Mapping[str, Any]],
        turn: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Prepare the entries of this process, wait for the others, and time all.

        Args:
            prepare: prepares an entry, given its number.
            timed: times what is prepared.
            turn: in which no other process times anything.
        """
        out, prepared = self.options.out, []
        building_end = self.options.end - TIMING_SHARE * self.options.budget
        for k in self.missing():
            if time.time() > building_end:
                break
            name = {"name": self.names[k]}
            report.append(out, name)
            prepared.append(prepare(k))
            # a later crash is not that of this entry
            report.append(out, {**name, "is_cut": True})
        self._wait_for_others(building_end + PATIENCE_S)
        self.time_all(prepared, timed, turn)

    def time_all(
        self,
        prepared: Sequence[Prepared],
        timed: Callable[[Any], Mapping[str, Any]],
        turn: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Write a line for each entry without contenders, or timed before the end."""
        out = self.options.out
        for calls, found in prepared:
            if not calls:
                report.append(out, {**found, "seconds": {}})
                continue
            if time.time() > self.options.end:
                continue
            report.append(out, {"name": found["name"]})
            try:
                with turn():
                    found |= timed(calls)
            except Exception as error:
                # without a result, a resumed run would end there, too
                failed = {"failed": [f"{error!r:.300}"]}
                report.append(out, {**found, **failed, "seconds": {}})
                raise
            report.append(out, found)
