"""Products with a transposed operand: squares of it pass through shared memory.

A warp reads 32 neighbours of A and writes 32 neighbours of the result, which are a
column of A. So a group reads a square row by row, and writes it column by column::

    A[i0.., j0..]          square, 33 entries a row       out[j0.., i0..]
    row y: x -> j   ---->  [y][0] [y][1] ... [y][31] .    row y: x -> i
    reads neighbours       [x][y] for all x: 32 banks     writes neighbours

With 32 entries a row, a column would be in one bank of shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Self

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Machine, distinct_bytes, points
from feinsum.transforms.gpu.cost import (
    OVERHEAD_CYCLES,
    WARP,
    LaunchWork,
    factors_of,
    group_bytes,
    itemsize_of,
    launch_s,
    loads,
    request_cycles,
)
from feinsum.transforms.gpu.grid import GPUS, has_plain_dtype, strided
from feinsum.transforms.gpu.layouts import flat_of
from feinsum.transforms.gpu.sums import BARRIER_CYCLES
from feinsum.transforms.library.turned import turned_index
from feinsum.transforms.primitives import NestWriter, begin
from feinsum.transforms.primitives.schedule import Expression, Schedule, calls_product
from feinsum.transforms.registry import Parameters, Table, Transform, register
from feinsum.transforms.roles import number, text

Points = Mapping[str, Expression]
"""The value of each index."""

SIDE = 32
"""Entries of a side of a square: a warp reads and writes as many neighbours."""


def gpu_turned(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Read squares along one index, write them along another one.

    Rewrite, for ``ij->ji``::

        for j, i:  out[j,i] = A[i,j]

        for i0, j0 in steps of 32, y, x in parallel:
            for step:  square[y + rows*step, x] = A[i0 + y + rows*step, j0 + x]
            (barrier)
            for step:  out[j0 + y + rows*step, i0 + x] = square[x, y + rows*step]

    Operands that end in the last index of the output are read when it is written.

    Parameters:
        turned: the index along which operands are read.
        rows: of work-items, of 32 each.
    """
    squares = _Squares.of(
        begin(t_unit, nest), text(parameters, "turned"), number(parameters, "rows")
    )
    return squares.written().t_unit


@dataclass(frozen=True)
class _Squares:
    """Writes the squares of a work-group; see :func:`gpu_turned`.

    Attributes:
        pair: the index along which operands are read, and that of the result.
        rows: of work-items.
        grid: the inames of the work-groups.
        tiles: the iname that counts squares, for each index of the pair.
        fixed: the other indices.
    """

    writer: NestWriter
    pair: tuple[str, str]
    rows: int
    grid: list[str]
    tiles: Points
    fixed: Points

    @classmethod
    def of(cls, schedule: Schedule, read: str, rows: int) -> Self:
        writer, extents = NestWriter(schedule), schedule.extents
        pair = read, schedule.output[-1]
        others = [index for index in schedule.output if index not in pair]
        rest = flat_of(others, extents)
        if rest is None:
            raise TransformError(
                "the output has more run-time extents than a grid axes"
            )
        below = f"{{}} < {rest.size}"
        groups = [writer.loop("group", below, tag="g.0")] if others else []
        tiles = [
            writer.loop("tile", f"{SIDE}*{{}} < {extents[index]}", tag=f"g.{axis}")
            for axis, index in enumerate(pair, start=len(groups))
        ]
        fixed = rest.unravel(var(groups[0])) if groups else {}
        counted = dict(zip(pair, map(var, tiles), strict=True))
        return cls(writer, pair, rows, [*groups, *tiles], counted, fixed)

    def written(self) -> Schedule:
        """The schedule with the nest replaced."""
        for k in range(len(self.writer.schedule.rows)):
            self._row(k)
        return self.writer.finished()

    def _row(self, k: int) -> None:
        """Squares of the operands that are transposed, then the results of a row."""
        schedule, (read, written) = self.writer.schedule, self.pair
        row = schedule.rows[k]
        transposed = [
            n for n in row if _is_transposed(schedule.spans[n], read, written)
        ]
        loops, within = self._square(read, written)
        squares, loads = [], []
        for name in transposed:
            # one entry more, so that a column is spread over all banks
            dtype, shape = schedule.dtypes[name], (SIDE, SIDE + 1)
            square = var(self.writer.array("square", shape, dtype, is_shared=True))
            value = calls_product(schedule, (name,), self._at(within))
            entry = square[within[written], within[read]]
            loads.append(self.writer.assign("load", entry, value, loops))
            squares.append(square)
        # the same square, now with neighbouring work-items along the other index
        loops, within = self._square(written, read)
        factors = [square[within[written], within[read]] for square in squares]
        if left := tuple(name for name in row if name not in transposed):
            factors.append(calls_product(schedule, left, self._at(within)))
        product = p.Product(tuple(factors))
        self.writer.store(k, product, self._at(within), loops, loads)

    def _square(self, fast: str, slow: str) -> tuple[list[str], Points]:
        """Loops over a square, and the value within it of each of its indices."""
        writer, extents = self.writer, self.writer.schedule.extents
        limits = {i: f"{SIDE}*{self.tiles[i]} + {{}} < {extents[i]}" for i in self.pair}
        lane = writer.loop("lane", limits[fast], size=SIDE, tag="l.0")
        item = writer.loop("item", size=self.rows, tag="l.1")
        step = strided(writer, "step", item, self.rows, f"{{}} < {SIDE}", limits[slow])
        loops = [*self.grid, lane, item, step.iname]
        return loops, {fast: var(lane), slow: step.value}

    def _at(self, within: Points) -> Points:
        starts = {index: SIDE * tile for index, tile in self.tiles.items()}
        return {**self.fixed, **{i: p.Sum((starts[i], x)) for i, x in within.items()}}


