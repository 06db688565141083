"""A progress bar of a tuning, in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from feinsum.drawing.tuning import format_time
from feinsum.records import Trial
from feinsum.tuning.progress import Finalist, TuningProgress, TuningStart


def can_show() -> bool:
    """Return whether there is a terminal or a notebook to show it."""
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
        """Show the start, before the first trial."""
        n_known = len(start.earlier)
        time_left = _describe_time_left(None, is_last=n_known >= start.n_trials)
        self._update_task(completed=n_known, total=start.n_trials, left=time_left)

    def show(self, progress: TuningProgress) -> None:
        """Show the progress after a trial."""
        self._update_task(
            completed=progress.n_done,
            total=progress.n_trials,
            description=_describe_best(progress.best, progress.roofline_s),
            left=_describe_time_left(
                progress.seconds_left, is_last=progress.n_done >= progress.n_trials
            ),
        )

    def final(self, finalists: Sequence[Finalist]) -> None:
        """Show the fastest of the finalists."""
        if finalists:
            best = finalists[0].measurement
            text = (
                f"best {format_time(best.median_s)}, {best.speedup:.3g} times as fast"
            )
            self._update_task(description=text, left="")

    def _update_task(self, **fields: Any) -> None:
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


def _describe_best(best: Trial | None, roofline_s: float | None) -> str:
    """Compare the best so far with the untransformed kernel and the roofline."""
    if best is None or best.median_s is None or best.ratio is None:
        return "no recipe passed yet"
    untransformed = format_time(best.median_s / best.ratio)
    roof = ""
    if roofline_s is not None:
        roof = f", roof {100 * roofline_s / best.median_s:.3g}%"
    return f"best {format_time(best.median_s)}, untransformed {untransformed}{roof}"


def _describe_time_left(seconds: float | None, *, is_last: bool) -> str:
    """Return the time left; after the last trial, what comes then."""
    if is_last:
        return "timing the best again"
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))} left"
