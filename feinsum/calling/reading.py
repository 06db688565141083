"""From the arguments of a call to an einsum over the arrays that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.calling.terms import Shape, read_terms
from feinsum.errors import InvalidEinsumError
from feinsum.ir import (
    BatchedEinsum,
    Extent,
    IndexList,
    Operand,
    SizeParam,
    generalize,
    with_extents,
)

__all__ = ["Feed", "Reading", "read_call"]

DType = np.dtype[Any]

_TRUTH = np.dtype(bool)
_COUNT = np.dtype(np.int64)
_SUPPORTED = frozenset(
    map(np.dtype, (*np.typecodes["AllInteger"], "f4", "f8", "c8", "c16"))
)
_MAX_ENTRIES = 2**31
"""Entries of an array are counted by 32-bit integers in a kernel."""


@dataclass(frozen=True)
class Feed:
    """Which argument of the call a kernel's array is, and in which shape."""

    name: str
    position: int
    shape: Shape


@dataclass(frozen=True)
class Reading:
    """A call as an einsum.

    Attributes:
        einsum: in names of its own, so that two notations of one einsum are
            equal; long extents are size parameters.
        sizes: the values of the size parameters.
        feeds: what is passed for each operand of :attr:`einsum`.
        shape, dtype: of the result.
    """

    einsum: BatchedEinsum
    sizes: constantdict[str, int]
    feeds: tuple[Feed, ...]
    shape: Shape
    dtype: DType

    @property
    def work_dtype(self) -> DType:
        """That of all operands: truth values are counted, so that none is lost."""
        return _COUNT if self.dtype == _TRUTH else self.dtype

    @property
    def is_empty(self) -> bool:
        """No product is formed: the result has no entries, or only zeros."""
        return 0 in self.einsum.extents.values()


def read_call(subscripts: str, *operands: Any) -> Reading:
    """The einsum that a call evaluates.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: arrays, or what numpy takes for arrays; one object given twice
            is one operand.

    Raises:
        InvalidEinsumError: as :func:`feinsum.call_einsum` does.

    >>> u = np.ones((1000, 3))
    >>> reading = read_call("ei,ej->eij", u, u)
    >>> print(reading.einsum)
    i0 i1, i0 i2 -> i0 i1 i2 of (a0 a0) with a0[n0,3]:<f8
    >>> dict(reading.sizes), reading.shape
    ({'n0': 1000}, (1000, 3, 3))
    """
    arrays = [x if hasattr(x, "dtype") else np.asarray(x) for x in operands]
    return read_shapes(
        subscripts,
        tuple((tuple(array.shape), np.dtype(array.dtype)) for array in arrays),
        first_uses(operands),
    )


def first_uses(operands: Sequence[object]) -> tuple[int, ...]:
    """For each operand the first position at which the same object stands.

    >>> x, y = object(), object()
    >>> first_uses([x, y, x])
    (0, 1, 0)
    """
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(x), k) for k, x in enumerate(operands))


def read_shapes(
    subscripts: str, given: Sequence[tuple[Shape, DType]], first: Sequence[int]
) -> Reading:
    """The same for shapes and dtypes, and the first use of each operand."""
    dtype = _result_dtype([dtype for _, dtype in given])
    terms = read_terms(subscripts, [shape for shape, _ in given])
    indices = dict.fromkeys((*terms.output, *(i for t in terms.inputs for i in t)))
    plain = {index: f"i{k}" for k, index in enumerate(indices)}
    work = _COUNT if dtype == _TRUTH else dtype
    feeds: dict[tuple[int, Shape], Feed] = {}
    row = []
    for position, term in zip(first, terms.inputs, strict=True):
        shape = tuple(terms.extents[i] for i in term)
        feed = Feed(f"a{len(feeds)}", position, shape)
        feed = feeds.setdefault((position, shape), feed)
        row.append(Operand(feed.name, shape, work))
    einsum = BatchedEinsum(
        _renamed(terms.output, plain),
        tuple(_renamed(term, plain) for term in terms.inputs),
        (tuple(row),),
    )
    shape = tuple(terms.extents[i] for i in terms.output)
    _check_sizes((*(feed.shape for feed in feeds.values()), shape))
    general, sizes = _generalized(einsum)
    return Reading(general, sizes, tuple(feeds.values()), shape, dtype)


def _renamed(term: IndexList, names: dict[str, str]) -> IndexList:
    return tuple(names[index] for index in term)


def _result_dtype(dtypes: Sequence[DType]) -> DType:
    """Numpy's result type, in the machine's byte order.

    Raises:
        InvalidEinsumError: if it is none that is computed.
    """
    try:
        dtype = np.result_type(*dtypes).newbyteorder("=") if dtypes else _TRUTH
    except TypeError:
        dtype = np.dtype(object)
    if dtype in _SUPPORTED or dtype == _TRUTH:
        return dtype
    names = ", ".join(map(str, dtypes))
    raise InvalidEinsumError(
        f"operands of dtype {names} give {dtype}; computed are integers and truth "
        "values, float32, float64, complex64 and complex128: convert the operands",
        rules=("dtype",),
    )


def _check_sizes(shapes: Sequence[Shape]) -> None:
    for shape in shapes:
        if prod(shape) >= _MAX_ENTRIES:
            raise InvalidEinsumError(
                f"an array of shape {shape} has {prod(shape)} entries; a kernel "
                f"counts to {_MAX_ENTRIES - 1}: split the call",
                rules=("extent",),
            )


def _generalized(einsum: BatchedEinsum) -> tuple[BatchedEinsum, constantdict[str, int]]:
    """Long extents as size parameters, numbered in the order of the indices."""
    general, sizes = generalize(einsum)
    names = {x.name: f"n{k}" for k, x in enumerate(general.size_params)}
    extents: dict[str, Extent] = {
        index: SizeParam(names[x.name]) if isinstance(x, SizeParam) else x
        for index, x in general.extents.items()
    }
    renamed = constantdict({names[name]: value for name, value in sizes.items()})
    return with_extents(general, extents), renamed
