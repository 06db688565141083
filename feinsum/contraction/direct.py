"""The einsum of the compiled extension; see ``einsum.c``."""

from __future__ import annotations

from typing import Any

import feinsum.threads  # noqa: F401  (the extension uses it: import it before calls)


def _leave_to_python(
    subscripts: Any, operands: tuple[Any, ...], is_chosen: bool = False, /
) -> Any:
    """Return NotImplemented: Python has to compute the einsum.

    Args:
        subscripts: as for :func:`feinsum.einsum`.
        operands: as for :func:`feinsum.einsum`.
        is_chosen: whether Python has decided that the extension computes it.
    """
    return NotImplemented


try:
    from feinsum.contraction import _pairwise
except ImportError:  # installed without a C compiler
    compute = _leave_to_python
else:
    compute = _pairwise.einsum
