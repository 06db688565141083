"""An einsum of two operands as matrix products: the roles of its indices.

Source: Springer and Bientinesi 2018, section 2 (transpose, transpose, multiply,
transpose; loops over matrix products).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import loopy as lp
from loopy.symbolic import SubstitutionRuleExpander
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, IndexList, Operand, SizeParam
from feinsum.raising import LoopNest
from feinsum.transforms.host.array_function import ArrayFunction, read_function
from feinsum.transforms.host.matrix_product import SUM, MatrixProduct
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import has_blas_dtype, number, text, volume

__all__ = ["WHOLE", "Roles", "check_extents", "find_roles", "products_of"]

WHOLE = ""
"""The index of blocks where there is only one."""


@dataclass(frozen=True)
class Roles:
    """The roles of the indices in a product of two operands.

    Attributes:
        right: the position of the operand that has the last free output index.
        batch: output indices of both operands; without a sum, all of them.
        rows: those of the left operand alone; none where it is a vector.
        columns: those of the right operand alone; none where it is a vector.
        summed: indices of both that are not in the output, in the order of the
            larger operand; none where entries are only multiplied.
    """

    right: int
    batch: IndexList
    rows: IndexList
    columns: IndexList
    summed: IndexList

    @property
    def are_matrices(self) -> bool:
        """Whether neither operand is a vector, or a stack of vectors."""
        return bool(self.rows and self.columns)


def find_roles(einsum: BatchedEinsum) -> Roles | None:
    """The roles of the indices; None if numpy has no single product for the einsum.

    >>> from feinsum.ir import array, einsum
    >>> find_roles(einsum("ik,kj->ij", array("A", (4, 5)), array("B", (5, 6))))
    Roles(right=1, batch=(), rows=('i',), columns=('j',), summed=('k',))
    >>> find_roles(einsum("i,j->ij", array("x", 4), array("y", 6)))
    Roles(right=1, batch=('i', 'j'), rows=(), columns=(), summed=())
    """
    if einsum.n_operands != 2 or not has_blas_dtype(einsum):
        return None
    if any(len(set(term)) != len(term) for term in einsum.inputs):
        return None
    first, second = map(set, einsum.inputs)
    free = [i for i in einsum.output if (i in first) != (i in second)]
    larger = max(einsum.inputs, key=lambda term: volume(einsum, term))
    # if one operand has to be transposed, it is the smaller one
    summed = tuple(i for i in larger if i not in einsum.output)
    if (first ^ second) - {*free}:
        return None
    # the columns end with the last axis of the result, so BLAS can write rows in place
    right = int(not free or free[-1] in second)
    if not summed:  # entries are multiplied where those of the result lie
        return Roles(right, einsum.output, (), (), ())
    columns = tuple(i for i in free if i in einsum.inputs[right])
    rows = tuple(i for i in free if i in einsum.inputs[1 - right])
    batch = tuple(i for i in einsum.output if i not in free)
    return Roles(right, batch, rows, columns, summed)


def check_extents(kernel: lp.LoopKernel, nest: LoopNest) -> None:
    """Refuse a nest with an extent that the caller does not provide.

    Raises:
        TransformError: naming it.
    """
    for index in nest.einsum.indices:
        extent = nest.extent(index)
        if isinstance(extent, SizeParam) and extent.name not in kernel.arg_dict:
            raise TransformError(f"the extent {extent.name} is not an argument")


def products_of(
    kernel: lp.LoopKernel, nest: LoopNest, parameters: Parameters
) -> tuple[MatrixProduct, ...]:
    """The rows of a nest as matrix products.

    Args:
        parameters: of ``library_contraction``.

    Raises:
        TransformError: if numpy cannot evaluate a function of the nest.
    """
    roles = find_roles(nest.einsum)
    assert roles is not None
    make = _Maker(kernel, nest, roles, parameters)
    return tuple(map(make.product, range(nest.einsum.batch_size)))


@dataclass(frozen=True)
class _Maker:
    """Reads the functions of a nest."""

    kernel: lp.LoopKernel
    nest: LoopNest
    roles: Roles
    parameters: Parameters

    def product(self, k: int) -> MatrixProduct:
        """Row ``k`` as matrix products."""
        einsum, roles = self.nest.einsum, self.roles
        row, right = einsum.rows[k], roles.right
        index = text(self.parameters, "index")
        stack = tuple(text(self.parameters, "stacked").split())
        return MatrixProduct(
            left=self._operand(row[1 - right], einsum.inputs[1 - right]),
            right=self._operand(row[right], einsum.inputs[right]),
            result=self._result(k),
            finish=self._finish(k),
            stack=(*roles.batch, *stack),
            rows=tuple(i for i in roles.rows if i not in stack),
            columns=tuple(i for i in roles.columns if i not in stack),
            summed=roles.summed,
            left_term=einsum.inputs[1 - right],
            right_term=einsum.inputs[right],
            index=None if index == WHOLE else index,
            block=number(self.parameters, "block"),
            dtype=row[0].dtype,
        )

    def _operand(self, operand: Operand, term: IndexList) -> ArrayFunction:
        rule = self.kernel.substitutions[self.nest.rules[operand.name]]
        places = dict(zip(rule.arguments, term, strict=True))
        return self._read(rule.expression, places)

    def _result(self, k: int) -> ArrayFunction:
        assignee = self.nest.assignees[k]
        if isinstance(assignee, p.Variable):  # an array of rank 0
            assignee = p.Subscript(assignee, ())
        if not isinstance(assignee, p.Subscript):
            raise TransformError(f"the result {assignee} is not an array")
        return self._read(assignee, self._output_inames())

    def _finish(self, k: int) -> ArrayFunction:
        """``shift + scale*sum``, without what is trivial."""
        scale, shift = self.nest.scales[k], self.nest.shifts[k]
        value = var(SUM)
        if not _is_number(scale, 1):
            value = p.Product(
                (self._read(scale, self._output_inames()).expression, value)
            )
        if not _is_number(shift, 0):
            value = p.Sum((self._read(shift, self._output_inames()).expression, value))
        return ArrayFunction(value, self._output_inames())

    def _output_inames(self) -> dict[str, str]:
        return {self.nest.inames[index]: index for index in self.nest.einsum.output}

    def _read(self, expression: object, indices: Mapping[str, str]) -> ArrayFunction:
        expand = SubstitutionRuleExpander(self.kernel.substitutions)
        extents = {i: self.nest.extent(i) for i in self.nest.einsum.indices}
        return read_function(self.kernel, expand(expression), indices, extents)


def _is_number(value: object, number: int) -> bool:
    return isinstance(value, int) and value == number
