"""Trials: the protocol of benches, messages, outcomes, and the scale of ranks.

A trial is timed in turns with a *reference*, the best verified kernel so far. Both see
the same machine in every round, so a trial is judged by the median of the ratios within
rounds, which does not depend on the load of the machine::

    r(spec) = median over rounds k of  t(spec, k) / t(reference, k)

The reference was itself the candidate of a trial, so the chain leads back to the
untransformed kernel, whose cost is 1::

    cost(spec) = r(spec) * cost(reference)

The first reference is the untransformed kernel, with ``cost = r``. If it is too slow to
run in every round, the cost is the candidate's median time over that of the
untransformed kernel, timed when the trials were set up. An error in a link affects all
later costs equally, and so not the order of recipes timed against one reference; the
finalists are timed again in one run, without a chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from feinsum.errors import FeinsumError, make_error
from feinsum.records import OK, Environment, Measurement, TransformSpec
from feinsum.records.document import STRICT
from feinsum.select import MIN_SAMPLES
from feinsum.tuning.problem import TuningProblem


@dataclass(frozen=True)
class TrialOutcome:
    """The outcome for one recipe.

    Attributes:
        status: ``ok``, or the code of an error of :mod:`feinsum.errors`
            (``transform-failed``, ``build-failed``, ``wrong-result``,
            ``trial-timeout``, ``trial-crashed``, ``device-lost``, ...).
        message: what went wrong, in words.
        ratio: its time over the reference's, in the same rounds.
        reference: the recipe that it was timed against; None for the untransformed
            kernel. See :mod:`feinsum.tuning.trials`.
    """

    __pydantic_config__ = STRICT

    spec: TransformSpec
    status: str
    message: str = ""
    measurement: Measurement | None = None
    ratio: float | None = None
    reference: TransformSpec | None = None

    @property
    def is_ok(self) -> bool:
        return self.status == OK

    def to_error(self) -> FeinsumError:
        """Return the error described by :attr:`status` and :attr:`message`."""
        spec, message = str(self.spec), self.message
        is_named = message.startswith(spec)
        return make_error(self.status, message if is_named else f"{spec}: {message}")

    @property
    def median_s(self) -> float:
        return self.measurement.median_s if self.measurement else float("inf")


Ask: TypeAlias = Callable[[], tuple[TransformSpec, TransformSpec | None] | None]
"""The next recipe to try and what to time it against, or None if there is none."""


class TrialBench(Protocol):
    """Runs trials of one problem; must be closed, for example by ``with``.

    Attributes:
        problem: the problem to tune.
        is_here: whether this machine runs the trials.
    """

    problem: TuningProblem
    is_here: bool = False

    def start(self) -> Environment:
        """Set up the problem unless already done; returns the environment there."""
        ...

    def outcomes(self, ask: Ask) -> Iterator[TrialOutcome]:
        """Try the requested recipes until none is left; yields outcomes as they come.

        As many recipes as can be tried at once are requested before an outcome is
        known. Closing the iteration early ends the trials under way.
        """
        ...

    def compare(self, specs: Sequence[TransformSpec]) -> tuple[TrialOutcome, ...]:
        """Time several recipes that passed their trial in one run on one machine."""
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class TrialRequest:
    """Start with a problem; then try recipes one by one, or compare them in one run.

    Attributes:
        is_shared: set with the problem: others may use the device, so take turns.
        reference: a recipe that passed its trial, to time the others against.
    """

    __pydantic_config__ = STRICT

    problem: TuningProblem | None = None
    specs: tuple[TransformSpec, ...] = ()
    is_comparison: bool = False
    reference: TransformSpec | None = None
    is_shared: bool = False


@dataclass(frozen=True)
class TrialAnswer:
    """One outcome per recipe; the environment once the problem is set up.

    Attributes:
        is_waiting: no outcome yet, since the device is not free; a second such answer
            ends the wait.
    """

    __pydantic_config__ = STRICT

    outcomes: tuple[TrialOutcome, ...] = ()
    environment: Environment | None = None
    error_code: str | None = None
    error: str = ""
    is_waiting: bool = False


@dataclass(frozen=True)
class Task:
    """A request to a worker of a cluster, which may not know the problem yet.

    Without recipes it only requests the environment.
    """

    __pydantic_config__ = STRICT

    problem: TuningProblem
    time_limit_s: float
    request: TrialRequest = TrialRequest()


N_RECORDED = 3
"""Number of finalists to record."""


def choose_round_interval(seconds: float, rounds: int, max_total_s: float) -> int:
    """Choose how often to run a slow kernel: in every round that this divides.

    As often as fits into ``max_total_s``, but at least three times.

    >>> [choose_round_interval(s, rounds=20, max_total_s=3.0) for s in (0.01, 0.3,
    ...     60.0)]
    [1, 2, 7]
    """
    # At least three, or its median would be that of one disturbed run.
    n_runs = min(max(int(max_total_s / seconds), MIN_SAMPLES), rounds)
    return ceil(rounds / n_runs)
