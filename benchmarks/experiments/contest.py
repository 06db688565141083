"""One entry under some terms: prepare, check, then time in turns.

All contenders that are right run once per round, A B C A B C, so that slow drifts of
the machine reach all alike. The threads of OpenBLAS, OpenMP and others go on spinning
for some milliseconds after a call and would take cores from whoever comes next:
therefore every run waits until all are at rest, and then follows one of the same
contender that does not count.

The untransformed kernel is slow. It runs after the others, three times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np

from benchmarks.experiments.contender import Contender, NotApplicableError, Ready
from benchmarks.experiments.entries import Entry, entry_at
from benchmarks.experiments.functions import Values
from benchmarks.experiments.ours import Calls, Retrieved, Untransformed
from benchmarks.experiments.results import Outcome
from benchmarks.experiments.rivals import RIVALS
from feinsum.measure import Timer, compute_largest_error, compute_tolerance, interleave
from feinsum.suites import EVERYDAY

Note = Callable[[str], None]
"""Told the name of the contender whose code is about to run."""


@dataclass(frozen=True)
class Task:
    """A contest, as it is handed to another process.

    Attributes:
        contenders: names.
        cap_s: a contender that has run that long gets no more rounds.
        pause_s: before every run, at least; see :func:`settle`.
    """

    suite: str
    name: str
    sizes: Mapping[str, int]
    contenders: Sequence[str]
    devices: Sequence[str | None] = (None,)
    database: str | None = None
    rounds: int = 20
    warmup: int = 5
    cap_s: float = 20.0
    pause_s: float = 0.005
    untransformed_limit_s: float = 20.0

    @property
    def entry(self) -> Entry:
        return entry_at(self.suite, self.name, self.sizes)


def contenders(task: Task) -> dict[str, Contender]:
    """Every contender that there is, by name; ours first."""
    if task.suite == EVERYDAY:
        calls = (Calls(), Calls("feinsum tuned", task.database))
        return {c.name: c for c in (*calls, *RIVALS) if c.name != "torch.compile"}
    ours = [Retrieved(device, task.database) for device in task.devices]
    plain = Untransformed(task.devices[0], task.untransformed_limit_s)
    return {c.name: c for c in (*ours, plain, *RIVALS)}


STEP_S = 0.005
"""For how long threads are watched."""

LONG_S = 0.25
"""A run that takes longer counts though none of the same contender came before it."""

WARM_S = 0.03
"""How long a contender runs before a run that counts."""


@dataclass
class Watched:
    """A contender that says when it runs, when all the others have come to rest.

    Runs that do not count come first. They wake its threads, leave in the caches what
    its own code does, and last until the processor is up to speed again, which takes
    some milliseconds after a pause, and would be laid to the charge of the fastest.
    """

    name: str
    ready: Ready
    note: Note
    pause_s: float
    timer: Timer = "wall"

    def run(self, timer: Timer | None = None) -> float:
        self.note(self.name)
        settle(self.pause_s)
        first = spent = self.ready.run("wall")
        if first > LONG_S:
            return first
        while spent < WARM_S:
            spent += self.ready.run("wall")
        return self.ready.run("wall")


def settle(
    pause_s: float,
    limit_s: float = 1.0,
    worked: Callable[[], float] = process_time,
) -> None:
    """Wait, and go on until no thread of this process works.

    Those of OpenBLAS go on spinning for a tenth of a second after a product, which
    would be laid to the charge of whoever comes next.

    Args:
        worked: seconds that all threads together have worked so far.
    """
    sleep(pause_s)
    for _ in range(round(limit_s / STEP_S)):
        before = worked()
        sleep(STEP_S)
        if worked() - before < STEP_S / 5:
            return


def hold(task: Task, note: Note = lambda name: None) -> dict[str, Outcome]:
    """The outcome of every contender of a task."""
    entry = task.entry
    values = entry.values()
    expected = entry.reference(values)
    entrants = contenders(task)
    outcomes: dict[str, Outcome] = {}
    watched: list[Watched] = []
    for name in task.contenders:
        note(name)
        outcomes[name], ready = _tried(entrants[name], entry, values, expected)
        if ready is not None:
            watched.append(Watched(name, ready, note, task.pause_s))
    del values, expected
    for group, rounds, warmup in (
        ([w for w in watched if w.name != "untransformed"], task.rounds, task.warmup),
        ([w for w in watched if w.name == "untransformed"], 3, 0),
    ):
        times = interleave(
            group,
            rounds=rounds,
            warmup=warmup,
            min_total_s=0.0,
            max_total_s=task.cap_s,
        )
        for contender, samples in zip(group, times, strict=True):
            outcome = outcomes[contender.name]
            outcomes[contender.name] = replace(outcome, samples_s=samples)
    return outcomes


def _tried(
    contender: Contender, entry: Entry, values: Values, expected: list[np.ndarray]
) -> tuple[Outcome, Ready | None]:
    """Prepare, run twice and compare; ready only if the result is right."""
    if find_spec(contender.package) is None:
        why = f"the package {contender.package} is not installed"
        return Outcome("not installed", why), None
    start = perf_counter()
    try:
        ready = contender.prepare(entry, values)
        ready.run("wall")
        first_s = perf_counter() - start
        second_s = ready.run("wall")
        results = ready.results()
    except NotApplicableError as reason:
        return Outcome("left out", str(reason)), None
    except Exception as error:  # noqa: BLE001 (whatever a library raises is reported)
        return Outcome("failed", _first_line(error)), None
    error = _error(results, expected)
    allowed = compute_tolerance(entry.dtype, entry.n_terms)
    if not error <= allowed:
        why = f"an error of {error:.1e}, where {allowed:.1e} is allowed"
        return Outcome("wrong", why, ready.note, first_s, second_s, error), None
    return Outcome("ok", "", ready.note, first_s, second_s, error), ready


def _error(results: list[np.ndarray], expected: list[np.ndarray]) -> float:
    if len(results) != len(expected):
        return float("inf")
    return max(map(compute_largest_error, results, expected))


def _first_line(error: Any) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text[:300]}"
