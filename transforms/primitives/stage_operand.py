"""Tiles of operands in private memory (packing).

Source: Loopy's ``precompute``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import loopy as lp
from constantdict import constantdict
from loopy.symbolic import (
    WalkMapper,
    get_dependencies,
)
from pymbolic import primitives as p

from feinsum.errors import TransformError
from feinsum.transforms.primitives.schedule import Schedule

__all__ = ["Tile", "stage_operand", "vectorize_last_axis"]


@dataclass(frozen=True)
class Tile:
    """A private array that holds a tile of an operand.

    Attributes:
        instruction: the one that fills it.
        inames: for each entry of the operand's span the iname that fills it; none
            for an entry of a single value, over which Loopy makes no loop.
    """

    temporary: str
    instruction: str
    inames: Mapping[str, str]


def stage_operand(
    schedule: Schedule,
    operand: str,
    outer: Collection[str],
    *,
    lane: str | None = None,
    lane_tag: str = "unr",
) -> tuple[Schedule, Tile]:
    """Evaluate an operand over a tile ahead of its uses.

    Rewrite::

        for outer, inner:  ... u(8*outer + lane, j) ...

        for outer:
            for j', lane':  u_tile[j', lane'] = u(8*outer + lane', j')
            for inner:      ... u_tile[j, lane] ...

    Args:
        outer: the inames outside of the tile.
        lane: the entry of the operand's span that becomes the last axis of the
            tile, and the lanes of an OpenCL vector.
        lane_tag: how its loop runs: ``unr`` for reads of global memory, ``vec``
            for arithmetic on vectors.

    Raises:
        TransformError: if the tile's lanes do not follow from its own inames.
    """
    span, rule = schedule.spans[operand], schedule.rules[operand]
    arguments = schedule.kernel.substitutions[rule].arguments
    argument_of = dict(zip(span, arguments, strict=True))
    order = [entry for entry in span if entry != lane]
    order += [lane] if lane is not None else []
    temporary = schedule.fresh(f"{operand}_tile")
    inames = {entry: schedule.fresh(f"{temporary}_{entry}") for entry in order}
    fill = schedule.fresh_id(f"{temporary}_fill")
    outside = frozenset(outer)
    t_unit = lp.precompute(
        schedule.t_unit,
        rule,
        _calling_inames(schedule, rule) - outside,
        storage_axes=[argument_of[entry] for entry in order],
        precompute_inames=list(inames.values()),
        precompute_outer_inames=outside,
        temporary_name=temporary,
        temporary_address_space=lp.AddressSpace.PRIVATE,
        # or Loopy would hand the loops of the fill to work-items
        default_tag=None,
        compute_insn_id=fill,
    )
    if lane is not None:
        t_unit = lp.tag_inames(t_unit, {inames[lane]: lane_tag})
    schedule = schedule.with_unit(t_unit)
    if lane is not None:
        _check_lanes(schedule, temporary, outside)
        schedule = vectorize_last_axis(schedule, temporary)
    loops = {e: i for e, i in inames.items() if i in schedule.kernel.all_inames()}
    return schedule, Tile(temporary, fill, constantdict(loops))


def _check_lanes(schedule: Schedule, temporary: str, outer: frozenset[str]) -> None:
    """Refuse lanes ``lane + 8*outer``, as Loopy writes them where ``outer`` is 0.

    A loop that has no other value at all is a constant in Loopy's code.
    """
    finder = _LaneFinder(temporary)
    for insn in schedule.kernel.instructions:
        finder(insn.expression)
    named = sorted(finder.names & outer)
    if pinned := [i for i in named if not _is_single(schedule.kernel, i)]:
        raise TransformError(
            f"the loops {pinned} around the tile {temporary!r} have a single value in "
            "full vectors"
        )


def _is_single(kernel: lp.LoopKernel, iname: str) -> bool:
    """Whether a loop runs once, as far as numbers tell."""
    try:
        return bool(kernel.get_constant_iname_length(iname) == 1)
    except ValueError:
        return False


def vectorize_last_axis(schedule: Schedule, temporary: str) -> Schedule:
    """Turn the last axis of a private array into the lanes of OpenCL vectors.

    Rewrite::

        double tile[4][8];

        double8 tile[4];
    """
    rank = len(schedule.kernel.temporary_variables[temporary].shape)
    tags = [f"N{rank - 2 - axis}" for axis in range(rank - 1)]
    return schedule.with_unit(
        lp.tag_array_axes(schedule.t_unit, temporary, ",".join([*tags, "vec"]))
    )


def _calling_inames(schedule: Schedule, rule: str) -> frozenset[str]:
    """The inames in the arguments of all calls of a rule."""
    finder = _CallFinder(rule)
    for insn in schedule.kernel.instructions:
        finder(insn.expression)
    return frozenset(finder.names & schedule.kernel.all_inames())


class _LaneFinder(WalkMapper):  # type: ignore[misc]
    """Collects the names in the last subscripts of one array."""

    def __init__(self, array: str) -> None:
        super().__init__()
        self.array = array
        self.names: set[str] = set()

    def map_subscript(self, expr: p.Subscript, /) -> None:
        if getattr(expr.aggregate, "name", None) == self.array:
            self.names |= get_dependencies(expr.index_tuple[-1])
        super().map_subscript(expr)


class _CallFinder(WalkMapper):  # type: ignore[misc]
    """Collects the names in the arguments of one rule's calls."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule = rule
        self.names: set[str] = set()

    def map_call(self, expr: p.Call, /) -> None:
        if getattr(expr.function, "name", None) == self.rule:
            for argument in expr.parameters:
                self.names |= get_dependencies(argument)
        super().map_call(expr)
