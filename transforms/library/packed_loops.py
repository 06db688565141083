"""Loops over the entries of tiles, by index and level of its cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pymbolic import var

from feinsum.transforms.library.packing_plan import Axis
from feinsum.transforms.primitives.schedule import Expression, Names

__all__ = ["Loops"]


@dataclass(frozen=True)
class Loops:
    """Inames over the entries of tiles, one per level of each index."""

    inames: Mapping[str, Names]
    points: Mapping[str, Expression]

    def outer(self, indices: Sequence[str]) -> list[str]:
        return [iname for index in indices for iname in self.inames[index][:1]]

    def all(self, *, last: str | None) -> list[str]:
        """All loops in the order of the indices, but for one that goes last."""
        names = [iname for names in self.inames.values() for iname in names]
        return sorted(names, key=lambda iname: iname == last)

    def with_lane(self, lane: str) -> Loops:
        """The same loops, but for the lanes; the vector index is the last of all."""
        *_, index = [i for i, names in self.inames.items() if len(names) == 3]
        return replace(
            self, inames={**self.inames, index: (*self.inames[index][:-1], lane)}
        )

    def iname(self, axis: Axis) -> str:
        index, level = axis
        return self.inames[index][level]

    def entry(
        self, array: str, axes: Sequence[Axis], at: Mapping[str, int] | None = None
    ) -> Expression:
        """An entry of an array; ``at`` fixes indices of one level."""
        at = at or {}
        return var(array)[
            tuple(
                at[axis[0]] if axis[0] in at else var(self.iname(axis)) for axis in axes
            )
        ]
