"""The events of a tuning: at its start, after every trial, and at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from constantdict import constantdict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from feinsum.drawing.tuning import time_text
from feinsum.records import Environment, Measurement, TransformSpec, Trial, TuningRecord
from feinsum.tuning.problem import Problem
from feinsum.words import brief, counted

if TYPE_CHECKING:
    from feinsum.drawing.tuning_figure import Figure

Event = TypeVar("Event")


def both(
    first: Callable[[Event], None], then: Callable[[Event], None] | None
) -> Callable[[Event], None]:
    """A callback that tells an event to two others, or to the one that there is."""
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
        known: trials of an earlier tuning, which are not repeated.
        roofline_s: the minimum time that the limits of the device allow; None if these
            were not measured.
    """

    problem: Problem
    environment: Environment
    n_trials: int
    known: tuple[Trial, ...]
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
    """

    problem: Problem
    trials: tuple[Trial, ...]
    records: tuple[TuningRecord, ...]
    finalists: tuple[Finalist, ...] = ()
    environment: Environment | None = None
    n_known: int = 0
    roofline_s: float | None = None
    least_s: Mapping[str, float] = constantdict()

    def __repr__(self) -> str:
        n_passed = sum(trial.is_ok for trial in self.trials)
        tried = f"{counted(len(self.trials), 'trial')}, {n_passed} passed"
        best = "no recipe is recorded"
        if self.finalists:
            best = f"{self.finalists[0].spec}, {self.finalists[0].measurement!r}"
        return brief(self, f"{self.problem.einsum.subscripts}: {tried}; {best}")

    def _repr_html_(self) -> str:
        from feinsum.tuning.report import html_of

        return html_of(self)

    def plot(self) -> Figure:
        """The figure of the report: trace, best recipes, and times by parameter.

        Raises:
            FeinsumError: if matplotlib is not installed.
        """
        from feinsum.tuning.report import figure_of

        return figure_of(self)


def can_show() -> bool:
    """Whether there is a terminal or a notebook to show it."""
    console = Console(stderr=True)
    return console.is_terminal or Console().is_jupyter


class TuningBar(Progress):
    """Shows the finished trials, the best result so far, and the time left.

    It is written to standard error, and in a notebook below the cell, where the bar of
    rich would need ipywidgets.
    """

    def __init__(self, *, is_hidden: bool = False) -> None:
        console = Console(stderr=True)
        self._is_in_cell = console.is_jupyter and not is_hidden
        self._handle: Any = None
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console,
            disable=is_hidden or self._is_in_cell,
        )
        self._tuning = self.add_task("tuning ...", total=None, left="")

    def begin(self, start: TuningStart) -> None:
        """Before the first trial."""
        n_known = len(start.known)
        left = _left(None, is_last=n_known >= start.n_trials)
        self._tell(completed=n_known, total=start.n_trials, left=left)

    def show(self, progress: TuningProgress) -> None:
        """After a trial."""
        self._tell(
            completed=progress.n_done,
            total=progress.n_trials,
            description=_standing(progress.best, progress.roofline_s),
            left=_left(
                progress.seconds_left, is_last=progress.n_done >= progress.n_trials
            ),
        )

    def final(self, finalists: Sequence[Finalist]) -> None:
        """When the best were timed again, the fastest first."""
        if finalists:
            best = finalists[0].measurement
            text = f"best {time_text(best.median_s)}, {best.speedup:.3g} times as fast"
            self._tell(description=text, left="")

    def _tell(self, **fields: Any) -> None:
        self.update(self._tuning, **fields)
        if self._is_in_cell:
            (task,) = self.tasks
            n_done, n_all = task.completed, task.total or 0
            text = f"{task.description} {n_done:g}/{n_all:g} {task.fields['left']}"
            self._show_in_cell(text, n_done, n_all)

    def _show_in_cell(self, text: str, n_done: float, n_all: float) -> None:
        """Replace the line below the cell, or begin it."""
        from IPython import display

        bar = f'<progress value="{n_done:g}" max="{n_all:g}"></progress>'
        line = {"text/plain": text, "text/html": f"{bar} {escape(text)}"}
        if self._handle is None:
            show: Any = display.display
            self._handle = show(line, raw=True, display_id=True)
        else:
            self._handle.update(line, raw=True)


def _standing(best: Trial | None, roofline_s: float | None) -> str:
    """The best so far, against the untransformed kernel and the roofline."""
    if best is None or best.median_s is None or best.ratio is None:
        return "no recipe passed yet"
    untransformed = time_text(best.median_s / best.ratio)
    roof = ""
    if roofline_s is not None:
        roof = f", roof {100 * roofline_s / best.median_s:.3g}%"
    return f"best {time_text(best.median_s)}, untransformed {untransformed}{roof}"


def _left(seconds: float | None, *, is_last: bool) -> str:
    """The time left; after the last trial, what comes then."""
    if is_last:
        return "timing the best again"
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))} left"
