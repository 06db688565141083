"""Batched einsums as plain data.

Source: paper, sections 2 (einsum) and 4 (batched einsum).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import import_module
from itertools import chain
from typing import Any, TypeVar, cast

import numpy as np
from constantdict import constantdict

from feinsum.errors import InvalidEinsumError
from feinsum.ir.check import raise_if_ill_formed
from feinsum.ir.operand import Extent, Operand, SizeParam, shape_at
from feinsum.reprs import brief, html_table
from feinsum.subscripts import IndexList, write_subscripts

__all__ = ["BatchedEinsum", "require_dense", "require_einsum"]

T = TypeVar("T")


@dataclass(frozen=True)
class BatchedEinsum:
    """b einsums with one index notation over shared operands.

    Row ``k`` computes ``sum(product of rows[k][p][inputs[p]] over p)`` for all
    values of the ``output`` indices, summed over all other indices.

    Args:
        output: index names of every result, one per axis.
        inputs: for each of the n operand positions its index names.
        rows: b tuples of n operands; rows may share operands.

    Raises:
        InvalidEinsumError: naming every broken rule of :mod:`feinsum.ir.check`.

    Source: paper, section 4, definition of a batched einsum.

    >>> f8 = np.dtype("float64")
    >>> A, x, y = (Operand(n, s, f8) for n, s in
    ...            [("A", (3, 4)), ("x", (4,)), ("y", (4,))])
    >>> e = BatchedEinsum(("i",), (("i", "j"), ("j",)), ((A, x), (A, y)))
    >>> e.subscripts, e.batch_size, e.summation_indices
    ('ij,j->i', 2, ('j',))
    """

    output: IndexList
    inputs: tuple[IndexList, ...]
    rows: tuple[tuple[Operand, ...], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", tuple(self.output))
        object.__setattr__(self, "inputs", tuple(map(tuple, self.inputs)))
        object.__setattr__(self, "rows", tuple(map(tuple, self.rows)))
        raise_if_ill_formed(self)

    def __hash__(self) -> int:
        """Hash of the first row only: einsums that share it seldom differ in others."""
        return hash((self.output, self.inputs, self.rows[0], len(self.rows)))

    @property
    def batch_size(self) -> int:
        return len(self.rows)

    @property
    def n_operands(self) -> int:
        """Number of operand positions (not of distinct arrays)."""
        return len(self.inputs)

    @cached_property
    def indices(self) -> IndexList:
        """Every index once: the free ones in output order, then the others."""
        return _unique(chain(self.output, *self.inputs))

    @property
    def free_indices(self) -> IndexList:
        return self.output

    @property
    def summation_indices(self) -> IndexList:
        return self.indices[len(self.output) :]

    @cached_property
    def extents(self) -> constantdict[str, Extent]:
        """The extent of every index, in the order of :attr:`indices`."""
        found: dict[str, Extent] = {}
        for term, operand in zip(self.inputs, self.rows[0], strict=True):
            found.update(zip(term, operand.shape, strict=True))
        return constantdict({index: found[index] for index in self.indices})

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The distinct operands, in order of first use."""
        return _unique(chain.from_iterable(self.rows))

    @property
    def sparse_position(self) -> int | None:
        """Position of the operand stored as a tree; None if all are dense."""
        stored = (p for p, operand in enumerate(self.rows[0]) if operand.storage)
        return next(stored, None)

    @cached_property
    def size_params(self) -> tuple[SizeParam, ...]:
        """The distinct size parameters, in the order of :attr:`indices`."""
        return _unique(x for x in self.extents.values() if isinstance(x, SizeParam))

    def extents_at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The extent of every index, with these values of size parameters."""
        return dict(
            zip(self.extents, shape_at(self.extents.values(), sizes), strict=True)
        )

    @property
    def output_shape(self) -> tuple[Extent, ...]:
        return tuple(self.extents[index] for index in self.output)

    @cached_property
    def output_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """One dtype per row: numpy's result type of the row's operands."""
        return tuple(np.result_type(*(op.dtype for op in row)) for row in self.rows)

    @property
    def subscripts(self) -> str:
        """The notation as text; see :func:`write_subscripts`."""
        return write_subscripts(self.inputs, self.output)

    def operand_indices(self, name: str) -> tuple[IndexList, ...]:
        """The distinct index lists with which the named operand is accessed."""
        return _unique(
            term
            for row in self.rows
            for term, operand in zip(self.inputs, row, strict=True)
            if operand.name == name
        )

    def __str__(self) -> str:
        rows = "; ".join(" ".join(op.name for op in row) for row in self.rows)
        operands = ", ".join(str(operand) for operand in self.operands)
        return f"{self.subscripts} of ({rows}) with {operands}"

    def __repr__(self) -> str:
        return brief(self, str(self))

    def _repr_html_(self) -> str:
        operands = ((op.name, op.shape_text, op.dtype) for op in self.operands)
        table = html_table(["operand", "shape", "dtype"], operands)
        return f"<code>{escape(self.subscripts)}</code>{table}{self._repr_svg_() or ''}"

    def _repr_svg_(self) -> str | None:
        """The induced graph, where matplotlib is installed."""
        # only notebooks ask, and pictures are made in a room above this one
        return cast("str | None", import_module("feinsum.drawing").svg_of(self))


def _unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def require_dense(einsum: BatchedEinsum) -> BatchedEinsum:
    """``einsum``, if no operand of it is sparse.

    Raises:
        InvalidEinsumError: with the rule ``storage``, naming the operand that is.
    """
    sparse = [operand.name for operand in einsum.operands if operand.storage]
    if not sparse:
        return einsum
    raise InvalidEinsumError(
        f"operand {sparse[0]!r} of {einsum.subscripts} is sparse, but dense operands "
        "are required here; use feinsum.call_einsum to compute with sparse operands, "
        "or feinsum.nests to find loop nests for them",
        rules=("storage",),
    )


def require_einsum(value: object) -> BatchedEinsum:
    """``value``, if it is an einsum.

    Raises:
        InvalidEinsumError: saying what it is, and how an einsum is made.
    """
    if isinstance(value, BatchedEinsum):
        return value
    raise InvalidEinsumError(
        f"expected an einsum made by feinsum.einsum or feinsum.batched_einsum, got "
        f"{value!r:.60} of type {type(value).__name__}; make one, as in "
        "feinsum.einsum('ij,j->i', feinsum.array('A', (3, 4)), feinsum.array('x', 4))",
        rules=("type",),
    )
