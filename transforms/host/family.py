"""Contractions of two operands by the BLAS of numpy, on the host.

Source: Springer and Bientinesi 2018, section 2 (transpose, transpose, multiply,
transpose; loops over products of matrices).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import loopy as lp
import numpy as np
from loopy.symbolic import SubstitutionRuleExpander
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, IndexList, Operand, SizeParam
from feinsum.raising import LoopNest
from feinsum.targets.units import LibraryUnit
from feinsum.transforms.cost import Machine, points
from feinsum.transforms.host.array_function import ArrayFunction, read_function
from feinsum.transforms.host.matrix_product import (
    SUM,
    LibraryProgram,
    MatrixProduct,
    merged,
    suits_blas,
)
from feinsum.transforms.registry import Parameters, Space, Transform, register
from feinsum.transforms.roles import (
    has_blas_dtype,
    number,
    reuse,
    text,
    typical,
    volume,
)

__all__ = ["LIBRARY_CONTRACTION"]

WHOLE = ""
"""The index of blocks where there is only one."""
BLOCKS = (16, 4, 64, 1, 256)
BLAS_SHARE = 0.85
"""Of the peak, by products of large matrices."""
SERIAL_OPERATIONS = 1e6
"""Products of less are made by one thread."""
PRODUCT_S = 1e-7
"""To begin a product of a stack."""
MOST_BYTES = np.iinfo(np.intp).max
"""Of an array; numpy makes none that is larger, not even to look at it."""
MIN_REUSE = 4
"""Below it the arrays take longer to read than the products to compute."""


@dataclass(frozen=True)
class _Roles:
    """What the indices of a product of two operands are.

    Attributes:
        right: the position of the operand that has the last free output index.
        batch: output indices of both operands.
        rows: those of the left operand alone.
        columns: those of the right operand alone.
        summed: indices of both that are not in the output, in the order of the
            larger operand.
    """

    right: int
    batch: IndexList
    rows: IndexList
    columns: IndexList
    summed: IndexList


def library_contraction(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Put matrix products of numpy in the place of the kernel.

    Rewrite, for ``acd,dbc->ab`` with ``index="a"``::

        for a, b:  out[a,b] = sum([c, d], A(a,c,d)*B(d,b,c))

        right[c,d,b] = B(...)                          # on the host
        for block of a:
            left[a,c,d] = A(...)
            sums[a,b] = left[a,(c,d)] @ right[(c,d),b]
            out[a,b] = shift + scale*sums[a,b]

    An operand that is an array whose axes merge is not copied, and sums that are the
    result are written to it at once.

    Parameters:
        stacked: output indices, in words, of which each value has a product of its
            own, so that the sums need not be moved.
        index: the index along which blocks are made; empty for one block.
        block: its values per block.
    """
    einsum = nest.einsum
    roles = _roles(einsum)
    assert roles is not None
    kernel = t_unit[nest.kernel_name]
    ids = {insn.id for insn in kernel.instructions}
    if ids != set(nest.instructions) or len(t_unit.entrypoints) != 1:
        raise TransformError(
            "a library computes whole kernels; this one does more than the einsum"
        )
    extents = {index: nest.extent(index) for index in einsum.indices}
    for extent in extents.values():
        if isinstance(extent, SizeParam) and extent.name not in kernel.arg_dict:
            raise TransformError(f"the extent {extent.name} is no argument")
    stack = tuple(text(parameters, "stacked").split())
    make = _Maker(kernel, nest, roles, stack, parameters)
    rows = range(einsum.batch_size)
    return LibraryUnit.of(
        t_unit, LibraryProgram(tuple(map(make.product, rows)), extents)
    )


