"""How an operator is taken apart into a product of matrices and what is around it.

The gradient ``xre,rij,ej->xei`` is the product of u with the matrix D, whose sums J
multiplies: ``D u`` comes early, J late, the index r is deferred, x fans out. On tensor
cores a work-group has tiles of elements for that, of which each warp multiplies a
part with some rows of the matrix::

                  rows i of the matrix, ``width`` of each warp
                +--------+--------+
    elements    | warp 0 | warp 1 |    ``height`` elements of each warp
    of a tile   +--------+--------+
                | warp 2 | warp 3 |
                +--------+--------+
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import prod

from feinsum.ir import BatchedEinsum
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.primitives.multiply_fragments import WARP
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number, typical


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
        """Choose the steps of fewest operations; None if the einsum has no such form.

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
        """Return whether rows of an element are adjacent, and elements consecutive."""
        tail = (self.element, *self.rows)
        return einsum.output[-len(tail) :] == tail

    def operations(self, einsum: BatchedEinsum) -> int:
        """Estimate the additions and multiplications of an element."""
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


NAMES = ("elements", "height", "width", "terms", "turns", "groups")
"""The parameters of :class:`OperatorTiles`, in its order."""


@dataclass(frozen=True)
class OperatorTiles:
    """The tiles of a work-group and what its lanes have of them, in entries.

    Attributes:
        elements: of a tile.
        height: elements of a warp.
        width: rows of the matrix of a warp.
        terms: that one instruction adds to each sum.
        turns: tiles of a group, one after another.
        groups: that fit a multiprocessor at least.
        is_ahead: whether a tile is loaded while the one before is multiplied.
        n_rows: of the matrix.
        n_terms: of a sum.
        n_deferred: values of the deferred indices.
        n_fan: values of those that come late alone.
        n_factors: of an element, that it or its sums are multiplied with.
        n_matrices: that differ.
        streamed: the position of the largest operand that comes early.
        scaling: those of the others.
    """

    elements: int
    height: int
    width: int
    terms: int
    turns: int
    groups: int
    is_ahead: bool
    n_rows: int
    n_terms: int
    n_deferred: int
    n_fan: int
    n_factors: int
    n_matrices: int
    streamed: int
    scaling: tuple[int, ...]

    @classmethod
    def of(
        cls, einsum: BatchedEinsum, steps: Steps, parameters: Parameters
    ) -> OperatorTiles:
        def volume(indices: Collection[str]) -> int:
            return prod(typical(einsum.extents[i]) for i in indices)

        def n_factors(positions: Collection[int]) -> int:
            joint = {i for k in positions for i in einsum.inputs[k]} - {steps.element}
            return volume(joint) if positions else 0

        streamed = max(steps.early, key=lambda k: volume(einsum.inputs[k]))
        scaling = tuple(k for k in steps.early if k != streamed)
        sizes = {name: number(parameters, name) for name in NAMES}
        return cls(
            **sizes,
            is_ahead=bool(parameters["ahead"]),
            n_rows=volume(steps.rows),
            n_terms=volume(steps.contracted),
            n_deferred=volume(steps.deferred),
            n_fan=volume(steps.fan),
            n_factors=n_factors(scaling) + n_factors(steps.late),
            n_matrices=len({row[steps.matrix] for row in einsum.rows}),
            streamed=streamed,
            scaling=scaling,
        )

    @property
    def across(self) -> int:
        """Warps for the rows of the matrix."""
        return -(-self.n_rows // self.width)

    @property
    def n_warps(self) -> int:
        return self.elements // self.height * self.across

    @property
    def depth(self) -> int:
        """Terms with those that fill the last instruction."""
        return -(-self.n_terms // self.terms) * self.terms

    @property
    def stride(self) -> int:
        """Between elements of a tile in shared memory."""
        return spread(self.depth)

    @property
    def row_stride(self) -> int:
        """Between elements of the results there, with those of idle rows."""
        return spread(self.across * self.width)

    @property
    def n_sums(self) -> int:
        """The sums of a lane."""
        return self.n_deferred * self.height * self.width // WARP

    @property
    def n_fragments(self) -> int:
        """Entries of the matrices that a lane holds."""
        return self.n_matrices * self.n_deferred * self.width * self.depth // WARP

    @property
    def n_shared(self) -> int:
        """The entries of a group in shared memory."""
        of_element = self.stride + self.n_factors + self.n_fan * self.row_stride
        return self.elements * of_element


def spread(n: int) -> int:
    """Return the next odd multiple of half the banks.

    >>> [spread(n) for n in (4, 5, 12, 35, 40)]
    [4, 12, 12, 36, 44]
    """
    return n + (h.BANKS // 2 - n) % h.BANKS
