"""How much effort goes into a recipe for what nobody tuned."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast, get_args

from feinsum.options import option_of
from feinsum.variables import EFFORT_VARIABLE

__all__ = ["MEASURING", "Effort", "effort_of"]

Effort: TypeAlias = Literal[
    "recorded", "estimate", "amortized", "measure", "patient", "exhaustive"
]
"""Effort for an einsum without recorded facts.

- ``recorded``: none; only measured recipes are used.
- ``estimate``: use the recipe that is predicted to be the fastest.
- ``amortized``: the same, but calls wait for no kernel: another process builds it, and
  times the next best recipes, once that pays off. Elsewhere the same as ``estimate``.
- ``measure``: time the few recipes predicted to be the fastest at first use.
- ``patient``: tune at first use.
- ``exhaustive``: time every recipe at first use.

Source: Frigo and Johnson 2005 (FFTW), whose planner has most of these efforts.
"""

MEASURING: frozenset[Effort] = frozenset({"measure", "patient", "exhaustive"})
"""Efforts that measure before first use."""


def effort_of(given: Effort | None, default: Effort = "estimate") -> Effort:
    """The given effort, else the variable's, else the default.

    Raises:
        InvalidOptionError: if it is none.

    >>> effort_of("recorded")
    'recorded'
    """
    choices = get_args(Effort)
    found = option_of(
        "effort", given, choices, variable=EFFORT_VARIABLE, default=default
    )
    return cast(Effort, found)
