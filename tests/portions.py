"""Long lists of cases: some run every time, the others with ``-m long``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["spread"]


def spread(cases: Iterable[Any], n: int) -> list[Any]:
    """The cases as parameters; about ``n`` of them, evenly spread, run every time.

    >>> [bool(one.marks) for one in spread("abcdef", 2)]
    [False, True, True, False, True, True]
    """
    listed = list(cases)
    stride = -(-len(listed) // n)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if k % stride == 0 else pytest.mark.long,
        )
        for k, case in enumerate(listed)
    ]
