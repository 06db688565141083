"""Functional batched einsums: operands that are functions of the indices.

Source: paper, section 7 (functional and idealized functional batched einsum).
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.errors import InvalidEinsumError
from feinsum.ir.einsums import BatchedEinsum
from feinsum.ir.evaluation import evaluate
from feinsum.ir.expression_values import evaluate_body
from feinsum.ir.expressions import list_names, parse_expression, split_linear
from feinsum.ir.operand import bind_shape
from feinsum.subscripts import IndexList
from feinsum.words import format_brief, format_count

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class OperandFunction:
    """A function of indices, as an expression over arrays and scalars.

    Args:
        parameters: one name per axis of the operand.
        body: an arithmetic expression: ``+ - * / // % **``, comparisons,
            ``x if c else y``, subscripts of arrays, and numpy's functions of
            one or two numbers by name.

    >>> f = OperandFunction(("e", "j"), "0.5*(um[e, j] + up[e, j])")
    >>> ones = np.ones((2, 3))
    >>> f.tabulate((2, 3), {"um": ones, "up": 3 * ones})[1, 2]
    np.float64(2.0)
    """

    parameters: IndexList
    body: str

    def tabulate(self, shape: tuple[int, ...], arrays: Mapping[str, Any]) -> Array:
        """Return the values of the function at every index tuple of ``shape``.

        Raises:
            InvalidEinsumError: if the body uses anything that is not in the grammar.
        """
        grid = np.indices(shape, sparse=True)
        names = dict(arrays) | dict(zip(self.parameters, grid, strict=True))
        return np.array(np.broadcast_to(evaluate_body(self.body, names), shape))

    def is_plain_read(self) -> bool:
        """Return whether the body is one array subscripted by all parameters."""
        node = parse_expression(self.body)
        # a scalar is read by its name alone
        if isinstance(node, ast.Name):
            return not self.parameters
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
            return False
        subscript = node.slice
        subscripts = subscript.elts if isinstance(subscript, ast.Tuple) else [subscript]
        names = tuple(
            subscript_node.id
            for subscript_node in subscripts
            if isinstance(subscript_node, ast.Name)
        )
        return len(names) == len(subscripts) and names == self.parameters

    def is_affine_read(self) -> bool:
        """Return whether the body is ``scale*x + shift`` of one array and scalars.

        >>> f = OperandFunction(("i", "k"), "alpha*A[i, k] + 1")
        >>> f.is_affine_read(), OperandFunction(("i",), "i*A[i]").is_affine_read()
        (True, False)
        """
        reads = {
            ast.unparse(node)
            for node in ast.walk(parse_expression(self.body))
            if isinstance(node, ast.Subscript)
        }
        if len(reads) != 1:
            return False
        (read,) = reads
        body = ast.unparse(parse_expression(self.body)).replace(read, "x_")
        linear = split_linear(body, "x_", is_distributed=False)
        return linear is not None and not any(
            name in self.parameters for text in linear for name in list_names(text)
        )

    def __str__(self) -> str:
        return f"({', '.join(self.parameters)}) -> {self.body}"


@dataclass(frozen=True)
class FunctionalBatchedEinsum:
    """A batched einsum and a function for each of its operands.

    The workload key is that of :attr:`einsum`: it does not depend on the functions.

    Raises:
        InvalidEinsumError: if an operand has no function or one of another arity.
    """

    einsum: BatchedEinsum
    functions: constantdict[str, OperandFunction]

    def __post_init__(self) -> None:
        for operand in self.einsum.operands:
            function = self.functions.get(operand.name)
            if function is None or len(function.parameters) != operand.rank:
                raise InvalidEinsumError(
                    f"operand {operand} needs a function of "
                    f"{format_count(operand.rank, 'index')}, got {function}",
                    rules=("function",),
                )

    def __repr__(self) -> str:
        functions = ", ".join(f"{name}: {f}" for name, f in self.functions.items())
        return format_brief(self, f"{self.einsum}; {functions}")

    @classmethod
    def idealized(cls, einsum: BatchedEinsum) -> FunctionalBatchedEinsum:
        """Return the case where every function reads its array (paper, section 7)."""
        return cls(
            einsum,
            constantdict(
                {op.name: _make_plain_read(op.name, op.rank) for op in einsum.operands}
            ),
        )

    def evaluate(
        self,
        arrays: Mapping[str, Any],
        sizes: Mapping[str, int],
        *,
        optimize: bool = False,
    ) -> tuple[Array, ...]:
        """Return the results of all rows, by tabulating every function.

        Args:
            arrays: the arrays and scalars that the bodies read, by name.
            sizes: the value of each size parameter.
            optimize: see :func:`feinsum.ir.evaluate`.
        """
        tables = {}
        for operand in self.einsum.operands:
            shape = bind_shape(operand.shape, sizes)
            # the definition: a function is an array of its values
            table = self.functions[operand.name].tabulate(shape, arrays)
            tables[operand.name] = table.astype(operand.dtype)
        return evaluate(self.einsum, tables, optimize=optimize)


def _make_plain_read(name: str, rank: int) -> OperandFunction:
    parameters = tuple(f"{name}_{axis}" for axis in range(rank))
    body = f"{name}[{', '.join(parameters)}]" if rank else name
    return OperandFunction(parameters, body)
