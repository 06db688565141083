"""Dtypes and sizes that kernels have."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from feinsum.calling.reading.terms import Shape
from feinsum.errors import InvalidEinsumError, InvalidTypeError

DType = np.dtype[Any]

_TRUTH = np.dtype(bool)
_COUNT = np.dtype(np.int64)
_HALF = np.dtype(np.float16)
_SUPPORTED = frozenset(
    map(np.dtype, (*np.typecodes["AllInteger"], "f2", "f4", "f8", "c8", "c16"))
)
MAX_ENTRIES = 2**31 - 2**20
"""Entries are counted by 32-bit integers in a kernel, and the last tile of a loop goes
beyond the end of an array: rounded up to whole tiles, a count has to fit as well.
"""


def first_uses(operands: Sequence[object]) -> tuple[int, ...]:
    """For each operand, the first position with the same object.

    >>> x, y = object(), object()
    >>> first_uses([x, y, x])
    (0, 1, 0)
    """
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), k) for k, x in enumerate(operands))


def fits_kernels(dtypes: Sequence[DType], shapes: Sequence[Shape]) -> bool:
    """Whether kernels have the dtypes, and can count the entries of all arrays."""
    known = _SUPPORTED | {_TRUTH}
    is_known = all(dtype.newbyteorder("=") in known for dtype in dtypes)
    return is_known and all(prod(shape) < MAX_ENTRIES for shape in shapes)


def work_dtype(dtype: DType) -> DType:
    """Truth values are counted, so that none is lost; half precision is added up in
    single precision, as numpy does.
    """
    if dtype == _TRUTH:
        return _COUNT
    return np.dtype(np.float32) if dtype == _HALF else dtype


def result_dtype(dtypes: Sequence[DType]) -> DType:
    """Numpy's result type, in the machine's byte order.

    Raises:
        InvalidTypeError: if it is not supported.
    """
    try:
        dtype = np.result_type(*dtypes).newbyteorder("=") if dtypes else _TRUTH
    except TypeError:
        dtype = np.dtype(object)
    if dtype in _SUPPORTED or dtype == _TRUTH:
        return dtype
    names = ", ".join(map(str, dtypes))
    raise InvalidTypeError(
        f"operands of dtype {names} give {dtype}; supported are integers, booleans, "
        "float16, float32, float64, complex64 and complex128: convert the operands",
        rules=("dtype",),
    )


def check_sizes(shapes: Sequence[Shape]) -> None:
    """Refuse arrays whose entries a kernel cannot count.

    Raises:
        InvalidEinsumError: with the rule ``extent``.
    """
    for shape in shapes:
        if prod(shape) >= MAX_ENTRIES:
            raise InvalidEinsumError(
                f"an array of shape {shape} has {prod(shape)} entries; a kernel can "
                f"address at most {MAX_ENTRIES - 1}: split the call",
                rules=("extent",),
            )
