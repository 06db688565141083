"""In which order a product of several dtypes is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["precise_first"]


def precise_first(dtypes: Iterable[np.dtype[Any]]) -> list[int]:
    """Positions in the order in which C multiplies without rounding on the way.

    C multiplies from left to right, each product in the dtype of its two factors:
    with the most precise one first, all are computed in its precision.

    >>> precise_first([np.dtype("f4"), np.dtype("i4"), np.dtype("f8")])
    [2, 0, 1]
    """
    precisions = [np.finfo(d).precision if d.kind in "fc" else 0 for d in dtypes]
    return sorted(range(len(precisions)), key=lambda k: -precisions[k])
