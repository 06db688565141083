"""A nest of many operands as nests of few, with products of operands between them.

There are two ways to hand a product to the step that reads it. :func:`split_nest` gives
each step a device kernel, with products in global memory; :class:`FusedNest` runs all
steps for one value of an outer index after the other, with products in private memory::

    split_nest                          FusedNest, for the outer index b
    for b, j, l:  product[b,j,l] = ...  for b:
    (wait)                                for j, l:  product[j,l] = ...
    for b, i, l:  out[b,i,l] = ...        for i, l:  out[b,i,l] = ...
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import islpy as isl
import loopy as lp
import numpy as np
from constantdict import constantdict
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, IndexList, Operand
from feinsum.raising import LoopNest, names_of, points_of, value_of
from feinsum.transforms.library.paths.pairwise import PathStep
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names


def split_nest(
    t_unit: lp.TranslationUnit, nest: LoopNest, steps: Sequence[PathStep]
) -> tuple[lp.TranslationUnit, tuple[LoopNest, ...]]:
    """Give steps of a path nests of their own; what they leave is in the last nest.

    Products are arrays in global memory, and all of one nest is done before the next
    one begins. Rows that share both factors share the product.

    Rewrite, for ``ij,jk,kl->il`` and the step that multiplies B and C::

        for i, l:  out[i,l] = sum((j,k), A[i,j]*B[j,k]*C[k,l])

        for j', l':  product[j',l'] = sum(k', B[j',k']*C[k',l'])
        (wait for all work-groups)
        for i, l:  out[i,l] = sum(j, A[i,j]*product[j,l])

    Args:
        steps: each after those whose products it reads; not the last one.

    Returns:
        The unit and the nests in their order. Their einsums are in the indices of that
        of ``nest``. The operands of the last one are in the order of their numbers.

    Raises:
        TransformError: if the kernel does more than this nest, or has an extent that
            is no argument.
    """
    kernel = t_unit[nest.kernel_name]
    if set(kernel.id_to_insn) != set(nest.instructions):
        raise TransformError(
            f"kernel {kernel.name!r} does more than the einsum, for which a path needs "
            "several device kernels; feinsum.retrieve separates such a kernel"
        )
    for index in nest.einsum.indices:
        extent = nest.extent(index)
        if missing := names_of(extent) - kernel.arg_dict.keys():
            raise TransformError(f"the extent {min(missing)} is not an argument")
    splitter = _Splitter(kernel, nest)
    for step in steps:
        splitter.add(step)
    return t_unit.with_kernel(splitter.finished()), splitter.nests


@dataclass(frozen=True)
class _Array:
    """An array that a nest reads: its name in einsums and its substitution rule."""

    operand: Operand
    rule: str


class _Splitter:
    """Collects the parts of nests, one step after the other."""

    def __init__(self, kernel: lp.LoopKernel, nest: LoopNest) -> None:
        self.kernel, self.nest = kernel, nest
        self._nests: list[LoopNest] = []
        self._terms = dict(enumerate(nest.einsum.inputs))
        self._rows = [
            {k: _Array(op, nest.rules[op.name]) for k, op in enumerate(row)}
            for row in nest.einsum.rows
        ]
        self._unused = kernel.get_var_name_generator()
        operand_names = {op.name for op in nest.einsum.operands}
        self._unused.add_names(operand_names, conflicting_ok=True)
        self._unused_ids = kernel.get_instruction_id_generator()
        rows = [kernel.id_to_insn[insn_id] for insn_id in nest.instructions]
        ids = frozenset(nest.instructions)
        self._before = frozenset().union(*(row.depends_on for row in rows)) - ids
        self._statements: list[lp.InstructionBase] = []
        self._arrays: dict[str, lp.TemporaryVariable] = {}
        self._rules: dict[str, lp.SubstitutionRule] = {}
        self._domains: list[isl.BasicSet] = []

    def add(self, step: PathStep) -> None:
        """Add a nest that computes the product of a step for all rows."""
        factors = [tuple(row.pop(k) for k in step.factors) for row in self._rows]
        for number in step.factors:
            del self._terms[number]
        self._terms[step.product] = step.output
        inames = {index: str(self._unused(index)) for index in step.joint}
        loops = tuple(inames[index] for index in step.output)
        products = {
            arrays: self._new_array(arrays, step.output)
            for arrays in dict.fromkeys(factors)
        }
        statements = [self._statement(array, loops) for array in products.values()]
        einsum = BatchedEinsum(
            step.output,
            step.inputs,
            tuple(tuple(array.operand for array in arrays) for arrays in products),
        )
        self._nests.append(
            replace(
                self.nest,
                einsum=einsum,
                points=points_of(inames),
                rules=_rules(products),
                instructions=tuple(statement.id for statement in statements),
                assignees=tuple(statement.assignee for statement in statements),
                scales=(1,) * len(products),
                shifts=(0,) * len(products),
            )
        )
        self._statements += statements
        self._domains += [self._domain(inames)] if inames else []
        self._wait_for(statements)
        for row, arrays in zip(self._rows, factors, strict=True):
            row[step.product] = products[arrays]

    @property
    def nests(self) -> tuple[LoopNest, ...]:
        """Those of the products, and what is left, with the rows and inames of old."""
        rows = [tuple(row[k] for k in sorted(row)) for row in self._rows]
        einsum = BatchedEinsum(
            self.nest.einsum.output,
            tuple(self._terms[k] for k in sorted(self._terms)),
            tuple(tuple(array.operand for array in row) for row in rows),
        )
        points = {index: self.nest.points[index] for index in einsum.indices}
        last = replace(
            self.nest, einsum=einsum, points=constantdict(points), rules=_rules(rows)
        )
        return *self._nests, last

    def finished(self) -> lp.LoopKernel:
        """Return the kernel with the new nests ahead of the last one."""
        kernel = self.kernel
        # the rows are the last nest, and wait for all products
        rows = [
            insn.copy(depends_on=insn.depends_on | self._before)
            for insn in kernel.instructions
        ]
        return kernel.copy(
            instructions=[*self._statements, *rows],
            temporary_variables={**kernel.temporary_variables, **self._arrays},
            substitutions=constantdict({**kernel.substitutions, **self._rules}),
            domains=[*kernel.domains, *self._domains],
        )

    def _new_array(self, factors: tuple[_Array, ...], output: IndexList) -> _Array:
        """Declare a product of arrays in global memory, and the rule that reads it."""
        name, rule = str(self._unused("product")), str(self._unused("product_rule"))
        dtype = np.dtype(np.result_type(*(array.operand.dtype for array in factors)))
        self._arrays[name] = lp.TemporaryVariable(
            name,
            dtype,
            shape=tuple(self._extent(index) for index in output) or (1,),
            address_space=lp.AddressSpace.GLOBAL,
        )
        arguments = tuple(str(self._unused(f"_{index}")) for index in output)
        self._rules[rule] = lp.SubstitutionRule(
            rule, arguments, _entry(name, arguments)
        )
        extents = self.nest.einsum.extents
        return _Array(Operand(name, tuple(extents[i] for i in output), dtype), rule)

    def _statement(self, array: _Array, loops: Names) -> lp.Assignment:
        """Make the statement that assigns a product; a recipe writes its value."""
        operand = array.operand
        return lp.Assignment(
            _entry(operand.name, loops),
            operand.dtype.type(0),
            id=str(self._unused_ids(operand.name)),
            within_inames=frozenset(loops),
            depends_on=self._before,
        )

    def _wait_for(self, statements: Sequence[lp.Assignment]) -> None:
        """All work-groups have done these before anything that comes next."""
        ids = frozenset(statement.id for statement in statements)
        barrier = lp.BarrierInstruction(
            id=str(self._unused_ids("wait")),
            depends_on=ids,
            depends_on_is_final=True,
            within_inames=frozenset(),
            within_inames_is_final=True,
            synchronization_kind="global",
            mem_kind="global",
        )
        self._statements.append(barrier)
        self._before |= {*ids, barrier.id}

    def _extent(self, index: str) -> Expression:
        return value_of(self.nest.extent(index))

    def _domain(self, inames: dict[str, str]) -> isl.BasicSet:
        extents = {iname: self.nest.extent(index) for index, iname in inames.items()}
        params = frozenset[str]().union(*map(names_of, extents.values()))
        bounds = [f"0 <= {iname} < {extent}" for iname, extent in extents.items()]
        return isl.BasicSet(
            f"[{', '.join(sorted(params))}] -> {{ [{', '.join(extents)}] : "
            f"{' and '.join(bounds)} }}"
        )


def _rules(rows: Iterable[Sequence[_Array]]) -> constantdict[str, str]:
    return constantdict(
        {array.operand.name: array.rule for row in rows for array in row}
    )


def _entry(name: str, inames: Names) -> p.Subscript:
    """Subscript a product; a scalar is an array of one entry."""
    return p.Subscript(var(name), tuple(map(var, inames)) or (0,))


MAX_TERMS = 12
"""That an iteration adds to an entry of a product."""


@dataclass(frozen=True)
class _Product:
    """A private array with the product of two arrays.

    Attributes:
        done: the last statement that writes it.
    """

    array: str
    axes: IndexList
    written_by: str

    def at(self, points: Mapping[str, Expression]) -> Expression:
        return _entry_at(self.array, self.axes, points)


Factor: TypeAlias = str | _Product
"""The name of an operand, or a product. An operand that is itself a product, in global
memory, may have the name of a private array."""

Factors: TypeAlias = tuple[Factor, ...]


class FusedNest:
    """Writes the steps of a path for one value of an output index after the other.

    Rewrite, for ``bij,bjk,bkl->bil``, the outer index b and the path ``1,2 0,1``::

        for b, i, l:  out[b,i,l] = sum((j,k), A[b,i,j]*B[b,j,k]*C[b,k,l])

        for b_tile in parallel:
            for b' < block:
                for j, l:  product[j,l] = 0
                for j, k, l:  product[j,l] += B[b,j,k]*C[b,k,l]
                for i, l:  result[i,l] = 0
                for i, j, l:  result[i,l] += A[b,i,j]*product[j,l]
                for i, l:  out[b,i,l] = result[i,l]

    The innermost loop of a sum is along the last axis of a factor where there is one
    that stays. Rows that share both factors share the product.

    Args:
        outer: the index of the loop around all steps. The extents of all other indices
            of products are known.
        block: its values per work-group.
        steps: those whose products have ``outer``; the operands that they read are in
            the order of their numbers.
    """

    def __init__(
        self, schedule: Schedule, outer: str, block: int, steps: Sequence[PathStep]
    ) -> None:
        self.schedule, self.outer, self.steps = schedule, outer, steps
        self.writer = NestWriter(schedule)
        extent = schedule.extents[outer]
        tile = self.writer.loop(f"{outer}_tile", f"{block}*{{}} < {extent}", tag="g.0")
        inner = self.writer.loop(outer, f"{block}*{tile} + {{}} < {extent}", size=block)
        self.around = (tile, inner)
        self.point = block * var(tile) + var(inner)
        read = {factor for step in steps for factor in step.factors}
        numbers = sorted(read - {step.product for step in steps})
        self.rows: list[dict[int, Factor]] = [
            dict(zip(numbers, row, strict=True)) for row in schedule.rows
        ]

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        for step in self.steps:
            products: dict[Factors, _Product] = {}
            for row in self.rows:
                factors = tuple(row.pop(number) for number in step.factors)
                if factors not in products:
                    products[factors] = self._multiply(step, factors)
                row[step.product] = products[factors]
        for k, row in enumerate(self.rows):
            (product,) = row.values()
            assert isinstance(product, _Product)
            self._store(k, product)
        return self.writer.finished()

    def _multiply(self, step: PathStep, factors: Factors) -> _Product:
        """Write the statements of a step; return the array of the product."""
        axes, dtype = self._axes(step, factors), self.schedule.dtype_of_row(0)
        shape = [self._size(index) for index in axes] or [1]
        name = self.writer.array("product", shape, dtype)
        after = [
            factor.written_by for factor in factors if isinstance(factor, _Product)
        ]
        if step.summed:
            loops, points = self._loops(axes)
            entry = _entry_at(name, axes, points)
            zero = self.writer.assign(
                f"{name}_zero", entry, dtype.type(0), loops, after
            )
            after.append(zero)
        loops, terms = self._terms(step, axes)
        entry = _entry_at(name, axes, terms[0])
        values = [self._product(factors, points) for points in terms]
        value = p.Sum((entry, *values)) if step.summed else values[0]
        written_by = self.writer.assign(name, entry, value, loops, after)
        return _Product(name, axes, written_by)

    def _size(self, index: str) -> int:
        extent = self.schedule.extents[index]
        assert isinstance(extent, int)
        return extent

    def _terms(
        self, step: PathStep, axes: IndexList
    ) -> tuple[Names, list[dict[str, Expression]]]:
        """Make the loops of a step; return the points of the terms of an iteration."""
        order = (*axes[:-1], *step.summed, *axes[-1:])
        if not step.summed:
            loops, points = self._loops(order)
            return loops, [points]
        last = step.summed[-1]
        extent = self.schedule.extents[last]
        # several terms for each load and store of an entry of the product
        n_terms = _divisor(extent) if isinstance(extent, int) else 1
        loops, points = self._loops(order, {last: n_terms})
        first = n_terms * points[last]
        return loops, [{**points, last: first + k} for k in range(n_terms)]

    def _axes(self, step: PathStep, factors: Factors) -> IndexList:
        """Return the indices of a product inside the outer loop, that of lines last."""
        inner = [index for index in step.output if index != self.outer]
        # along an axis in which a factor has lines, the innermost loop reads vectors
        ends = {term[-1] for term in map(self._term, factors) if term}
        return tuple(sorted(inner, key=lambda index: index in ends))

    def _term(self, factor: Factor) -> IndexList:
        if isinstance(factor, _Product):
            return factor.axes
        return self.schedule.spans[factor]

    def _product(
        self, factors: Factors, points: Mapping[str, Expression]
    ) -> Expression:
        values = tuple(self._read(factor, points) for factor in factors)
        return values[0] if len(values) == 1 else p.Product(values)

    def _read(self, factor: Factor, points: Mapping[str, Expression]) -> Expression:
        if isinstance(factor, _Product):
            return factor.at(points)
        rule, term = self.schedule.rules[factor], self.schedule.spans[factor]
        return var(rule)(*(points[index] for index in term))

    def _store(self, row: int, product: _Product) -> None:
        loops, points = self._loops(
            [index for index in self.schedule.output if index != self.outer]
        )
        self.writer.store(row, product.at(points), points, loops, [product.written_by])

    def _loops(
        self, indices: Sequence[str], parts: Mapping[str, int] | None = None
    ) -> tuple[Names, dict[str, Expression]]:
        """Make loops over indices, inside the outer one.

        Args:
            parts: what divides the extents of some indices; their loops are shorter.
        """
        points: dict[str, Expression] = {self.outer: self.point}
        inames = []
        for index in indices:
            size = self.schedule.extents[index]
            if isinstance(size, int):
                size //= (parts or {}).get(index, 1)
            inames.append(self.writer.loop(index, size=size))
            points[index] = var(inames[-1])
        return (*self.around, *inames), points


def _entry_at(
    array: str, axes: IndexList, points: Mapping[str, Expression]
) -> Expression:
    """Subscript a product; a scalar is an array of one entry."""
    return var(array)[tuple(points[index] for index in axes) or (0,)]


def _divisor(extent: int) -> int:
    """Return the largest divisor up to :data:`MAX_TERMS`.

    >>> _divisor(24), _divisor(20), _divisor(37)
    (12, 10, 1)
    """
    return max(n for n in range(1, MAX_TERMS + 1) if extent % n == 0)
