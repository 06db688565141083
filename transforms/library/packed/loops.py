"""Loops over tiles and over the entries of tiles, by index and level of its cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from constantdict import constantdict
from pymbolic import var

from feinsum.transforms.library.packed.plan import Axis, Cut, Plan
from feinsum.transforms.primitives import NestWriter
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.roles import typical

__all__ = ["Loops", "TileLoops"]


@dataclass(frozen=True)
class Loops:
    """Inames over the entries of tiles, one per level of each index.

    Attributes:
        turned: an index of one level that has two loops, the inner one as long as a
            vector.
        joined: sizes of the indices that have no axis of their own: they continue that
            of the index before. One without a loop of its own is in that one's, too.
    """

    inames: Mapping[str, Names]
    points: Mapping[str, Expression]
    turned: str | None = None
    n_lanes: int = 1
    joined: Mapping[str, int] = constantdict()

    def outer(self, indices: Sequence[str]) -> list[str]:
        return [iname for index in indices for iname in self.inames[index][:1]]

    def all(self, *, last: Sequence[str]) -> list[str]:
        """All loops in the order of the indices, but for those that go last."""
        names = [iname for names in self.inames.values() for iname in names]
        return [*(iname for iname in names if iname not in last), *last]

    def lanes(self, axes: Sequence[Axis]) -> list[str]:
        """The loop over lanes of an array, if there is one, and of what is turned."""
        across = [self.iname(axis) for axis in axes if axis[1] == 2]
        return [*across, *(self.inames[self.turned][1:] if self.turned else ())]

    def with_inner(self, *inner: str) -> Loops:
        """The same loops, but for the innermost ones of the vector index."""
        *_, index = [i for i, names in self.inames.items() if len(names) == 3]
        outer = self.inames[index][: -len(inner)]
        return replace(self, inames={**self.inames, index: (*outer, *inner)})

    def iname(self, axis: Axis) -> str:
        index, level = axis
        return self.inames[index][level]

    def entry(
        self, array: str, axes: Sequence[Axis], at: Mapping[str, int] | None = None
    ) -> Expression:
        """An entry of an array; ``at`` fixes indices of one level."""
        at, places = at or {}, list[Expression]()
        for axis in axes:
            index = axis[0]
            if index in at:
                places.append(at[index])
            elif index not in self.joined:
                places.append(self._place(axis))
            elif self.inames[index]:
                places[-1] = self.joined[index] * places[-1] + self._place(axis)
        return var(array)[tuple(places)]

    def _place(self, axis: Axis) -> Expression:
        if axis[0] == self.turned:
            outer, inner = map(var, self.inames[self.turned])
            return self.n_lanes * outer + inner
        return var(self.iname(axis))


class TileLoops:
    """The loops of a plan: over tiles, some of them in parallel, and inside these.

    Attributes:
        tiles: the loop over the tiles of an index, if there are several.
        grid: the loops over tiles of what is not summed, outermost first.
        deep: those over tiles of what is.
    """

    def __init__(self, writer: NestWriter, plan: Plan) -> None:
        self.writer, self.plan = writer, plan
        cuts = [cut for cut in plan.cuts.values() if cut.n_tiles != 1]
        self.tiles = {cut.index: self._tile_loop(cut) for cut in cuts}
        self.deep = [self.tiles[c.index] for c in plan.summed if c.index in self.tiles]
        self.grid = self._grid()
        self.joined = constantdict({cut.index: cut.size for cut in plan.joined[1:]})

    @property
    def around(self) -> list[str]:
        """The loops around everything that is done with a tile."""
        return [*self.grid, *self.deep]

    def over(
        self,
        stem: str,
        indices: Sequence[str],
        shared: Mapping[str, str] | None = None,
        part: str = "all",
        level: int = 0,
        turned: str | None = None,
        *,
        is_joined: bool = False,
    ) -> Loops:
        """Loops over the entries of a tile; outer ones end where the array ends.

        Those inside are loops over registers: all of it, but for what is stored.

        Args:
            shared: outer loops to use again.
            part: ``all``, or what is ``whole`` in the array, or the ``edge``, where
                something is not.
            level: of what ``part`` speaks: 0 for register tiles, 1 for vectors.
            turned: an index of one level that gets a second one, of as many entries
                as there are lanes.
            is_joined: whether joined indices have one loop, and so no points.
        """
        inames: dict[str, Names] = {}
        points: dict[str, Expression] = {}
        if is_joined and self.plan.joined:
            inames = self._one_loop(stem, self.plan.joined)
        for index in [i for i in indices if i not in inames]:
            cut, tile = self.plan.cuts[index], self.tiles.get(index)
            is_in_parts = part != "all" and len(cut.levels) > level + 1
            if index == turned:
                lanes = self.plan.lanes
                cut = replace(cut, levels=(cut.size // lanes, lanes))
            point = cut.size * var(tile) if tile else 0
            position, made = f"{cut.size}*{tile}" if tile else "0", list[str]()
            for size, stride in zip(cut.levels, cut.strides, strict=True):
                position += f" + {stride}*{{0}}"
                if shared and index in shared and not made:
                    made.append(shared[index])
                else:
                    is_bounded = not cut.is_exact and (not made or stem == "store")
                    limits = [f"{position} < {cut.extent}"] if is_bounded else []
                    if is_in_parts and len(made) == level:
                        last = f"{position} + {stride - 1}"
                        sign = {"whole": "<", "edge": ">="}[part]
                        limits.append(f"{last} {sign} {cut.extent}")
                    made.append(self.writer.loop(f"{stem}_{index}", *limits, size=size))
                position = position.format(made[-1])
                point += stride * var(made[-1])
            inames[index], points[index] = tuple(made), point
        return Loops(inames, points, turned, self.plan.lanes, self.joined)

    def _one_loop(self, stem: str, cuts: Sequence[Cut]) -> dict[str, Names]:
        first, *others = (cut.index for cut in cuts)
        size = prod(cut.size for cut in cuts)
        iname = self.writer.loop(f"{stem}_{first}", size=size)
        return {first: (iname,), **dict.fromkeys(others, ())}

    def _tile_loop(self, cut: Cut) -> str:
        if cut.n_tiles is not None:
            return self.writer.loop(f"{cut.index}_tile", size=cut.n_tiles)
        return self.writer.loop(f"{cut.index}_tile", f"{cut.size}*{{}} < {cut.extent}")

    def _grid(self) -> list[str]:
        """The loops over tiles; those of most iterations run in parallel."""
        plan = self.plan
        free = [*reversed(plan.columns), *reversed(plan.rows), *plan.batch]
        cuts = [cut for cut in free if cut.index in self.tiles]
        # A grid has three axes; shorter loops over tiles run inside a work-group.
        by_length = sorted(cuts, key=lambda cut: -(cut.n_tiles or typical(cut.extent)))
        parallel = [cut for cut in cuts if cut in by_length[:3]]
        for axis, cut in enumerate(parallel):
            self.writer.tag(self.tiles[cut.index], f"g.{axis}")
        others = [cut for cut in cuts if cut not in parallel]
        return [self.tiles[cut.index] for cut in (*parallel, *others)]

    def array(
        self, stem: str, axes: Sequence[Axis], dtype: np.dtype[Any], *, has_lanes: bool
    ) -> str:
        shape: list[int] = []
        for index, level in axes:
            if index in self.joined:
                shape[-1] *= self.joined[index]
            else:
                shape.append(self.plan.cuts[index].levels[level])
        return self.writer.array(stem, shape, dtype, has_lanes=has_lanes)
