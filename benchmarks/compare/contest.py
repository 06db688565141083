"""Ours and the rivals on the same arrays: checked, then timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from math import inf
from statistics import median
from time import perf_counter, process_time, sleep

import numpy as np

from benchmarks.compare.rivals import Evaluate, Rival
from feinsum.calling import NumpyStepsCall, PreparedCall, prepare_call
from feinsum.errors import FeinsumError
from feinsum.measure import Timer, compute_largest_error, compute_tolerance, interleave
from feinsum.options import Effort
from feinsum.records import Policy, compute_quartiles, is_noisy

OURS = "feinsum"
ROUNDS, WARM_UP, LONGEST_S = 15, 2, 5.0
STEP_S, REST_S = 0.005, 0.5
"""For how long threads are watched, and how long they may take to come to rest."""


@dataclass(frozen=True)
class Subject:
    """The einsum that all contestants evaluate.

    Attributes:
        subscripts: of letters.
        expected: the result.
        n_terms: most products in a sum.
    """

    subscripts: str
    operands: tuple[np.ndarray, ...]
    expected: np.ndarray
    n_terms: int


@dataclass(frozen=True)
class Outcome:
    """How a contender did.

    Attributes:
        version: of its package.
        samples_s: empty if it was not timed.
        why_not: why it was not.
        note: what ours did.
    """

    name: str
    version: str
    samples_s: tuple[float, ...] = ()
    why_not: str = ""
    note: str = ""

    @property
    def median_s(self) -> float:
        """Infinite if it was not timed."""
        return median(self.samples_s) if self.samples_s else inf

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """The lower and the upper one of the samples."""
        quartiles_s = compute_quartiles(self.samples_s)
        return quartiles_s.low, quartiles_s.high

    @property
    def spread_s(self) -> float:
        """The interquartile range."""
        low, high = self.quartiles_s
        return high - low

    @property
    def is_noisy(self) -> bool:
        return is_noisy(self.samples_s)


@dataclass
class Entrant:
    """A contender that holds its operands, timed by the wall clock.

    Threads of OpenBLAS and others spin for a while after a call, which would be blamed
    on whoever comes next. So every run waits for them, and comes after one of the same
    contender that does not count.
    """

    evaluate: Evaluate
    timer: Timer = "wall"

    def run(self, timer: Timer | None = None) -> float:
        _settle()
        self.evaluate()
        start_s = perf_counter()
        self.evaluate()
        return perf_counter() - start_s


def _settle(worked: Callable[[], float] = process_time) -> None:
    """Wait until no thread of this process works, but not for ever."""
    for _ in range(round(REST_S / STEP_S)):
        before = worked()
        sleep(STEP_S)
        if worked() - before < STEP_S / 5:
            return


def hold(
    subject: Subject,
    *,
    device: str | None = None,
    database: str | None = None,
    policy: Policy | None = None,
    effort: Effort | None = None,
    rivals: Sequence[Rival],
) -> list[Outcome]:
    """The outcomes, the fastest first; whoever was not timed is last."""
    call = prepare_call(
        subject.subscripts,
        *subject.operands,
        device=device,
        database=database,
        policy=policy,
        effort=effort or "estimate",
    )
    prepared: list[tuple[Outcome, Evaluate | None]] = [
        _checked(
            Outcome(OURS, version("feinsum"), note=_note(call)),
            lambda: lambda: call.run(subject.operands),
            subject,
        )
    ]
    prepared += [_entered(rival, subject) for rival in rivals]
    ready = [(outcome, run) for outcome, run in prepared if run is not None]
    times = interleave(
        [Entrant(run) for _, run in ready],
        rounds=ROUNDS,
        warmup=WARM_UP,
        max_total_s=LONGEST_S,
    )
    timed = [
        Outcome(contender.name, contender.version, samples, note=contender.note)
        for (contender, _), samples in zip(ready, times, strict=True)
    ]
    return [
        *sorted(timed, key=lambda contender: contender.median_s),
        *(outcome for outcome, run in prepared if run is None),
    ]


def _entered(rival: Rival, subject: Subject) -> tuple[Outcome, Evaluate | None]:
    if find_spec(rival.package) is None:
        why = f"not installed; run: pip install {rival.distribution}"
        return Outcome(rival.name, "", why_not=why), None

    def prepare() -> Evaluate:
        module = import_module(rival.package)
        return rival.prepare(module, subject.subscripts, subject.operands)

    return _checked(Outcome(rival.name, version(rival.distribution)), prepare, subject)


def _checked(
    outcome: Outcome, prepare: Callable[[], Evaluate], subject: Subject
) -> tuple[Outcome, Evaluate | None]:
    """The evaluation, unless it fails or is wrong."""
    try:
        evaluate = prepare()
        error = compute_largest_error(np.asarray(evaluate()), subject.expected)
    except FeinsumError:
        raise
    except Exception as problem:  # noqa: BLE001  # whatever a library raises is told
        text = next(iter(str(problem).strip().splitlines()), "")
        return _left_out(outcome, f"{type(problem).__name__}: {text:.200}"), None
    allowed = compute_tolerance(subject.expected.dtype, subject.n_terms)
    if not error <= allowed:
        why = f"wrong result: error {error:.1e}, allowed {allowed:.1e}"
        return _left_out(outcome, why), None
    return outcome, evaluate


def _left_out(outcome: Outcome, why: str) -> Outcome:
    return Outcome(outcome.name, outcome.version, why_not=why, note=outcome.note)


def _note(call: PreparedCall | NumpyStepsCall) -> str:
    """How our result is computed, in words."""
    return ", ".join(_parts(call))


def _parts(call: PreparedCall | NumpyStepsCall) -> Iterator[str]:
    kernel = call.kernel
    if isinstance(call, NumpyStepsCall):
        yield "numpy"
    elif kernel is None:
        yield "view of the operand"
    elif kernel.is_retrieved:
        yield "recorded recipe"
    elif kernel.spec is not None:
        yield f"predicted: {kernel.spec}"
    else:
        yield "untransformed"
