"""How much effort goes into a recipe for what nobody tuned."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias, cast, get_args

from feinsum.errors import FeinsumError

__all__ = ["EFFORT_VARIABLE", "Effort", "effort_of"]

EFFORT_VARIABLE = "FEINSUM_EFFORT"
"""Environment variable with the effort, where none is given."""

Effort: TypeAlias = Literal["recorded", "estimate"]
"""``recorded``: only what was measured is used. ``estimate``: where nothing was, the
recipe that is predicted to be the fastest; nothing is measured for it.

Source: Frigo and Johnson 2005 (FFTW), whose planner has these efforts.
"""


def effort_of(given: Effort | None) -> Effort:
    """The effort that is given, or else that of the variable; by default ``estimate``.

    Raises:
        FeinsumError: if it is none.

    >>> effort_of("recorded")
    'recorded'
    """
    named = given or os.environ.get(EFFORT_VARIABLE, "").strip() or "estimate"
    if named not in get_args(Effort):
        source = "effort" if given else EFFORT_VARIABLE
        raise FeinsumError(
            f"{source} is {named!r}; expected one of {', '.join(get_args(Effort))}"
        )
    return cast(Effort, named)
