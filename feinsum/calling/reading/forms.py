"""Operands of a call as arrays, and the properties that a call depends on."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from feinsum.calling.reading.dtypes import DType
from feinsum.calling.reading.libraries import (
    is_jax_array,
    is_tensor,
    jax_numbers,
    tensor_numbers,
)
from feinsum.calling.reading.terms import Shape
from feinsum.device_arrays import is_device_array
from feinsum.errors import InvalidEinsumError
from feinsum.words import type_in_words

ON_HOST = frozenset({1, 3, 13})
"""DLPack's device types of host-readable memory: its own, pinned, or managed."""


class Form(NamedTuple):
    """The properties of an array that a call depends on."""

    shape: Shape
    strides: Shape
    dtype: DType
    is_aligned: bool


def as_array(operand: Any) -> np.ndarray[Any, Any]:
    """An operand as a numpy array, without a copy if possible.

    Raises:
        InvalidEinsumError: if it is sparse or masked; if numpy cannot read it; or if it
            only supports DLPack, and its memory is not on the host.

    >>> as_array([1.0, 2.0])
    array([1., 2.])
    """
    from feinsum.sparse import is_sparse  # arrays of numpy need none of it

    if is_sparse(operand):
        raise InvalidEinsumError(
            f"{type_in_words(operand)} of shape {tuple(operand.shape)} is sparse; a "
            "prepared call takes dense arrays only: use feinsum.call_einsum",
            rules=("operand",),
        )
    if is_tensor(operand):
        return tensor_numbers(operand)
    if is_jax_array(operand):
        return jax_numbers(operand)
    if np.ma.is_masked(operand):
        raise InvalidEinsumError(
            f"{type_in_words(operand)} hides entries, which numpy.einsum would sum; "
            "pass array.filled(0)",
            rules=("operand",),
        )
    has_way = hasattr(operand, "__array__") or hasattr(operand, "__array_interface__")
    if has_way or not hasattr(operand, "__dlpack__"):
        return _read(operand)
    where = operand.__dlpack_device__()[0]
    if where not in ON_HOST:
        raise InvalidEinsumError(
            f"{type_in_words(operand)} is on a device (type {where} of DLPack); copy "
            "it to the host",
            rules=("operand",),
        )
    return np.from_dlpack(operand)


def _read(operand: Any) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(operand)
    except (TypeError, ValueError, RuntimeError) as error:  # as torch and lists say it
        raise InvalidEinsumError(
            f"numpy cannot read an operand of type {type(operand).__name__}: {error}; "
            "pass an array, or a sparse one as feinsum.sparse.COO(shape, indices, "
            "values)",
            rules=("operand",),
        ) from error
    if array.dtype == object and array.ndim == 0 and not isinstance(operand, Number):
        raise InvalidEinsumError(
            f"an operand is of type {type(operand).__name__}, which numpy cannot read; "
            "pass an array",
            rules=("operand",),
        )
    return array


def has_sparse(operands: Sequence[Any]) -> bool:
    """Whether any operand is sparse: neither a numpy nor a device array.

    Several trees of one tensor count as sparse.
    """
    others = [
        operand
        for operand in operands
        if not isinstance(operand, np.ndarray) and not is_device_array(operand)
    ]
    if not others:
        return False
    from feinsum.sparse import CSF, is_sparse

    firsts = (x[0] for x in others if isinstance(x, (list, tuple)) and x)
    return any(map(is_sparse, others)) or any(isinstance(x, CSF) for x in firsts)


def form_of(array: np.ndarray[Any, Any]) -> Form:
    """The form of a host array."""
    return Form(array.shape, array.strides, array.dtype, array.flags.aligned)