def _is_transposed(term: IndexList, read: str, written: str) -> bool:
    return term[-1:] == (read,) and written in term


def _space(workload: Workload) -> Table | None:
    einsum = workload.einsum
    turned = turned_index(einsum) if has_plain_dtype(einsum) else None
    if turned is None:
        return None
    others = [i for i in einsum.output if i not in (turned, einsum.output[-1])]
    if flat_of(others, einsum.extents) is None:
        return None
    return {"turned": (turned,), "rows": (8, 4, 16)}


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Both ways neighbours are neighbours in memory."""
    assert machine.gpu is not None
    rows, read = number(parameters, "rows"), text(parameters, "turned")
    written = einsum.output[-1]
    sides = [points(einsum, (index,)) for index in (read, written)]
    others = points(einsum, einsum.output) // prod(sides)
    n_groups = others * prod(-(-side // SIDE) for side in sides)
    itemsize, terms = itemsize_of(einsum), [*loads(einsum)]
    cycles = request_cycles(einsum, einsum.output, itemsize, _lanes(written))
    for term, size in terms:
        lanes = _lanes(read if _is_transposed(term, read, written) else written)
        cycles += request_cycles(einsum, term, size, lanes)
    steps = SIDE // rows
    n_squares = sum(_is_transposed(term, read, written) for term, _ in terms)
    # in and out of each square, beside the operands and the result
    work = steps * (cycles + 2 * OVERHEAD_CYCLES + 2 * n_squares) + BARRIER_CYCLES
    return launch_s(
        machine.gpu,
        LaunchWork(
            n_groups=n_groups,
            n_items=SIDE * rows,
            itemsize=itemsize,
            multiply_adds=n_groups * SIDE**2 * factors_of(einsum),
            requests=n_groups * rows * work,
            cached_bytes=n_groups * group_bytes(einsum, {read: SIDE, written: SIDE}),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=2,
            shared_bytes=n_squares * SIDE * (SIDE + 1) * itemsize,
        ),
    )


def _lanes(index: str) -> list[dict[str, int]]:
    return [{index: k} for k in range(WARP)]


GPU_TURNED = register(
    Transform(
        "gpu_turned",
        1,
        "operands that are read along one index and written along another",
        _space,
        gpu_turned,
        _cost,
        devices=GPUS,
    )
)
