"""The constructors ``array``, ``sparse_array``, ``einsum`` and ``batched_einsum``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from feinsum.errors import InvalidEinsumError
from feinsum.ir.einsums import BatchedEinsum
from feinsum.ir.operand import Extent, Operand, SizeParam
from feinsum.subscripts import IndexList, list_ellipsis_indices, parse_subscripts

Terms: TypeAlias = tuple[IndexList, ...]

Rows: TypeAlias = tuple[tuple[Operand, ...], ...]


def array(
    name: str,
    shape: int | str | SizeParam | Sequence[int | str | SizeParam] = (),
    dtype: DTypeLike = "float64",
) -> Operand:
    """Return a symbolic operand: a name, a shape and a dtype, without data.

    Args:
        name: an identifier; operands with the same name are one array.
        shape: one extent per axis, a number or the name of a size parameter. A single
            extent makes an array of rank 1; an empty shape is a scalar.
        dtype: anything that :class:`numpy.dtype` accepts, of a numeric kind.

    Raises:
        InvalidEinsumError: for a bad name, extent or dtype.

    >>> print(array("u", ("Nel", 20)))
    u[Nel,20]:<f8
    """
    axes: tuple[int | str | SizeParam, ...]
    # a name is iterable, too, but is one extent
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        axes = (shape,)
    else:
        axes = tuple(shape)
    try:
        numpy_dtype = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise InvalidEinsumError(
            f"array {name!r}: {dtype!r} is not a numpy dtype", rules=("dtype",)
        ) from error
    return Operand(name, tuple(_convert_extent(x) for x in axes), numpy_dtype)


def sparse_array(
    name: str,
    shape: int | str | SizeParam | Sequence[int | str | SizeParam],
    dtype: DTypeLike = "float64",
    *,
    gives_pattern: bool = False,
) -> Operand:
    """Return a symbolic operand stored as a tree, without data.

    Args:
        name: an identifier.
        shape: one extent per level of the tree, from the root. For a
            :class:`feinsum.sparse.CSF` with other ``axes``, permute the axes of the
            operand.
        dtype: anything that :class:`numpy.dtype` accepts, of a numeric kind.
        gives_pattern: whether the result is sparse, too, with the operand's pattern.

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
    """Return one einsum, which is a batch of one row.

    Axes of extent 1 behind an ellipsis are broadcast, as in numpy.

    >>> J, D = array("J", (3, 3, "Nel")), array("D", (3, 20, 20))
    >>> print(einsum("xre,rij,ej->xei", J, D, array("u", ("Nel", 20))).subscripts)
    xre,rij,ej->xei
    """
    return batched_einsum(subscripts, [operands])


def batched_einsum(subscripts: str, rows: Sequence[Sequence[Operand]]) -> BatchedEinsum:
    """Return a batch of einsums of one notation over shared operands.

    Args:
        subscripts: see :func:`feinsum.subscripts.parse_subscripts`.
        rows: b sequences of operands, one operand per term.

    Raises:
        InvalidEinsumError: naming every broken rule.

    >>> A = array("A", (3, 4))
    >>> x, y = array("x", 4), array("y", 4)
    >>> batched_einsum("ij,j->i", [[A, x], [A, y]]).batch_size
    2
    """
    try:
        table = tuple(tuple(row) for row in rows)
    except TypeError:
        raise InvalidEinsumError(
            f"rows {rows!r:.60} are not a sequence of sequences of operands",
            rules=("operand",),
        ) from None
    for operand in (operand for row in table for operand in row):
        if not isinstance(operand, Operand):
            raise InvalidEinsumError(_describe_non_operand(operand), rules=("operand",))
    # checked here, because the next line needs a first row
    if not table:
        raise InvalidEinsumError(
            "ill-formed einsum: [no-rows] the batch has no rows", rules=("no-rows",)
        )
    ranks = [operand.rank for operand in table[0]]
    inputs, output = parse_subscripts(subscripts, ranks)
    # only indices of an ellipsis are broadcast; named ones have one extent everywhere
    axes = frozenset(list_ellipsis_indices(subscripts, ranks))
    if axes and all([op.rank for op in row] == ranks for row in table):
        inputs, table = _broadcast(inputs, table, axes)
    return BatchedEinsum(output, inputs, table)


def _describe_non_operand(value: object) -> str:
    """Return the message for a value that is not an operand, with the call to use."""
    kind = f"of type {type(value).__name__}"
    shape = getattr(value, "shape", None)
    if not isinstance(shape, tuple):
        return f"operand {value!r:.60} is {kind}; expected feinsum.array(name, shape)"
    return (
        f"an operand is an array {kind} and shape {shape}; einsums are symbolic, with "
        "operands made by feinsum.array(name, shape, dtype). To compute with arrays, "
        "call feinsum.call_einsum"
    )


def _broadcast(inputs: Terms, table: Rows, axes: frozenset[str]) -> tuple[Terms, Rows]:
    """Drop axes of extent 1 whose index in ``axes`` is longer elsewhere, as in numpy.

    An operand keeps its name: without the dropped axes, it is the same array.
    """
    # in any row: an index that is long in one row is an axis of all results
    long = {
        index
        for row in table
        for term, operand in zip(inputs, row, strict=True)
        for index, extent in zip(term, operand.shape, strict=True)
        if index in axes and extent != 1
    }
    kept_axes = [
        [k for k, i in enumerate(term) if i not in long or operand.shape[k] != 1]
        for term, operand in zip(inputs, table[0], strict=True)
    ]
    rows = tuple(
        tuple(
            replace(operand, shape=tuple(operand.shape[k] for k in axis_numbers))
            for operand, axis_numbers in zip(row, kept_axes, strict=True)
        )
        for row in table
    )
    terms = zip(inputs, kept_axes, strict=True)
    return tuple(
        tuple(term[k] for k in axis_numbers) for term, axis_numbers in terms
    ), rows


def _convert_extent(value: int | str | SizeParam) -> Extent:
    if isinstance(value, str):
        return SizeParam(value)
    return value if isinstance(value, SizeParam) else _convert_integer(value)


def _convert_integer(value: object) -> Any:
    """Convert integers of numpy to int; the rules refuse anything else."""
    return int(value) if isinstance(value, np.integer) else value
