"""What is asked of a contender, ours or a rival."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from benchmarks.experiments.entries import Entry
from benchmarks.experiments.functions import Values
from feinsum.measure import Timer


class Ready(Protocol):
    """A contender that holds its arrays; a :class:`feinsum.measure.timing.Timeable`.

    Attributes:
        note: what is worth saying about it, such as the name of a recipe.
    """

    note: str

    @property
    def timer(self) -> Timer: ...
    def run(self, timer: Timer | None = None) -> float: ...
    def results(self) -> list[np.ndarray]: ...


class Contender(Protocol):
    """A way to evaluate entries.

    Attributes:
        package: the distribution that it needs.
    """

    name: str
    package: str

    def prepare(self, entry: Entry, values: Values) -> Ready: ...


class NotApplicableError(Exception):
    """The contender does not take part in this entry; the message says why."""


@dataclass
class Called:
    """A function of no arguments, timed by the wall clock until its result is there.

    Attributes:
        call: gives the results of all rows.
        finish: waits for them.
    """

    call: Callable[[], Sequence[Any]]
    finish: Callable[[Any], Any] = lambda results: results
    note: str = ""
    timer: Timer = "wall"
    last: Sequence[Any] = ()

    def run(self, timer: Timer | None = None) -> float:
        """As the next run makes its results, those of the run before are dropped."""
        self.last = ()
        start = perf_counter()
        results = self.call()
        self.finish(results)
        elapsed_s = perf_counter() - start
        self.last = results
        return elapsed_s

    def results(self) -> list[np.ndarray]:
        return [np.asarray(result) for result in self.last]
