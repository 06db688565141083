"""Statements: the extended einsums of a program.

Source: EinDecomp, section 3 (einsums with any scalar function and any aggregation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from feinsum.ir.expressions import find_factor, list_names, write_product
from feinsum.ir.numpy_calls import NUMPY
from feinsum.subscripts import IndexList


@dataclass(frozen=True)
class Statement:
    """``result[output] = reduction over the other indices of body(operands[inputs])``.

    Attributes:
        result: name of the result.
        output: one index per axis of the result.
        inputs: for each operand, one index per axis.
        operands: names of inputs of the program, or of results of other statements.
        body: see :mod:`feinsum.ir.expressions`; empty for the product of all operands.
        reduction: see :mod:`feinsum.ir.reductions`; ``sum`` if no index is
            reduced; ``numpy`` if the body is a call that numpy computes, see
            :mod:`feinsum.ir.numpy_calls`.

    >>> print(Statement("S", ("h", "s"), (("h", "s", "t"),), ("E",)))
    S[h,s] = sum x0 : E[h,s,t]
    """

    result: str
    output: IndexList
    inputs: tuple[IndexList, ...]
    operands: tuple[str, ...]
    body: str = ""
    reduction: str = "sum"

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", tuple(self.output))
        object.__setattr__(self, "inputs", tuple(map(tuple, self.inputs)))
        object.__setattr__(self, "operands", tuple(self.operands))
        object.__setattr__(self, "body", self.body or write_product(len(self.operands)))
        # without reduced indices the reduction has no meaning: make statements equal
        if not self.reduced_indices and not self.is_numpy:
            object.__setattr__(self, "reduction", "sum")

    @cached_property
    def indices(self) -> IndexList:
        """Every index once: those of the result, then the others."""
        used = (index for term in self.inputs for index in term)
        return tuple(dict.fromkeys([*self.output, *used]))

    @property
    def accesses(self) -> tuple[tuple[str, IndexList], ...]:
        """Each operand with its indices."""
        return tuple(zip(self.operands, self.inputs, strict=True))

    @property
    def reduced_indices(self) -> IndexList:
        return self.indices[len(dict.fromkeys(self.output)) :]

    @property
    def is_numpy(self) -> bool:
        """Whether numpy computes the statement as a whole."""
        return self.reduction == NUMPY

    @cached_property
    def factor(self) -> float | None:
        """The factor by which the product of all operands is multiplied.

        None if the body is not such a product.
        """
        # the body of such a statement is a call, not an expression
        if self.is_numpy:
            return None
        return find_factor(self.body, len(self.operands))

    @property
    def is_product(self) -> bool:
        """Whether the body is the product of all operands, in any order."""
        return self.factor is not None

    @property
    def is_einsum(self) -> bool:
        """Whether the statement is an einsum times a number: a sum of products."""
        return self.is_product and (self.reduction == "sum" or not self.reduced_indices)

    @property
    def is_contraction(self) -> bool:
        """Whether the statement sums products, so that it gets its own kernel."""
        # one operand needs no kernel: numpy's sum is bound by memory
        return self.is_einsum and len(self.operands) > 1 and bool(self.reduced_indices)

    @cached_property
    def counted_indices(self) -> frozenset[str]:
        """The indices that the body uses as numbers."""
        return frozenset(list_names(self.body)) & {*self.indices}

    def shape_of(
        self, operands: Sequence[Any], indices: IndexList | None = None
    ) -> tuple[int, ...]:
        """Return the extents of some indices, by default the shape of the result."""
        extents: dict[str, int] = {}
        for term, array in zip(self.inputs, operands, strict=True):
            extents.update(zip(term, array.shape, strict=True))
        return tuple(extents[i] for i in (self.output if indices is None else indices))

    def __str__(self) -> str:
        operands = ", ".join(
            f"{name}[{','.join(term)}]"
            for name, term in zip(self.operands, self.inputs, strict=False)
        )
        is_map = not (self.reduced_indices or self.is_numpy)
        reduction = "map" if is_map else self.reduction
        if reduction != "map" and not reduction.isidentifier():
            reduction = f"({reduction})"
        head = f"{self.result}[{','.join(self.output)}] = {reduction} {self.body}"
        return f"{head} : {operands}".rstrip()
