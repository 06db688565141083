"""How much effort goes into a recipe for what nobody tuned."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias, cast, get_args

from feinsum.errors import FeinsumError
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
        FeinsumError: if it is none.

    >>> effort_of("recorded")
    'recorded'
    """
    named: str | None = given
    if named is None:
        named = os.environ.get(EFFORT_VARIABLE, "").strip() or default
    if named not in get_args(Effort):
        source = "effort" if given is not None else EFFORT_VARIABLE
        raise FeinsumError(
            f"{source} is {named!r}; expected one of {', '.join(get_args(Effort))}"
        )
    return cast(Effort, named)
