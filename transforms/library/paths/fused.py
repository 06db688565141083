"""Steps of a path inside one loop, their products in private arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import IndexList
from feinsum.transforms.library.paths.pairwise import PathStep
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.schedule import Expression, Names

__all__ = ["FusedNest"]

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
    done: str

    def at(self, points: Mapping[str, Expression]) -> Expression:
        return _entry(self.array, self.axes, points)


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
        """The schedule with the nest replaced."""
        for step in self.steps:
            made: dict[Factors, _Product] = {}
            for row in self.rows:
                factors = tuple(row.pop(number) for number in step.factors)
                if factors not in made:
                    made[factors] = self._multiply(step, factors)
                row[step.product] = made[factors]
        for k, row in enumerate(self.rows):
            (product,) = row.values()
            assert isinstance(product, _Product)
            self._store(k, product)
        return self.writer.finished()

    def _multiply(self, step: PathStep, factors: Factors) -> _Product:
        """The statements of a step, and the array that has the product."""
        axes, dtype = self._axes(step, factors), self.schedule.dtype_of_row(0)
        shape = [self._size(index) for index in axes] or [1]
        name = self.writer.array("product", shape, dtype)
        after = [one.done for one in factors if isinstance(one, _Product)]
        if step.summed:
            loops, points = self._loops(axes)
            entry = _entry(name, axes, points)
            zero = self.writer.assign(
                f"{name}_zero", entry, dtype.type(0), loops, after
            )
            after.append(zero)
        loops, terms = self._terms(step, axes)
        entry = _entry(name, axes, terms[0])
        values = [self._product(factors, points) for points in terms]
        value = p.Sum((entry, *values)) if step.summed else values[0]
        done = self.writer.assign(name, entry, value, loops, after)
        return _Product(name, axes, done)

    def _size(self, index: str) -> int:
        extent = self.schedule.extents[index]
        assert isinstance(extent, int)
        return extent

    def _terms(
        self, step: PathStep, axes: IndexList
    ) -> tuple[Names, list[dict[str, Expression]]]:
        """Loops of a step, and the points of the terms that an iteration adds."""
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
        """The indices of a product inside the outer loop, the one of lines last."""
        kept = [index for index in step.output if index != self.outer]
        ends = {term[-1] for term in map(self._term, factors) if term}
        return tuple(sorted(kept, key=lambda index: index in ends))

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
        self.writer.store(row, product.at(points), points, loops, [product.done])

    def _loops(
        self, indices: Sequence[str], parts: Mapping[str, int] | None = None
    ) -> tuple[Names, dict[str, Expression]]:
        """Loops over indices, inside the outer one.

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


def _entry(array: str, axes: IndexList, points: Mapping[str, Expression]) -> Expression:
    """An entry of a product; a scalar is an array of one."""
    return var(array)[tuple(points[index] for index in axes) or (0,)]


def _divisor(extent: int) -> int:
    """The largest up to :data:`MAX_TERMS`.

    >>> _divisor(24), _divisor(20), _divisor(37)
    (12, 10, 1)
    """
    return max(n for n in range(1, MAX_TERMS + 1) if extent % n == 0)
