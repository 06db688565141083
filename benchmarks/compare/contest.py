"""Time feinsum and other libraries on the same arrays, after a check of their
results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from math import inf
from statistics import median

import numpy as np

from benchmarks.compare.rivals import Evaluate, Rival
from benchmarks.timing import time_call, wait_until_idle
from feinsum.calling import NumpyStepsCall, PreparedCall, prepare_call
from feinsum.errors import FeinsumError
from feinsum.measure import Timer, compute_largest_error, compute_tolerance, interleave
from feinsum.options import Effort
from feinsum.records import Policy, compute_quartiles, is_noisy

OURS = "feinsum"
ROUNDS, WARM_UP, LONGEST_S = 15, 2, 5.0
REST_S = 0.5
"""Longest wait for threads that spin."""


@dataclass(frozen=True)
class Problem:
    """The einsum to evaluate, with its operands and expected result.

    Attributes:
        subscripts: with single letters as indices.
        expected: the result.
        n_terms: number of products in the longest sum; determines the tolerance.
    """

    subscripts: str
    operands: tuple[np.ndarray, ...]
    expected: np.ndarray
    n_terms: int


@dataclass(frozen=True)
class Outcome:
    """The samples of one library, or the reason why there are none.

    Attributes:
        version: of the package.
        samples_s: run times; empty if it was not timed.
        why_not: the reason, if it was not timed.
        note: how feinsum computes the result.
    """

    name: str
    version: str
    samples_s: tuple[float, ...] = ()
    why_not: str = ""
    note: str = ""

    @property
    def median_s(self) -> float:
        """Return the median run time, or infinity without samples."""
        return median(self.samples_s) if self.samples_s else inf

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """Return the lower and the upper quartile."""
        quartiles_s = compute_quartiles(self.samples_s)
        return quartiles_s.low, quartiles_s.high

    @property
    def spread_s(self) -> float:
        """Return the interquartile range."""
        low, high = self.quartiles_s
        return high - low

    @property
    def is_noisy(self) -> bool:
        return is_noisy(self.samples_s)


@dataclass
class Contender:
    """A library that is timed by the wall clock, when all threads are idle.

    Threads of OpenBLAS and others spin for a while after a call, and would slow down
    the library that runs next. So each run waits for them, and follows an untimed run.
    """

    evaluate: Evaluate
    timer: Timer = "wall"

    def run(self, timer: Timer | None = None) -> float:
        wait_until_idle(limit_s=REST_S)
        self.evaluate()
        return time_call(self.evaluate)


def compare_libraries(
    problem: Problem,
    *,
    device: str | None = None,
    database: str | None = None,
    policy: Policy | None = None,
    effort: Effort | None = None,
    rivals: Sequence[Rival],
) -> list[Outcome]:
    """Check and time all libraries; the fastest is first, libraries without times
    last.
    """
    call = prepare_call(
        problem.subscripts,
        *problem.operands,
        device=device,
        database=database,
        policy=policy,
        effort=effort or "estimate",
    )
    prepared: list[tuple[Outcome, Evaluate | None]] = [
        _check_result(
            Outcome(OURS, version("feinsum"), note=_describe_call(call)),
            lambda: lambda: call.run(problem.operands),
            problem,
        )
    ]
    prepared += [_prepare_rival(rival, problem) for rival in rivals]
    ready = [(outcome, run) for outcome, run in prepared if run is not None]
    times = interleave(
        [Contender(run) for _, run in ready],
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


def _prepare_rival(rival: Rival, problem: Problem) -> tuple[Outcome, Evaluate | None]:
    if find_spec(rival.package) is None:
        why = f"not installed; run: pip install {rival.distribution}"
        return Outcome(rival.name, "", why_not=why), None

    def prepare() -> Evaluate:
        module = import_module(rival.package)
        return rival.prepare(module, problem.subscripts, problem.operands)

    return _check_result(
        Outcome(rival.name, version(rival.distribution)), prepare, problem
    )


def _check_result(
    outcome: Outcome, prepare: Callable[[], Evaluate], problem: Problem
) -> tuple[Outcome, Evaluate | None]:
    """Prepare the evaluation; no function is returned if it fails or is wrong."""
    try:
        evaluate = prepare()
        error = compute_largest_error(np.asarray(evaluate()), problem.expected)
    except FeinsumError:
        raise
    except Exception as cause:  # noqa: BLE001  # libraries raise anything
        text = next(iter(str(cause).strip().splitlines()), "")
        return _exclude(outcome, f"{type(cause).__name__}: {text:.200}"), None
    tolerance = compute_tolerance(problem.expected.dtype, problem.n_terms)
    if not error <= tolerance:
        why = f"wrong result: error {error:.1e}, allowed {tolerance:.1e}"
        return _exclude(outcome, why), None
    return outcome, evaluate


def _exclude(outcome: Outcome, why: str) -> Outcome:
    return Outcome(outcome.name, outcome.version, why_not=why, note=outcome.note)


def _describe_call(call: PreparedCall | NumpyStepsCall) -> str:
    """Return how feinsum computes the result."""
    kernel = call.kernel
    if isinstance(call, NumpyStepsCall):
        return "numpy"
    if kernel is None:
        return "view of the operand"
    if kernel.is_retrieved:
        return "recorded recipe"
    return "untransformed" if kernel.spec is None else f"predicted: {kernel.spec}"
