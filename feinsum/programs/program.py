"""Programs of einsums: a graph of statements over arrays.

Source: EinDecomp, section 3 (EinGraph).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.ir import Extent, Operand, SizeParam
from feinsum.programs.check import raise_if_ill_formed
from feinsum.programs.dtypes import body_dtype
from feinsum.programs.numpy_calls import is_view, numpy_dtype, numpy_shape
from feinsum.programs.reductions import is_truth
from feinsum.programs.statement import Statement
from feinsum.words import brief


@dataclass(frozen=True)
class Program:
    """Statements in dataflow order, over input arrays.

    Args:
        inputs: the input arrays.
        statements: each reads inputs and results of earlier statements.
        outputs: names of the results to return.

    Raises:
        ProgramError: naming every broken rule of :mod:`feinsum.programs.check`.

    >>> f8 = np.dtype("float64")
    >>> program = Program(
    ...     (Operand("X", (3, 4), f8),),
    ...     (Statement("M", ("i",), (("i", "j"),), ("X",), reduction="max"),),
    ...     ("M",),
    ... )
    >>> print(program)
    X[3,4]:<f8
    M[i] = max x0 : X[i,j]
    -> M
    """

    inputs: tuple[Operand, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("inputs", "statements", "outputs"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        raise_if_ill_formed(self)

    @cached_property
    def arrays(self) -> Mapping[str, Operand]:
        """Every array by name: inputs, then results."""
        found = {operand.name: operand for operand in self.inputs}
        for statement in self.statements:
            found[statement.result] = _result(statement, found)
        return constantdict(found)

    @cached_property
    def producers(self) -> Mapping[str, Statement]:
        """The statement of each result."""
        return constantdict({one.result: one for one in self.statements})

    @cached_property
    def shared(self) -> frozenset[str]:
        """The arrays that may have their memory in common with others."""
        return frozenset(
            name
            for one in self.statements
            if one.is_numpy and is_view(one.body, len(one.operands))
            for name in (one.result, *one.operands)
        )

    @cached_property
    def size_params(self) -> tuple[SizeParam, ...]:
        extents = (x for operand in self.inputs for x in operand.shape)
        return tuple(dict.fromkeys(x for x in extents if isinstance(x, SizeParam)))

    def extents(self, statement: Statement) -> Mapping[str, Extent]:
        """The extent of every index of a statement."""
        return constantdict(_extents(statement, self.arrays))

    def readers(self, name: str) -> tuple[Statement, ...]:
        """The statements that read an array."""
        return tuple(one for one in self.statements if name in one.operands)

    def __repr__(self) -> str:
        return brief(self, str(self).replace("\n", "; "))

    def __str__(self) -> str:
        lines = [*map(str, self.inputs), *map(str, self.statements)]
        return "\n".join([*lines, f"-> {', '.join(self.outputs)}"])


def _extents(statement: Statement, arrays: Mapping[str, Operand]) -> dict[str, Extent]:
    found: dict[str, Extent] = {}
    if statement.is_numpy:
        shapes = [arrays[name].shape for name in statement.operands]
        shape = numpy_shape(statement.body, shapes)
        found |= dict(zip(statement.output, shape, strict=True))
    for term, name in zip(statement.inputs, statement.operands, strict=True):
        found |= dict(zip(term, arrays[name].shape, strict=True))
    return {index: found[index] for index in statement.indices}


def _result(statement: Statement, arrays: Mapping[str, Operand]) -> Operand:
    extents = _extents(statement, arrays)
    shape = tuple(extents[index] for index in statement.output)
    return Operand(statement.result, shape, _dtype(statement, arrays))


def _dtype(statement: Statement, arrays: Mapping[str, Operand]) -> np.dtype[Any]:
    if is_truth(statement.reduction) and statement.reduced_indices:
        return np.dtype(np.bool_)
    dtypes = [arrays[name].dtype for name in statement.operands]
    if statement.is_numpy:
        return numpy_dtype(statement.body, dtypes)
    return body_dtype(statement.body, dtypes, statement.indices)
