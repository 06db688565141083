"""The dtype of a body, as determined by numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf, pi
from typing import Any

import numpy as np

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir import IndexList, body_value
from feinsum.programs.body import operand_name

CONSTANTS: Mapping[str, float] = {"inf": inf, "pi": pi}
"""Names that every body may use."""


def body_dtype(
    body: str, dtypes: Sequence[np.dtype[Any]], indices: IndexList
) -> np.dtype[Any]:
    """The dtype of a body for operands of these dtypes.

    Raises:
        ProgramError: if the body uses anything that is not allowed.

    >>> body_dtype("sqrt(x0) + x1", [np.dtype("float32"), np.dtype("float32")], ())
    dtype('float32')
    """
    return _body_dtype(body, tuple(dtypes), tuple(indices))


@lru_cache(maxsize=256)
def _body_dtype(
    body: str, dtypes: tuple[np.dtype[Any], ...], indices: IndexList
) -> np.dtype[Any]:
    ones = {operand_name(p): np.ones(1, dtype) for p, dtype in enumerate(dtypes)}
    zeros = {index: np.zeros(1, np.int64) for index in indices}
    try:
        value = body_value(body, {**CONSTANTS, **zeros, **ones})
    except InvalidEinsumError as error:
        raise ProgramError(f"body {body!r:.200}: {error}", rules=("body",)) from None
    except (TypeError, ValueError, OverflowError) as error:  # numpy, on bits of floats
        raise ProgramError(
            f"body {body!r:.200} is not defined for {', '.join(map(str, dtypes))}: "
            f"{error}",
            rules=("body",),
        ) from None
    return np.asarray(value).dtype
