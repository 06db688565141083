"""The events of a tuning: at its start, after every trial, and at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from constantdict import constantdict

from feinsum.records import Environment, Measurement, TransformSpec, Trial, TuningRecord
from feinsum.tuning.problem import TuningProblem
from feinsum.words import format_brief, format_count

if TYPE_CHECKING:
    from feinsum.drawing.tuning_figure import Figure

Event = TypeVar("Event")


def combine_callbacks(
    first: Callable[[Event], None], then: Callable[[Event], None] | None
) -> Callable[[Event], None]:
    """Combine two callbacks; the second one may be None."""
    if then is None:
        return first

    def call(event: Event) -> None:
        first(event)
        then(event)

    return call


@dataclass(frozen=True)
class TuningStart:
    """The work ahead.

    Attributes:
        n_trials: maximum number of trials, including known ones, and no more than there
            are configurations.
        earlier: trials of an earlier tuning, which are not repeated.
        roofline_s: the minimum time that the limits of the device allow; None if these
            were not measured.
    """

    problem: TuningProblem
    environment: Environment
    n_trials: int
    earlier: tuple[Trial, ...]
    roofline_s: float | None


@dataclass(frozen=True)
class TuningProgress:
    """How far a tuning has come.

    Attributes:
        n_done, n_trials: trials so far, and the maximum; both include known ones.
        trial: the latest one.
        best: the fastest so far.
        roofline_s: see :class:`TuningStart`.
        seconds_left: estimated time of the remaining trials, from the mean of those so
            far, or the rest of the budget.
    """

    n_done: int
    n_trials: int
    trial: Trial
    best: Trial | None
    roofline_s: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True)
class Finalist:
    """One of the best, timed again in one run with the others.

    Attributes:
        ratio: its time relative to the best trial: the median of the ratios within
            rounds. Finalists are ranked by it.
    """

    spec: TransformSpec
    measurement: Measurement
    ratio: float


@dataclass(frozen=True)
class TuningReport:
    """The result of a tuning.

    Attributes:
        trials: all known trials, in order; the first ``n_known`` are from an earlier
            tuning.
        finalists: the fastest first.
        records: the facts recorded, the fastest first.
        roofline_s: see :class:`TuningStart`.
        least_s: for each cache with a measured bandwidth, the minimum time for the
            traffic between it and the nearer levels.
        subscripts: the einsum in the names of its user, if known.
    """

    problem: TuningProblem
    trials: tuple[Trial, ...]
    records: tuple[TuningRecord, ...]
    finalists: tuple[Finalist, ...] = ()
    environment: Environment | None = None
    n_known: int = 0
    roofline_s: float | None = None
    least_s: Mapping[str, float] = constantdict()
    subscripts: str = ""

    @property
    def title(self) -> str:
        """The subscripts of the user, or else the canonical ones."""
        return self.subscripts or self.problem.einsum.subscripts

    def __repr__(self) -> str:
        n_passed = sum(trial.is_ok for trial in self.trials)
        tried = f"{format_count(len(self.trials), 'trial')}, {n_passed} passed"
        best = "no recipe is recorded"
        if self.finalists:
            best = f"{self.finalists[0].spec}, {self.finalists[0].measurement!r}"
        return format_brief(self, f"{self.title}: {tried}; {best}")

    def _repr_html_(self) -> str:
        from feinsum.tuning.report import render_html

        return render_html(self)

    def plot(self) -> Figure:
        """Draw the figure of the report: trace, best recipes, times by parameter.

        Raises:
            FeinsumError: if matplotlib is not installed.
        """
        from feinsum.tuning.report import make_figure

        return make_figure(self)
