"""Packed tiles: what a register tile reads in one step of a sum stands together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from loopy.symbolic import SubstitutionMapper
from pymbolic import primitives as p
from pymbolic import var
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.ir import Extent, IndexList
from feinsum.raising import value_of
from feinsum.transforms.library.packed.loops import Loops, TileLoops
from feinsum.transforms.library.packed.plan import Axis, Cut
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.roles import typical

__all__ = ["Pack", "Packer", "written_out"]

LEAST_EDGE = 3
"""Entries of a register tile whose edge has a loop of its own. Of two, the only one is
fixed by an equation, of which Loopy 2025.2 forgets that both sides have to be even.
"""


@dataclass(frozen=True)
class Pack:
    """A packed tile, and the statements that fill it."""

    array: str
    axes: tuple[Axis, ...]
    fills: tuple[str, ...]


class Packer:
    """Copies tiles of operands, each product of operands once."""

    def __init__(self, schedule: Schedule, loops: TileLoops) -> None:
        self.schedule, self.loops, self.plan = schedule, loops, loops.plan
        self.writer = loops.writer
        self.packs: dict[Names, Pack] = {}

    def pack(self, names: Names) -> Pack:
        """Copy a tile of a product of operands, zero where it ends.

        Their functions are evaluated, and sums over indices of theirs alone.
        """
        if names not in self.packs:
            self.packs[names] = self._new_pack(names)
        return self.packs[names]

    def _new_pack(self, names: Names) -> Pack:
        plan, schedule = self.plan, self.schedule
        terms = [schedule.spans[name] for name in names]
        folded = tuple(i for i in plan.roles.folded if any(i in term for term in terms))
        term = _joint_term(terms, folded)
        axes = plan.pack_axes(term)
        dtype = schedule.dtypes[names[0]]
        has_lanes = plan.columns[-1].index in term
        array = self.loops.array(f"{names[0]}_pack", axes, dtype, has_lanes=has_lanes)
        turned = plan.turned_index(term)
        cuts = (plan.cuts[index] for index in term)
        main = next(cut for cut in cuts if len(cut.levels) > 1)
        fills: list[str] = []
        for part in _parts(main):
            loops = self.loops.over("pack", term, part=part, turned=turned)
            value = written_out(schedule, names, loops.points, folded)
            if not main.is_exact and part != "whole":
                end = _as_expression(main.extent)
                inside = p.Comparison(loops.points[main.index], "<", end)
                value = p.If(inside, value, dtype.type(0))
            fill = self._fill if turned is None else self._turn
            fills += fill(Pack(array, axes, tuple(fills)), loops, value)
        return Pack(array, axes, tuple(fills))

    def _fill(self, pack: Pack, loops: Loops, value: Expression) -> list[str]:
        """Assign entry by entry after what the pack has; lanes are innermost."""
        inner = loops.lanes(pack.axes)
        for iname in inner:
            self.writer.tag(iname, "unr")
        order = [*self.loops.around, *loops.all(last=inner)]
        entry = loops.entry(pack.array, pack.axes)
        return [self.writer.assign(pack.array, entry, value, order, pack.fills)]

    def _turn(self, pack: Pack, loops: Loops, value: Expression) -> list[str]:
        """Assign by squares, which are read as vectors along memory and turned.

        A compiler makes vector loads and shuffles of these. Lanes whose entries are
        far apart it reads one by one.
        """
        writer, size = self.writer, self.plan.lanes
        dtype = writer.dtype_of(pack.array)
        square = writer.array("square", (size, size), dtype, has_lanes=True)
        inner = loops.lanes(pack.axes)
        moved = [writer.loop(iname, size=size) for iname in inner]
        for iname in (*inner, *moved):
            writer.tag(iname, "unr")
        *outer, across, along = [*self.loops.around, *loops.all(last=inner)]
        read = writer.assign(
            square,
            var(square)[(var(across), var(along))],
            value,
            [*outer, across, along],
            pack.fills,
        )
        names = {old: var(new) for old, new in zip(inner, moved, strict=True)}
        at = SubstitutionMapper(make_subst_func(names))
        move = writer.assign(
            pack.array,
            at(loops.entry(pack.array, pack.axes)),
            var(square)[tuple(map(var, moved))],
            [*outer, *moved],
            [*pack.fills, read],
        )
        return [read, move]


def _parts(cut: Cut) -> tuple[str, ...]:
    """The parts of the main index that are filled apart, without those that are empty.

    The literal domain of an empty one is refused by Loopy.
    """
    unit = cut.strides[0]
    if cut.is_exact or unit < LEAST_EDGE:
        return ("all",)
    if not isinstance(cut.extent, int):
        return ("whole", "edge")
    is_there = {"whole": cut.extent >= unit, "edge": cut.extent % unit != 0}
    return tuple(part for part in is_there if is_there[part])


def written_out(
    schedule: Schedule,
    names: Sequence[str],
    points: Mapping[str, Expression],
    summed: Names,
    sums: Mapping[tuple[int, ...], Expression] | None = None,
) -> Expression:
    """The sum of products of operands, term by term.

    Args:
        sums: a factor of each term, by the values of the summed indices.
    """
    terms = []
    for values in product(*(range(typical(schedule.extents[i])) for i in summed)):
        at = {**points, **dict(zip(summed, values, strict=True))}
        factors = [
            var(schedule.rules[name])(*(at[index] for index in schedule.spans[name]))
            for name in names
        ]
        factors += [sums[values]] if sums is not None else []
        terms.append(factors[0] if len(factors) == 1 else p.Product(tuple(factors)))
    return terms[0] if len(terms) == 1 else p.Sum(tuple(terms))


def _joint_term(terms: Sequence[IndexList], folded: Names) -> Names:
    """The indices of a product: those of the longest term, others before its last."""
    *head, last = [i for i in max(terms, key=len) if i not in folded]
    seen = {*head, last, *folded}
    others = dict.fromkeys(i for term in terms for i in term if i not in seen)
    return (*head, *others, last)


def _as_expression(extent: Extent) -> Expression:
    return value_of(extent)
