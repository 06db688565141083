"""How much effort goes into a recipe for what nobody tuned."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast, get_args

from feinsum.options import option_of
from feinsum.variables import EFFORT_VARIABLE

__all__ = ["MEASURING", "Effort", "effort_of"]

Effort: TypeAlias = Literal[
    "recorded", "estimate", "amortized", "measure", "patient", "exhaustive"
]
"""What is done for an einsum of which nothing is recorded.

- ``recorded``: nothing; only what was measured is used.
- ``estimate``: the recipe is used that is predicted to be the fastest.
- ``amortized``: so it is, and calls time the next best ones out of the time that they
  have taken already. Elsewhere the same as ``estimate``.
- ``measure``: the few that are predicted to be the fastest are timed at first use.
- ``patient``: it is tuned at first use.
- ``exhaustive``: every recipe is timed at first use.

Source: Frigo and Johnson 2005 (FFTW), whose planner has most of these efforts.
"""

MEASURING: frozenset[Effort] = frozenset({"measure", "patient", "exhaustive"})
"""Efforts that measure before first use."""


def effort_of(given: Effort | None, default: Effort = "estimate") -> Effort:
    """The effort that is given, or else that of the variable, or else the default.

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