@dataclass(frozen=True)
class _Maker:
    """Reads the functions of a nest."""

    kernel: lp.LoopKernel
    nest: LoopNest
    roles: _Roles
    stack: IndexList
    parameters: Parameters

    def product(self, k: int) -> MatrixProduct:
        """Row ``k`` as products of matrices."""
        einsum, roles = self.nest.einsum, self.roles
        row, right = einsum.rows[k], roles.right
        index = text(self.parameters, "index")
        return MatrixProduct(
            left=self._operand(row[1 - right], einsum.inputs[1 - right]),
            right=self._operand(row[right], einsum.inputs[right]),
            result=self._result(k),
            finish=self._finish(k),
            stack=(*roles.batch, *self.stack),
            rows=tuple(i for i in roles.rows if i not in self.stack),
            columns=tuple(i for i in roles.columns if i not in self.stack),
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
        if not isinstance(assignee, p.Subscript):
            raise TransformError(f"the result {assignee} is no array")
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


def _roles(einsum: BatchedEinsum) -> _Roles | None:
    """The parts of the indices; None if the einsum is no product of matrices."""
    if einsum.n_operands != 2 or not has_blas_dtype(einsum):
        return None
    if any(len(set(term)) != len(term) for term in einsum.inputs):
        return None
    first, second = map(set, einsum.inputs)
    free = [i for i in einsum.output if (i in first) != (i in second)]
    larger = max(einsum.inputs, key=lambda term: volume(einsum, term))
    summed = tuple(i for i in larger if i not in einsum.output)
    is_product = first - second <= {*free} and second - first <= {*free}
    if not (is_product and summed and free):
        return None
    right = int(free[-1] in second)
    terms = einsum.inputs
    columns = tuple(i for i in free if i in terms[right])
    rows = tuple(i for i in free if i in terms[1 - right])
    batch = tuple(i for i in einsum.output if i not in free)
    return _Roles(right, batch, rows, columns, summed) if rows else None


def _stacks(einsum: BatchedEinsum, roles: _Roles) -> tuple[str, ...]:
    """No stack, and the smallest for which all products lie in the result."""
    rest = list(einsum.output)
    inner: list[str] = []
    for group in (roles.columns, roles.rows):
        n_before = len(inner)
        while rest and rest[-1] in group:
            inner.append(rest.pop())
        if len(inner) == n_before:
            return ("",)
    stack = " ".join(index for index in rest if index not in roles.batch)
    return tuple(dict.fromkeys((stack, "")))


def _space(einsum: BatchedEinsum) -> Space | None:
    """Products of matrices, after axes have changed places."""
    roles = _roles(einsum)
    if roles is None:
        return None
    return {
        "stacked": _stacks(einsum, roles),
        "index": (WHOLE, *einsum.output),
        "block": BLOCKS,
    }


def _constraint(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    index, block = text(parameters, "index"), number(parameters, "block")
    if index == WHOLE:
        return None if block == BLOCKS[0] else "there is only one block"
    if block != BLOCKS[0] and block >= typical(einsum.extents[index]):
        return f"all of {index!r} is in one block"
    return None


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Seconds: copies of what is no matrix in memory, then products, one after another.

    Args:
        einsum: its operands count as arrays; functions are evaluated like copies.
    """
    roles = _roles(einsum)
    assert roles is not None
    stack = (*roles.batch, *text(parameters, "stacked").split())
    sides = [
        tuple(i for i in part if i not in stack)
        for part in (roles.rows, roles.summed, roles.columns)
    ]
    rows, summed, columns = sides
    terms = einsum.inputs[1 - roles.right], einsum.inputs[roles.right]
    wanted = (stack, rows, summed), (stack, summed, columns)
    n_moved = sum(
        points(einsum, term)
        for term, groups in zip(terms, wanted, strict=True)
        if not _is_matrix(einsum, term, groups)
    )
    if not _is_matrix(einsum, einsum.output, (stack, rows, columns)):
        n_moved += points(einsum, einsum.output)
    itemsize = einsum.operands[0].dtype.itemsize
    copy_s = 3 * n_moved * itemsize / machine.bandwidth_bytes_per_s
    index, block = text(parameters, "index"), number(parameters, "block")
    n_blocks = 1 if index == WHOLE else -(-points(einsum, (index,)) // block)
    m, k, n = (points(einsum, part) for part in sides)
    peak = machine.operations_per_s(einsum.operands[0].dtype)
    product_s = points(einsum, stack) * _product_s(m, n, k, peak, machine.n_cores)
    return einsum.batch_size * (n_blocks * machine.call_s + product_s + copy_s) + (
        machine.call_s if n_moved else 0.0
    )


def _is_matrix(
    einsum: BatchedEinsum, term: IndexList, groups: Sequence[IndexList]
) -> bool:
    """Whether an array is a stack of matrices, as BLAS takes them, where it lies."""
    itemsize = einsum.operands[0].dtype.itemsize
    if points(einsum, term) * itemsize > MOST_BYTES:
        return False
    lie = {
        index: points(einsum, term[at + 1 :]) * itemsize
        for at, index in enumerate(term)
    }
    order = [index for group in groups for index in group]
    shape = [points(einsum, (i,)) if i in lie else 1 for i in order]
    array = np.lib.stride_tricks.as_strided(
        np.empty(1, einsum.operands[0].dtype), shape, [lie.get(i, 0) for i in order]
    )
    lengths = (*[1] * len(groups[0]), *(len(group) for group in groups[1:]))
    whole = merged(array, lengths)
    return whole is not None and suits_blas(whole)


def _product_s(m: int, n: int, k: int, peak: float, n_cores: int) -> float:
    """Of one product of matrices: small ones are slow, and run on one thread."""
    share = BLAS_SHARE * m / (m + 16) * n / (n + 16) * k / (k + 32)
    operations = 2.0 * m * n * k
    n_threads = n_cores if operations > SERIAL_OPERATIONS else 1
    return PRODUCT_S + operations / (peak * share * n_threads)


LIBRARY_CONTRACTION = register(
    Transform(
        "library_contraction",
        1,
        "products of matrices by the BLAS of numpy, on the host",
        _space,
        library_contraction,
        _constraint,
        is_searched=lambda einsum: reuse(einsum) >= MIN_REUSE,
        devices=frozenset({"cpu"}),
        cost=_cost,
    )
)
