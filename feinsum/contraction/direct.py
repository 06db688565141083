"""The einsum of the compiled extension; see ``einsum.c``."""

from __future__ import annotations

from typing import Any

import feinsum.threads  # noqa: F401  (the extension uses it: import it before calls)

SPENT_S = 1e6
"""Seconds of calls that exceed the budget of the extension."""


def _leave_to_python(
    subscripts: Any,
    operands: tuple[Any, ...],
    is_chosen: bool = False,
    out: Any = None,
    /,
) -> Any:
    """Return NotImplemented: Python has to compute the einsum."""
    return NotImplemented


try:
    from feinsum.contraction import _pairwise
except ImportError:  # installed without a C compiler
    compute = _leave_to_python
else:
    compute = _pairwise.einsum


def end_budget() -> None:
    """Leave long calls to Python from now on, which has a kernel for some of them.

    Otherwise the extension computes them until all calls together have taken a while.
    """
    if compute is not _leave_to_python:
        _pairwise.set_spent_s(SPENT_S)
