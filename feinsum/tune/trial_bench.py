"""Where trials are made: what a tuning asks of it, however many machines there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from feinsum.records import Environment, TransformSpec
from feinsum.tune.outcome import TrialOutcome
from feinsum.tune.problem import Problem

__all__ = ["Ask", "TrialBench"]

Ask: TypeAlias = Callable[[], tuple[TransformSpec, TransformSpec | None] | None]
"""The next recipe to try and what to time it against, or None if there is none."""


class TrialBench(Protocol):
    """Makes trials of one problem; to be closed, as by ``with``.

    Attributes:
        problem: what is tuned.
        is_here: whether this machine makes the trials.
    """

    problem: Problem
    is_here: bool = False

    def start(self) -> Environment:
        """Set the problem up, if that is still to be done; the environment there."""
        ...

    def outcomes(self, ask: Ask) -> Iterator[TrialOutcome]:
        """Try what is asked for, until there is nothing more; outcomes as they come.

        As many recipes as can be tried at a time are asked for before an outcome is
        known. An end of the iteration before that ends the trials under way.
        """
        ...

    def compare(self, specs: Sequence[TransformSpec]) -> tuple[TrialOutcome, ...]:
        """Time several recipes that passed their trial in one run on one machine."""
        ...

    def close(self) -> None:
        """End all that was started."""
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
