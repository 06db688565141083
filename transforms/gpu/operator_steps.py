"""The steps of an operator: a product of matrices, and what comes before and after it.

The gradient ``xre,rij,ej->xei`` multiplies u by the matrix D, and then J by these sums.
The operand u is *early*: it fills the tile of the product. J is *late*; it multiplies
the sums. The index r is *deferred* until then, and x, which J alone has, *fans out*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from feinsum.ir import BatchedEinsum
from feinsum.transforms.gpu import heuristics as h
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import count_points


@dataclass(frozen=True)
class OperatorSteps:
    """An operator as a product of matrices, with what comes before and after it.

    In the gradient ``xre,rij,ej->xei``, D is the matrix, u is early, and J late. In the
    divergence ``xre,rij,xej->ei``, J and u are both early.

    Attributes:
        element: the long index.
        matrix: the position of the operand without elements.
        early: positions of operands whose product fills a tile of elements.
        late: positions of operands that multiply the sums in registers.
        rows: indices of the matrix that the output has.
        deferred: indices of the matrix that late operands sum over; until then, their
            sums are in registers.
        contracted: indices over which the product with the matrix sums.
        tile: indices of the tile, except for the element.
        gathered: indices that are summed while the tile is filled.
        outer: indices of the tile that the output has, too.
        fan: indices of the output that late operands alone have.
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
    def of(cls, einsum: BatchedEinsum, element: str) -> OperatorSteps | None:
        """Choose the steps of fewest operations; None if the einsum has no such form.

        >>> from feinsum import array, einsum
        >>> e = einsum("xre,rij,ej->xei", array("J", (3, 3, "N")),
        ...            array("D", (3, 10, 10)), array("u", ("N", 10)))
        >>> steps = OperatorSteps.of(e, "e")
        >>> steps.early, steps.late, steps.rows, steps.deferred
        ((2,), (0,), ('i',), ('r',))
        >>> steps.contracted, steps.fan
        (('j',), ('x',))
        """
        without_element = [k for k, t in enumerate(einsum.inputs) if element not in t]
        # several matrices would have to be multiplied by each other first
        if len(without_element) != 1:
            return None
        (matrix,) = without_element
        remaining = [k for k in range(einsum.n_operands) if k != matrix]
        candidates = [
            steps
            for n in range(1, len(remaining) + 1)
            for early in combinations(remaining, n)
            if (steps := cls._split(einsum, element, matrix, early)) is not None
        ]
        cost = {steps: steps.operations(einsum) for steps in candidates}
        return min(candidates, key=cost.__getitem__, default=None)

    @classmethod
    def _split(
        cls, einsum: BatchedEinsum, element: str, matrix: int, early: tuple[int, ...]
    ) -> OperatorSteps | None:
        late = tuple(
            k for k in range(einsum.n_operands) if k != matrix and k not in early
        )
        of_matrix, output = einsum.inputs[matrix], einsum.output
        of_early = _join_indices(einsum, early)
        of_late = _join_indices(einsum, late)
        # indices of early operands alone are summed while the tile is filled
        used_later = {*of_matrix, *output, *of_late}
        tile = tuple(i for i in of_early if i in used_later and i != element)
        rows = tuple(i for i in output if i in of_matrix)
        deferred = tuple(i for i in of_matrix if i in of_late and i not in output)
        # for each value of these indices, the product is repeated with the same matrix
        outer = tuple(i for i in tile if i in output)
        inner = {*of_matrix} - {*rows}
        # The matrix has rows, and its other indices are in the tile or are deferred.
        # Late operands have no index that neither the matrix nor the output has.
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
            tuple(i for i in of_early if i not in used_later),
            outer,
            tuple(i for i in output if i not in {*rows, *tile, element}),
        )

    def has_results_in_order(self, einsum: BatchedEinsum) -> bool:
        """Return whether the results of an element are adjacent, and elements, too."""
        tail = (self.element, *self.rows)
        return einsum.output[-len(tail) :] == tail

    def operations(self, einsum: BatchedEinsum) -> int:
        """Estimate the number of operations for one element."""
        sums = {*self.rows, *self.deferred, *self.outer}
        steps = [
            (len(self.early), {*self.tile, *self.gathered}),
            (2, {*sums, *self.contracted}),
            (2 * len(self.late), {*sums, *self.fan}),
        ]
        return sum(n * count_points(einsum, (*indices,)) for n, indices in steps)


def _join_indices(einsum: BatchedEinsum, positions: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(i for k in positions for i in einsum.inputs[k]))


NAMES = ("elements", "height", "width", "terms", "turns", "groups")
"""The parameters of :class:`OperatorTiles`, in its order."""


@dataclass(frozen=True)
class OperatorTiles:
    """The tiles of a work-group, and what each lane holds of them.

    Attributes:
        elements: elements of a tile.
        height: elements of a tile that a warp multiplies.
        width: rows of the matrix that a warp holds.
        terms: terms that one instruction adds to each sum.
        turns: tiles that a group multiplies one after another.
        groups: groups that must fit a multiprocessor at the same time.
        is_ahead: whether a tile is loaded while the previous one is multiplied.
        n_rows: rows of the matrix.
        n_terms: terms of a sum.
        n_deferred: number of values of the deferred indices.
        n_fan: number of values of the indices that fan out.
        n_factors: entries of scaling and late operands for one element.
        n_matrices: number of different matrices in the batch.
        streamed: the position of the largest early operand.
        scaling: the positions of the other early operands.
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
        cls, einsum: BatchedEinsum, steps: OperatorSteps, parameters: Parameters
    ) -> OperatorTiles:
        volume = partial(count_points, einsum)

        def n_factors(positions: Sequence[int]) -> int:
            joint = {*_join_indices(einsum, positions)} - {steps.element}
            return volume((*joint,)) if positions else 0

        streamed = max(steps.early, key=lambda k: volume(einsum.inputs[k]))
        scaling = tuple(k for k in steps.early if k != streamed)
        sizes = {name: parameters[name] for name in NAMES}
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
        """Number of warps that share the rows of the matrix."""
        return -(-self.n_rows // self.width)

    @property
    def n_warps(self) -> int:
        return self.elements // self.height * self.across

    @property
    def depth(self) -> int:
        """Number of terms, padded to whole instructions."""
        return -(-self.n_terms // self.terms) * self.terms

    @property
    def stride(self) -> int:
        """Distance of elements of a tile in shared memory, in entries."""
        return avoid_bank_conflicts(self.depth)

    @property
    def row_stride(self) -> int:
        """Distance of elements of the results there, with padding of the rows."""
        return avoid_bank_conflicts(self.across * self.width)

    @property
    def n_sums(self) -> int:
        """Number of sums of a lane."""
        return self.n_deferred * self.height * self.width // h.WARP

    @property
    def n_fragments(self) -> int:
        """Number of entries of the matrices that a lane holds."""
        return self.n_matrices * self.n_deferred * self.width * self.depth // h.WARP

    @property
    def n_shared(self) -> int:
        """Number of entries of a group in shared memory."""
        of_element = self.stride + self.n_factors + self.n_fan * self.row_stride
        return self.elements * of_element


def avoid_bank_conflicts(n: int) -> int:
    """Round up to an odd multiple of half the banks, to avoid bank conflicts.

    >>> [avoid_bank_conflicts(n) for n in (4, 5, 12, 35, 40)]
    [4, 12, 12, 36, 44]
    """
    return n + (h.BANKS // 2 - n) % h.BANKS
