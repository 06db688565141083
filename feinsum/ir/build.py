"""The constructors that people call: ``array``, ``einsum``, ``batched_einsum``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from feinsum.errors import InvalidEinsumError
from feinsum.ir.einsum import BatchedEinsum
from feinsum.ir.operand import Extent, Operand, SizeParam
from feinsum.ir.parse import parse_subscripts

__all__ = ["array", "batched_einsum", "einsum", "sparse_array"]


def array(
    name: str,
    shape: int | str | SizeParam | Sequence[int | str | SizeParam] = (),
    dtype: DTypeLike = "float64",
) -> Operand:
    """An operand: a named array of a shape and a dtype; no data.

    Args:
        name: an identifier; operands of one name are one array.
        shape: one extent per axis; text stands for a size parameter. A single
            extent makes an array of rank 1, nothing a scalar.
        dtype: anything that :class:`numpy.dtype` takes, of a numeric kind.

    Raises:
        InvalidEinsumError: for a bad name, extent or dtype.

    >>> print(array("u", ("Nel", 20)))
    u[Nel,20]:<f8
    """
    axes: tuple[int | str | SizeParam, ...]
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        axes = (shape,)
    else:
        axes = tuple(shape)
    try:
        numpy_dtype = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InvalidEinsumError(
            f"array {name!r}: {dtype!r} is no numpy dtype", rules=("dtype",)
        ) from error
    return Operand(name, tuple(_extent(x) for x in axes), numpy_dtype)


def sparse_array(
    name: str,
    shape: int | str | SizeParam | Sequence[int | str | SizeParam],
    dtype: DTypeLike = "float64",
    *,
    gives_pattern: bool = False,
) -> Operand:
    """An operand that is stored as a tree; no data.

    Args:
        name: an identifier.
        shape: one extent per level of the tree, from the root. The tree of a
            :class:`feinsum.sparse.CSF` with other ``axes`` is that of an operand whose
            axes are turned.
        dtype: anything that :class:`numpy.dtype` takes, of a numeric kind.
        gives_pattern: whether the result is sparse, too, and has its pattern.

    Raises:
        InvalidEinsumError: for a bad name, extent or dtype, or with the rule
            ``storage`` if there are no axes.

    >>> T, B = sparse_array("T", ("I", "J", "K")), array("B", ("J", 16))
    >>> print(T)
    T[I,J,K]:csf<f8
    >>> print(einsum("ijk,ja,ka->ia", T, B, array("C", ("K", 16))).subscripts)
    ijk,ja,ka->ia
    """
    stored = "csf=" if gives_pattern else "csf"
    return replace(array(name, shape, dtype), storage=stored)


def einsum(subscripts: str, *operands: Operand) -> BatchedEinsum:
    """One einsum, that is a batch of one row.

    >>> J, D = array("J", (3, 3, "Nel")), array("D", (3, 20, 20))
    >>> print(einsum("xre,rij,ej->xei", J, D, array("u", ("Nel", 20))).subscripts)
    xre,rij,ej->xei
    """
    return batched_einsum(subscripts, [operands])


def batched_einsum(subscripts: str, rows: Sequence[Sequence[Operand]]) -> BatchedEinsum:
    """A batch of einsums of one notation over shared operands.

    Args:
        subscripts: see :func:`feinsum.ir.parse.parse_subscripts`.
        rows: b sequences of operands, one operand per term.

    Raises:
        InvalidEinsumError: naming every rule that is broken.

    >>> A = array("A", (3, 4))
    >>> x, y = array("x", 4), array("y", 4)
    >>> batched_einsum("ij,j->i", [[A, x], [A, y]]).batch_size
    2
    """
    try:
        table = tuple(tuple(row) for row in rows)
    except TypeError:
        raise InvalidEinsumError(
            f"rows {rows!r:.60} are no sequence of sequences of operands",
            rules=("operand",),
        ) from None
    for operand in (operand for row in table for operand in row):
        if not isinstance(operand, Operand):
            raise InvalidEinsumError(
                f"operand {operand!r} is a {type(operand).__name__}; expected "
                "feinsum.array(name, shape, dtype)",
                rules=("operand",),
            )
    if not table:
        raise InvalidEinsumError(
            "ill-formed einsum: [no-rows] the batch has no rows", rules=("no-rows",)
        )
    inputs, output = parse_subscripts(subscripts, [op.rank for op in table[0]])
    return BatchedEinsum(output, inputs, table)


def _extent(value: int | str | SizeParam) -> Extent:
    if isinstance(value, str):
        return SizeParam(value)
    return value if isinstance(value, SizeParam) else _integer(value)


def _integer(value: object) -> Any:
    """A plain int where numpy's integers are given; all else is the checker's."""
    return int(value) if isinstance(value, np.integer) else value
