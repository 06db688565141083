"""How an operator is taken apart into a product of matrices and what is around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

from feinsum.ir import BatchedEinsum
from feinsum.transforms.roles import typical


@dataclass(frozen=True)
class Steps:
    """An operator as a product of matrices, with what comes before and after it.

    For the gradient ``xre,rij,ej->xei``, D is the matrix, u comes early, J late. For
    the divergence ``xre,rij,xej->ei``, J and u both come early.

    Attributes:
        matrix: the position of the operand without elements.
        early: positions that are multiplied into a tile of the elements.
        late: positions that the sums in registers are multiplied with.
        rows: of the matrix, in the output.
        deferred: of the matrix, in registers until ``late`` sums over them.
        contracted: of the matrix, summed with it.
        tile: of the tile, but for the element.
        gathered: summed in the tile.
        outer: of the tile and the output.
        fan: of the output, and late alone.
    """

    element: str
    matrix: int
    early: tuple[int, ...]
    late: tuple[int, ...]
    rows: tuple[str, ...]
    deferred: tuple[str, ...]
    contracted: tuple[str, ...]
    tile: tuple[str, ...]
    gathered: tuple[str, ...]
    outer: tuple[str, ...]
    fan: tuple[str, ...]

    @classmethod
    def of(cls, einsum: BatchedEinsum, element: str) -> Steps | None:
        """Those of the fewest operations; None if the einsum is no such operator.

        >>> from feinsum import array, einsum
        >>> e = einsum("xre,rij,ej->xei", array("J", (3, 3, "N")),
        ...            array("D", (3, 10, 10)), array("u", ("N", 10)))
        >>> steps = Steps.of(e, "e")
        >>> steps.early, steps.late, steps.rows, steps.deferred
        ((2,), (0,), ('i',), ('r',))
        >>> steps.contracted, steps.fan
        (('j',), ('x',))
        """
        without = [k for k, t in enumerate(einsum.inputs) if element not in t]
        # several matrices would have to be multiplied with each other first
        if len(without) != 1:
            return None
        (matrix,) = without
        others = [k for k in range(einsum.n_operands) if k != matrix]
        candidates = [
            steps
            for n in range(1, len(others) + 1)
            for early in combinations(others, n)
            if (steps := cls._split(einsum, element, matrix, early)) is not None
        ]
        cost = {steps: steps.operations(einsum) for steps in candidates}
        return min(candidates, key=cost.__getitem__, default=None)

    @classmethod
    def _split(
        cls, einsum: BatchedEinsum, element: str, matrix: int, early: tuple[int, ...]
    ) -> Steps | None:
        late = tuple(
            k for k in range(einsum.n_operands) if k != matrix and k not in early
        )
        of_matrix, output = einsum.inputs[matrix], einsum.output
        of_early = _joint(einsum, early)
        of_late = _joint(einsum, late)
        # what early operands alone have is summed while the tile is filled
        rest = {*of_matrix, *output, *of_late}
        tile = tuple(i for i in of_early if i in rest and i != element)
        rows = tuple(i for i in output if i in of_matrix)
        deferred = tuple(i for i in of_matrix if i in of_late and i not in output)
        # indices of the tile and the output repeat the product, for the same matrix
        outer = tuple(i for i in tile if i in output)
        inner = {*of_matrix} - {*rows}
        # rows of the matrix are free, all else of it is in the tile or comes late, and
        # late operands have no index that neither the matrix nor the output has
        is_product = (
            bool(rows)
            and not {*rows} & {*tile}
            and {*tile} - {*outer} <= inner
            and {*of_late} - {element} <= {*of_matrix, *output}
        )
        if not is_product:
            return None
        return cls(
            element,
            matrix,
            early,
            late,
            rows,
            deferred,
            tuple(i for i in of_matrix if i not in rows and i not in deferred),
            tile,
            tuple(i for i in of_early if i not in rest),
            outer,
            tuple(i for i in output if i not in {*rows, *tile, element}),
        )

    def lies_in_order(self, einsum: BatchedEinsum) -> bool:
        """Whether rows of an element lie side by side, and elements after another."""
        tail = (self.element, *self.rows)
        return einsum.output[-len(tail) :] == tail

    def operations(self, einsum: BatchedEinsum) -> int:
        """Additions and multiplications of an element, about."""
        sums = {*self.rows, *self.deferred, *self.outer}
        steps = [
            (len(self.early), {*self.tile, *self.gathered}),
            (2, {*sums, *self.contracted}),
            (2 * len(self.late), {*sums, *self.fan}),
        ]
        return sum(
            n * prod(typical(einsum.extents[i]) for i in indices)
            for n, indices in steps
        )


def _joint(einsum: BatchedEinsum, positions: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(i for k in positions for i in einsum.inputs[k]))
