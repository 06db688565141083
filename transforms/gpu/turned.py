"""Products with a transposed operand: its squares pass through shared memory.

A warp should read 32 neighbours of A, and write 32 neighbours of the result, which are
a column of A. So a group reads a square by rows, and writes it by columns::

    A[i0.., j0..]          square, 33 entries a row       out[j0.., i0..]
    row y: x -> j   ---->  [y][0] [y][1] ... [y][31] .    row y: x -> i
    reads neighbours       [x][y] for all x: 32 banks     writes neighbours

With 32 entries in a row, a column would be in a single bank of shared memory.

Operands that end in the last index of the output are read when a result is written.
"""

from __future__ import annotations

from math import prod

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, IndexList, Workload
from feinsum.raising import LoopNest
from feinsum.transforms.cost import Gpu, list_loads
from feinsum.transforms.gpu.cost import (
    count_factors,
    count_group_bytes,
    count_request_cycles,
    get_itemsize,
    predict_kernel_s,
)
from feinsum.transforms.gpu.families import has_plain_dtype, register_family
from feinsum.transforms.gpu.heuristics import BARRIER_CYCLES, OVERHEAD_CYCLES, WARP
from feinsum.transforms.gpu.layouts import flatten_indices
from feinsum.transforms.gpu.tiles import GroupWriter, Point
from feinsum.transforms.library.turned import find_turned_index
from feinsum.transforms.primitives import begin
from feinsum.transforms.registry import Parameters, Table
from feinsum.transforms.roles import count_points

SIDE = WARP
"""Side of a square: the number of neighbours that a warp reads or writes."""


def apply_gpu_turned(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Read squares along one index, write them along another one.

    Rewrite, for ``ij->ji``::

        for j, i:  out[j,i] = A[i,j]

        for i0, j0 in steps of 32, y, x in parallel:
            for step:  square[y + rows*step, x] = A[i0 + y + rows*step, j0 + x]
            (barrier)
            for step:  out[j0 + y + rows*step, i0 + x] = square[x, y + rows*step]

    Parameters:
        turned: the index along which operands are read.
        rows: rows of 32 work-items in a group.
    """
    schedule = begin(t_unit, nest)
    writer, extents = GroupWriter(schedule), schedule.extents
    read, written = parameters["turned"], schedule.output[-1]
    rows, pair = parameters["rows"], (read, written)
    other_indices = [index for index in schedule.output if index not in pair]
    flat = flatten_indices(other_indices, extents)
    if flat is None:
        raise TransformError("the output has more run-time extents than a grid axes")
    below = f"{{}} < {flat.size}"
    groups = [writer.loop("group", below, tag="g.0")] if other_indices else []
    tiles = {
        index: writer.loop("tile", f"{SIDE}*{{}} < {extents[index]}", tag=f"g.{axis}")
        for axis, index in enumerate(pair, start=len(groups))
    }
    fixed = flat.unravel(var(groups[0])) if groups else {}

    def square_loops(fast: str, slow: str) -> tuple[list[str], Point]:
        """Loop over a square; return the value within it of each of its indices."""
        limits = {i: f"{SIDE}*{tiles[i]} + {{}} < {extents[i]}" for i in pair}
        lane = writer.loop("lane", limits[fast], size=SIDE, tag="l.0")
        item = writer.loop("item", size=rows, tag="l.1")
        below = f"{{}} < {SIDE}"
        step, value = writer.strided("step", item, rows, below, limits[slow])
        return [*groups, *tiles.values(), lane, item, step], {
            fast: var(lane), slow: value
        }  # fmt: skip

    def of_all(within: Point) -> Point:
        points = {i: p.Sum((SIDE * var(tiles[i]), x)) for i, x in within.items()}
        return {**fixed, **points}

    for k, row in enumerate(schedule.rows):
        transposed = [
            n for n in row if _is_transposed(schedule.spans[n], read, written)
        ]
        loops, within = square_loops(read, written)
        squares, before = [], []
        for name in transposed:
            # one entry more, so that a column is spread over all banks
            dtype, shape = schedule.dtypes[name], (SIDE, SIDE + 1)
            square = var(writer.array("square", shape, dtype, is_shared=True))
            value = schedule.multiply((name,), of_all(within))
            entry = square[within[written], within[read]]
            before.append(writer.assign("load", entry, value, loops))
            squares.append(square)
        # the same square, but neighbouring work-items are along the other index
        loops, within = square_loops(written, read)
        factors = [square[within[written], within[read]] for square in squares]
        if untransposed := tuple(name for name in row if name not in transposed):
            factors.append(schedule.multiply(untransposed, of_all(within)))
        writer.store(k, p.Product(tuple(factors)), of_all(within), loops, before)
    return writer.build().t_unit


def _is_transposed(term: IndexList, read: str, written: str) -> bool:
    return term[-1:] == (read,) and written in term


def _make_space(workload: Workload) -> Table | None:
    """Fit einsums whose largest operand ends in another index than the output."""
    einsum = workload.einsum
    turned = find_turned_index(einsum) if has_plain_dtype(einsum) else None
    if turned is None:
        return None
    other_indices = [i for i in einsum.output if i not in (turned, einsum.output[-1])]
    if flatten_indices(other_indices, einsum.extents) is None:
        return None
    return {"turned": (turned,), "rows": (8, 4, 16)}


def _predict_s(einsum: BatchedEinsum, parameters: Parameters, gpu: Gpu) -> float:
    """Predict the seconds; reads and writes are both contiguous."""
    rows, read = parameters["rows"], parameters["turned"]
    written = einsum.output[-1]
    lanes_along = {i: [{i: k} for k in range(WARP)] for i in (read, written)}
    sides = [count_points(einsum, (index,)) for index in (read, written)]
    n_others = count_points(einsum, einsum.output) // prod(sides)
    n_groups = n_others * prod(-(-side // SIDE) for side in sides)
    itemsize, terms = get_itemsize(einsum), [*list_loads(einsum)]
    cycles = count_request_cycles(einsum, einsum.output, itemsize, lanes_along[written])
    for term, size in terms:
        along = read if _is_transposed(term, read, written) else written
        cycles += count_request_cycles(einsum, term, size, lanes_along[along])
    steps = SIDE // rows
    n_squares = sum(_is_transposed(term, read, written) for term, _ in terms)
    # each square is written and read, in addition to the operands and the result
    work = steps * (cycles + 2 * OVERHEAD_CYCLES + 2 * n_squares) + BARRIER_CYCLES
    group_bytes = count_group_bytes(einsum, {read: SIDE, written: SIDE})
    return predict_kernel_s(
        gpu,
        einsum,
        n_groups=n_groups,
        n_items=SIDE * rows,
        multiply_adds=n_groups * SIDE**2 * count_factors(einsum),
        requests=n_groups * rows * work,
        cached_bytes=n_groups * group_bytes,
        steps=2,
        shared_bytes=n_squares * SIDE * (SIDE + 1) * itemsize,
    )


GPU_TURNED = register_family(
    "gpu_turned",
    1,
    "operands that are read along one index and written along another",
    _make_space,
    apply_gpu_turned,
    _predict_s,
)
