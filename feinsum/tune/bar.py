"""A progress bar of a tuning, in terminals and notebooks."""

from __future__ import annotations

from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from feinsum.drawing.tuning import time_text
from feinsum.records import Trial
from feinsum.tune.progress import TuningProgress, TuningStart

__all__ = ["TuningBar", "can_show"]


def can_show() -> bool:
    """Whether there is a terminal or a notebook to show it."""
    console = Console(stderr=True)
    return console.is_terminal or Console().is_jupyter


class TuningBar(Progress):
    """Shows the finished trials, the best result so far, and the time left.

    It is written to standard error, and in a notebook below the cell.
    """

    def __init__(self, *, is_hidden: bool = False) -> None:
        console = Console()
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=console if console.is_jupyter else Console(stderr=True),
            disable=is_hidden,
        )
        self._tuning = self.add_task("tuning ...", total=None, left="")

    def begin(self, start: TuningStart) -> None:
        """Before the first trial."""
        n_known = len(start.known)
        left = _left(None, is_last=n_known >= start.n_trials)
        self.update(self._tuning, completed=n_known, total=start.n_trials, left=left)

    def show(self, progress: TuningProgress) -> None:
        """After a trial."""
        self.update(
            self._tuning,
            completed=progress.n_done,
            total=progress.n_trials,
            description=_standing(progress.best, progress.roofline_s),
            left=_left(
                progress.seconds_left, is_last=progress.n_done >= progress.n_trials
            ),
        )


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
