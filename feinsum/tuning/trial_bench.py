"""The protocol of what runs trials, on however many machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from feinsum.records import Environment, TransformSpec
from feinsum.tuning.outcome import TrialOutcome
from feinsum.tuning.problem import Problem

__all__ = ["Ask", "TrialBench"]

Ask: TypeAlias = Callable[[], tuple[TransformSpec, TransformSpec | None] | None]
"""The next recipe to try and what to time it against, or None if there is none."""


class TrialBench(Protocol):
    """Runs trials of one problem; must be closed, for example by ``with``.

    Attributes:
        problem: the problem to tune.
        is_here: whether this machine runs the trials.
    """

    problem: Problem
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
