"""Check the contenders of one entry, then time them in interleaved rounds.

All contenders with right results run once per round, A B C A B C, so that slow drifts
of the machine affect all alike. Threads of OpenBLAS, OpenMP and others spin for some
milliseconds after a call, which would slow down the next contender. Therefore every run
waits until all threads are idle, and follows untimed runs of the same contender.

The untransformed kernel is slow. It runs three times, after the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.experiments.contender import Contender, NotApplicableError, Ready
from benchmarks.experiments.entries import Entry, find_entry
from benchmarks.experiments.functions import Values
from benchmarks.experiments.ours import Calls, Retrieved, Untransformed
from benchmarks.experiments.results import Outcome
from benchmarks.experiments.rivals import RIVALS
from benchmarks.timing import wait_until_idle
from feinsum.measure import Timer, compute_largest_error, compute_tolerance, interleave
from feinsum.suites import EVERYDAY

Note = Callable[[str], None]
"""Called with the name of the contender whose code runs next."""


@dataclass(frozen=True)
class Task:
    """The entry, contenders and settings of one run, as passed to a child process.

    Attributes:
        list_contenders: names.
        cap_s: total time after which a contender gets no more rounds.
        pause_s: shortest pause before each run; see :func:`wait_until_idle`.
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
        return find_entry(self.suite, self.name, self.sizes)


def list_contenders(task: Task) -> dict[str, Contender]:
    """Return the contenders of a task by name, ours first."""
    if task.suite == EVERYDAY:
        calls = (Calls(), Calls("feinsum tuned", task.database))
        return {c.name: c for c in (*calls, *RIVALS) if c.name != "torch.compile"}
    ours = [Retrieved(device, task.database) for device in task.devices]
    plain = Untransformed(task.devices[0], task.untransformed_limit_s)
    return {c.name: c for c in (*ours, plain, *RIVALS)}


LONG_S = 0.25
"""Runs that take longer need no warm-up."""

WARM_S = 0.03
"""Duration of the warm-up before a timed run."""


@dataclass
class IdleTimed:
    """A contender that is timed when all threads are idle, after a warm-up.

    The warm-up wakes its threads, fills the caches with its data, and lasts until the
    processor is back at full clock, some milliseconds after a pause.
    """

    name: str
    ready: Ready
    note: Note
    pause_s: float
    timer: Timer = "wall"

    def run(self, timer: Timer | None = None) -> float:
        self.note(self.name)
        wait_until_idle(self.pause_s)
        first = spent = self.ready.run("wall")
        if first > LONG_S:
            return first
        while spent < WARM_S:
            spent += self.ready.run("wall")
        return self.ready.run("wall")


def run_contest(task: Task, note: Note = lambda name: None) -> dict[str, Outcome]:
    """Time the contenders of a task, and return their outcomes."""
    entry = task.entry
    values = entry.draw_values()
    expected = entry.compute_reference(values)
    contenders = list_contenders(task)
    outcomes: dict[str, Outcome] = {}
    timed: list[IdleTimed] = []
    for name in task.contenders:
        note(name)
        outcomes[name], ready = _prepare_contender(
            contenders[name], entry, values, expected
        )
        if ready is not None:
            timed.append(IdleTimed(name, ready, note, task.pause_s))
    del values, expected
    for group, rounds, warmup in (
        ([w for w in timed if w.name != "untransformed"], task.rounds, task.warmup),
        ([w for w in timed if w.name == "untransformed"], 3, 0),
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


def _prepare_contender(
    contender: Contender, entry: Entry, values: Values, expected: list[np.ndarray]
) -> tuple[Outcome, Ready | None]:
    """Prepare, run twice and compare; the contender is returned if the result is
    right.
    """
    if find_spec(contender.package) is None:
        why = f"the package {contender.package} is not installed"
        return Outcome("not installed", why), None
    start = perf_counter()
    try:
        ready = contender.prepare(entry, values)
        ready.run("wall")
        first_s = perf_counter() - start
        second_s = ready.run("wall")
        results = ready.read_results()
    except NotApplicableError as reason:
        return Outcome("left out", str(reason)), None
    except Exception as error:  # noqa: BLE001 (whatever a library raises is reported)
        return Outcome("failed", _format_error(error)), None
    error = _compute_error(results, expected)
    tolerance = compute_tolerance(entry.dtype, entry.n_terms)
    if not error <= tolerance:
        why = f"an error of {error:.1e}, where {tolerance:.1e} is allowed"
        return Outcome("wrong", why, ready.note, first_s, second_s, error), None
    return Outcome("ok", "", ready.note, first_s, second_s, error), ready


def _compute_error(results: list[np.ndarray], expected: list[np.ndarray]) -> float:
    if len(results) != len(expected):
        return float("inf")
    return max(map(compute_largest_error, results, expected))


def _format_error(error: Any) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {text[:300]}"
