"""The plan of packed tiles: how each index is cut.

A tile of 100 columns can span several indices. For ``abcd`` with the vector index d of
extent 24, a tile takes all of d, and then as many values as fit of the next index in
memory, here 4 of c::

    columns = (Cut("c", 30, (4,)), Cut("d", 24, (3, 2, 4)))
                                          panels, vectors, lanes

Source: Springer and Bientinesi 2018 (GETT) for tiles that span several indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from feinsum.ir import BatchedEinsum, Extent, IndexList
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.primitives.schedule import Names
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import MatrixRoles, find_packed_roles, get_typical_extent

Axis = tuple[str, int]
"""An index, and a level of its cut."""


@dataclass(frozen=True)
class Cut:
    """An index cut into tiles; a tile is a loop nest of ``levels``.

    Attributes:
        levels: numbers of iterations, outermost first.
    """

    index: str
    extent: Extent
    levels: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.levels)

    @property
    def is_exact(self) -> bool:
        """Whether tiles divide the extent."""
        return isinstance(self.extent, int) and self.extent % self.size == 0

    @property
    def n_tiles(self) -> int | None:
        """Number of tiles; None if it is known only at run time."""
        return -(-self.extent // self.size) if isinstance(self.extent, int) else None

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(prod(self.levels[k + 1 :]) for k in range(len(self.levels)))


@dataclass(frozen=True)
class PackingPlan:
    """The cuts of all indices, in the order of their loops inside a tile.

    Attributes:
        columns: free indices of the right side, the vector index last.
        rows: free indices of the left side, the register index last.
        summed: summed indices, that of the innermost loop last.
        batch: batch indices, which have no loops inside a tile.
        postponed: postponed indices, each in a single tile.
    """

    roles: MatrixRoles
    columns: tuple[Cut, ...]
    rows: tuple[Cut, ...]
    summed: tuple[Cut, ...]
    batch: tuple[Cut, ...]
    postponed: tuple[Cut, ...]

    @cached_property
    def cuts(self) -> dict[str, Cut]:
        groups = (self.columns, self.rows, self.summed, self.batch, self.postponed)
        return {cut.index: cut for group in groups for cut in group}

    @property
    def is_deep(self) -> bool:
        """Whether the sum takes several tiles."""
        return any(cut.n_tiles != 1 for cut in self.summed)

    @property
    def joined(self) -> tuple[Cut, ...]:
        """Summed indices that share one axis of the packs; none, or two and more.

        One loop over all of them sums a register tile: nested short loops would cost it
        a tenth of its rate. They can share it only if tiles divide their extents.
        """
        is_whole = len(self.summed) > 1 and all(cut.is_exact for cut in self.summed)
        return self.summed if is_whole else ()

    @property
    def register_axes(self) -> tuple[Axis, ...]:
        """The axes of a register tile: row, vector, lane."""
        row, column = self.rows[-1].index, self.columns[-1].index
        return (row, 1), (column, 1), (column, 2)

    @property
    def lanes(self) -> int:
        return self.columns[-1].levels[-1]

    @property
    def accumulator_axes(self) -> tuple[Axis, ...]:
        """The axes of stored sums: one register tile, or all if the sum is deep."""
        cuts = (*self.columns, *self.rows) if self.is_deep else ()
        outer = tuple((cut.index, 0) for cut in (*self.postponed, *cuts))
        return (*outer, *self.register_axes)

    def find_turned_index(self, term: IndexList) -> str | None:
        """Return the last index of an operand that packing has to transpose.

        None if no transpose is needed, as the vector index is the last one or missing,
        and if squares of vectors do not divide a tile.
        """
        cut, last = self.columns[-1], self.cuts[term[-1]]
        if cut.index not in term or len(last.levels) != 1 or self.lanes == 1:
            return None
        lengths = (last.size, last.extent)
        is_even = all(isinstance(n, int) and n % self.lanes == 0 for n in lengths)
        return last.index if is_even else None

    def order_pack_axes(self, term: IndexList) -> tuple[Axis, ...]:
        """Order the axes of a pack: what a step of a register tile reads is contiguous.

        If rows are packed and the last index of ``term`` is summed, each row is
        contiguous instead, as in the operand.
        """
        main = next(c for c in (self.columns[-1], self.rows[-1]) if c.index in term)
        around = (*self.columns, *self.rows, *self.postponed)
        outer = [(cut.index, 0) for cut in around if cut.index in term]
        inner = [(main.index, k) for k in range(1, len(main.levels))]
        summed = [(cut.index, 0) for cut in self.summed]
        is_by_row = main in self.rows and any(term[-1] == i for i, _ in summed)
        steps = [*inner, *summed] if is_by_row else [*summed, *inner]
        return (*outer, *steps)


def make_plan(
    einsum: BatchedEinsum, extents: Mapping[str, Extent], tiles: Parameters
) -> PackingPlan:
    """Cut all indices: for each side the main one first, then the nearest in memory.

    If another index of a side is the last one of its operand, a tile spans at least a
    cache line of it, so that packing reads whole lines. The same holds for the sums if
    operands end in different summed indices.
    """
    roles = find_packed_roles(einsum, tiles["vector"], tiles["register"])
    assert roles is not None
    summed = sorted(roles.summed, key=lambda index: sum_distances(einsum, index))
    ends = {i for k in (roles.right, *roles.left) for i in einsum.inputs[k][-1:]}
    # a last axis is the innermost loop of the pack, so that whole lines are read
    summed.sort(key=lambda index: index not in ends)
    # operands end in different summed indices: a tile needs a line of both
    is_crossed = len(summed) > 1 and ends >= {*summed[:2]}
    output, right_term = einsum.output, einsum.inputs[roles.right]
    # a product of operands is packed in the order of its longest term
    left_term = max((einsum.inputs[k] for k in roles.left), key=len)
    columns = _order_side(roles.columns, tiles["vector"], right_term, output)
    rows = _order_side(roles.rows, tiles["register"], left_term, output)
    unit = (tiles["vectors"], tiles["lanes"])
    line = _get_least_length(columns, right_term, output)
    line_of_rows = _get_least_length(rows, left_term, output)
    return PackingPlan(
        roles,
        _cut_side(extents, columns, unit, tiles["width"], line),
        _cut_side(extents, rows, (tiles["rows"],), tiles["height"], line_of_rows),
        _cut_side(
            extents, summed, (), tiles["depth"], cpu.LINE_ENTRIES if is_crossed else 1
        ),
        tuple(Cut(index, extents[index], ()) for index in roles.batch),
        tuple(
            Cut(i, extents[i], (get_typical_extent(extents[i]),))
            for i in roles.postponed
        ),
    )


def _order_side(
    indices: Names, main: str, term: IndexList, output: IndexList
) -> tuple[str, ...]:
    """Order the indices of a side: main, last in memory, then the nearest to the end.

    Indices that the term lacks come last. If several operands are packed together, the
    term is their longest one.
    """
    last = _get_last(main, term, output)
    axis_of = {index: axis for axis, index in enumerate(term)}
    other_indices = (index for index in indices if index != main)
    nearest = sorted(
        other_indices, key=lambda index: axis_of.get(index, -1), reverse=True
    )
    return (main, *sorted(nearest, key=lambda index: index != last))


def _get_least_length(order: Names, term: IndexList, output: IndexList) -> int:
    """Return the fewest values of the second index: a line if it is last in memory."""
    is_along = order[1:2] == (_get_last(order[0], term, output),)
    return cpu.LINE_ENTRIES if is_along else 1


def _get_last(main: str, term: IndexList, output: IndexList) -> str:
    """Return the last index of an operand; if that is the main one, of the output."""
    return output[-1] if term[-1] == main else term[-1]


def sum_distances(einsum: BatchedEinsum, index: str) -> int:
    """Sum the distances of an index from the end of all terms that have it."""
    return sum(len(term) - term.index(index) for term in einsum.inputs if index in term)


def _cut_side(
    extents: Mapping[str, Extent],
    order: Sequence[str],
    unit: tuple[int, ...],
    target: int,
    line: int = 1,
) -> tuple[Cut, ...]:
    """Cut the indices of a side into tiles of about ``target`` entries together.

    If one tile holds all values of the indices so far, the next index gets the
    remaining factor of ``target``.

    Args:
        extents: extent of each index.
        order: indices of the side, the first one with the unit.
        unit: lengths of the inner levels of the first index's tile.
        target: entries of a tile.
        line: fewest values of the second index, whose loop is the outermost one.
    """
    main, *other_indices = order
    cuts = [_cut(main, extents[main], unit, target // line)]
    for k, index in enumerate(other_indices):
        least = line if k == 0 else 1
        # once an index is cut, values of the next one are far apart in memory
        is_whole = all(cut.n_tiles == 1 for cut in cuts)
        n_left = target // prod(cut.size for cut in cuts) if is_whole else 1
        cuts.append(_cut(index, extents[index], (), max(n_left, least)))
    # the index with whole lines is the outermost loop of the tile
    if line > 1:
        cuts = [cuts[0], *cuts[2:], cuts[1]]
    return tuple(reversed(cuts))


def _cut(index: str, extent: Extent, unit: tuple[int, ...], target: int) -> Cut:
    n_units = max(target // prod(unit), 1)
    if isinstance(extent, int):
        n_units = _choose_even_length(-(-extent // prod(unit)), n_units)
    return Cut(index, extent, (n_units, *unit))


def _choose_even_length(total: int, target: int) -> int:
    """Return the largest length up to ``target`` that divides ``total`` about evenly.

    >>> (_choose_even_length(72, 50), _choose_even_length(72, 100),
    ...  _choose_even_length(7, 4))
    (36, 72, 4)
    """
    # a divisor leaves no short tile at the end; take it unless it is less than half of
    # the target
    target = min(total, target)
    divisors = [n for n in range(target, target // 2, -1) if total % n == 0]
    return divisors[0] if divisors else -(-total // -(-total // target))
