"""What a tuner and its worker process say to each other, one JSON text a line."""

from __future__ import annotations

from dataclasses import dataclass

from feinsum.records import Environment, TransformSpec
from feinsum.records.document import STRICT
from feinsum.tune.outcome import TrialOutcome
from feinsum.tune.problem import Problem

__all__ = ["Answer", "Request"]


@dataclass(frozen=True)
class Request:
    """Start with a problem; then try recipes one by one, or compare them in one run.

    Attributes:
        reference: a recipe that passed its trial, to time the others against.
    """

    __pydantic_config__ = STRICT

    problem: Problem | None = None
    specs: tuple[TransformSpec, ...] = ()
    is_comparison: bool = False
    reference: TransformSpec | None = None


@dataclass(frozen=True)
class Answer:
    """One outcome per recipe; the environment once the problem is set up."""

    __pydantic_config__ = STRICT

    outcomes: tuple[TrialOutcome, ...] = ()
    environment: Environment | None = None
    error_code: str | None = None
    error: str = ""
