"""One contraction of two operands of any ranks, by a kernel that is built in advance.

Each index is a batch, row, column or summed index of a matrix product, depending on the
arrays that have it. The kernel takes the offsets of each of these groups in each array.
So it computes any contraction as such a product, without transposing a large array:
``abcd,ec->deab`` has the rows ``abd``, the columns ``e`` and the terms ``c``. See
``pairwise.c``.

Source: Matthews 2018, High-Performance Tensor Contraction without Transposition,
section 4 (block-scatter layout); Van Zee and Smith 2017 (complex numbers by the 1m
method).
"""

from __future__ import annotations

from functools import lru_cache
from struct import pack
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feinsum.threads import get_n_threads

if TYPE_CHECKING:
    from feinsum.subscripts import IndexList

try:
    from feinsum.contraction import _pairwise
except ImportError:  # installed without a C compiler
    _pairwise = None  # type: ignore[assignment]

contract: Any = getattr(_pairwise, "contract", None)
"""The kernel. Its arguments are encoded indices, two operands, the result, the number
of threads and, optionally, scale and shift of the first and of the second operand.
"""
IS_BUILT = _pairwise is not None
"""Whether the kernel was compiled when feinsum was installed."""
VECTOR_BYTES: int = getattr(_pairwise, "VECTOR_BYTES", 0)
"""The length of its vectors on this processor."""

DTYPES = frozenset(map(np.dtype, ("f4", "f8", "c8", "c16")))
"""Dtypes that the kernel multiplies."""

MAX_INDICES = 128
SHORT_BYTES = 1 << 14
"""Bytes of all arrays below which one thread multiplies them."""


class Affine(NamedTuple):
    """The function ``scale*x + shift`` of the entries of an operand."""

    scale: float = 1.0
    shift: float = 0.0


IDENTITY = Affine()


def contract_pair(
    indices: bytes,
    first: Any,
    second: Any,
    out: Any,
    functions: tuple[Affine, Affine] = (IDENTITY, IDENTITY),
) -> None:
    """Write the contraction of two arrays to a third one, which overlaps neither.

    Args:
        indices: the value of :func:`encode_indices`.
        first: first operand: an aligned array of one of :data:`DTYPES`, with any
            strides that are multiples of an entry. Axes of extent 1 are broadcast.
        second: second operand, of the same dtype, likewise.
        out: the result, of the same dtype, likewise.
        functions: of the entries of real operands, which are contracted in their place.
            They are applied where entries are packed, which products of vectors do not
            need: for those, compute the values first.

    Raises:
        TypeError: for other dtypes, for strides that are not multiples, and for
            functions of complex operands.
        ValueError: if the extents of an index differ.

    >>> A, B, C = np.arange(6.0).reshape(2, 3), np.eye(3), np.empty((2, 3))
    >>> if IS_BUILT:
    ...     contract_pair(encode_indices("ij", "jk", "ik"), A, B, C)
    ... else:
    ...     C = A
    >>> C
    array([[0., 1., 2.],
           [3., 4., 5.]])
    """
    n_bytes = first.nbytes + second.nbytes + out.nbytes
    # the kernel uses as many threads as it needs; n_threads() takes 2 µs
    threads = 1 if n_bytes < SHORT_BYTES else get_n_threads()
    if functions == (IDENTITY, IDENTITY):
        contract(indices, first, second, out, threads)
    else:
        contract(indices, first, second, out, threads, (*functions[0], *functions[1]))


@lru_cache(4096)
def encode_indices(first: IndexList, second: IndexList, output: IndexList) -> bytes:
    """Encode the axes of each index in three arrays, as bits of three integers.

    >>> len(encode_indices("ij", "jk", "ik"))
    72
    """
    terms = first, second, output
    indices = dict.fromkeys(index for term in terms for index in term)
    return b"".join(
        pack("=QQQ", *(_encode_axes(index, term) for term in terms))
        for index in indices
    )


def _encode_axes(index: str, term: IndexList) -> int:
    return sum(1 << axis for axis, term_index in enumerate(term) if term_index == index)
