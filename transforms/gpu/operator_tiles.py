"""What a work-group has of an operator on tensor cores."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

from feinsum.ir import BatchedEinsum
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.primitives.multiply_fragments import WARP
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number, typical

__all__ = ["OperatorTiles"]

BANKS = 8
"""Of shared memory, for half a warp: it reads four terms of four elements at once, and
with an odd multiple of four from one element to the next, from all banks."""


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
        n_kept, n_fan: values of the kept indices, and of those that come late alone.
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
    n_kept: int
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
        elements, height, width, terms, turns, groups = (
            number(parameters, name) for name in NAMES
        )
        return cls(
            elements,
            height,
            width,
            terms,
            turns,
            groups,
            bool(parameters["ahead"]),
            volume(steps.rows),
            volume(steps.contracted),
            volume(steps.kept),
            volume(steps.fan),
            n_factors(scaling) + n_factors(steps.late),
            len({row[steps.matrix] for row in einsum.rows}),
            streamed,
            scaling,
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
        """Between elements of a tile."""
        return _spread(self.depth)

    @property
    def row_stride(self) -> int:
        """Between elements of the results, with those of idle rows."""
        return _spread(self.across * self.width)

    @property
    def n_sums(self) -> int:
        """Of a lane."""
        return self.n_kept * self.height * self.width // WARP

    @property
    def n_fragments(self) -> int:
        """Entries of the matrices that a lane holds."""
        return self.n_matrices * self.n_kept * self.width * self.depth // WARP

    @property
    def n_shared(self) -> int:
        """In shared memory."""
        of_element = self.stride + self.n_factors + self.n_fan * self.row_stride
        return self.elements * of_element


NAMES = ("elements", "height", "width", "terms", "turns", "groups")


def _spread(n: int) -> int:
    """The next odd multiple of half the banks."""
    return n + (BANKS // 2 - n) % BANKS
