"""The messages between a tuner and its workers, one JSON text each."""

from __future__ import annotations

from dataclasses import dataclass

from feinsum.records import Environment, TransformSpec
from feinsum.records.document import STRICT
from feinsum.tuning.outcome import TrialOutcome
from feinsum.tuning.problem import Problem

__all__ = ["Answer", "Request", "Task"]


@dataclass(frozen=True)
class Request:
    """Start with a problem; then try recipes one by one, or compare them in one run.

    Attributes:
        is_shared: said with the problem: others may use the device, so take turns.
        reference: a recipe that passed its trial, to time the others against.
    """

    __pydantic_config__ = STRICT

    problem: Problem | None = None
    specs: tuple[TransformSpec, ...] = ()
    is_comparison: bool = False
    reference: TransformSpec | None = None
    is_shared: bool = False


@dataclass(frozen=True)
class Answer:
    """One outcome per recipe; the environment once the problem is set up.

    Attributes:
        is_waiting: no answer yet, for the device is not free; a second such answer
            says that the wait is over.
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

    Without recipes it only asks for the environment.
    """

    __pydantic_config__ = STRICT

    problem: Problem
    time_limit_s: float
    request: Request = Request()
