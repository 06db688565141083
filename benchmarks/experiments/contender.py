"""The interface of contenders: feinsum and its rivals."""

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
    """A contender that is bound to its arrays; see
    :class:`feinsum.measure.timing.Timeable`.

    Attributes:
        note: shown in the report, such as the name of a recipe.
    """

    note: str

    @property
    def timer(self) -> Timer: ...
    def run(self, timer: Timer | None = None) -> float: ...
    def read_results(self) -> list[np.ndarray]: ...


class Contender(Protocol):
    """An implementation that evaluates entries.

    Attributes:
        package: the module that it requires.
    """

    name: str
    package: str

    def prepare(self, entry: Entry, values: Values) -> Ready: ...


class NotApplicableError(Exception):
    """The contender skips this entry; the message says why."""


@dataclass
class Called:
    """A function without arguments, timed by the wall clock until its result is
    complete.

    Attributes:
        call: returns the results of all rows.
        finish: waits until they are complete.
    """

    call: Callable[[], Sequence[Any]]
    finish: Callable[[Any], Any] = lambda results: results
    note: str = ""
    timer: Timer = "wall"
    last: Sequence[Any] = ()

    def run(self, timer: Timer | None = None) -> float:
        """Time a call; results of the previous run are freed first."""
        self.last = ()
        start = perf_counter()
        results = self.call()
        self.finish(results)
        elapsed_s = perf_counter() - start
        self.last = results
        return elapsed_s

    def read_results(self) -> list[np.ndarray]:
        return [np.asarray(result) for result in self.last]
