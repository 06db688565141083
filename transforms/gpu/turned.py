"""Products that turn an operand: squares of it pass through shared memory."""

from __future__ import annotations

from math import prod

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
    Launch,
    factors_of,
    group_bytes,
    itemsize_of,
    launch_s,
    loads,
    request_cycles,
)
from feinsum.transforms.gpu.grid import GPUS, flat_of, has_plain_dtype, strided
from feinsum.transforms.gpu.rows import BARRIER_CYCLES
from feinsum.transforms.library.turned import turned_index
from feinsum.transforms.primitives import NestWriter, begin
from feinsum.transforms.primitives.schedule import calls_product
from feinsum.transforms.registry import Parameters, Space, Transform, register
from feinsum.transforms.roles import number, text

__all__ = ["GPU_TURNED"]

SIDE = 32
"""Of a square: what neighbouring work-items read, and what they write."""


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
    schedule = begin(t_unit, nest)
    writer, rows = NestWriter(schedule), number(parameters, "rows")
    read, written = text(parameters, "turned"), schedule.output[-1]
    extents = schedule.extents
    others = [index for index in schedule.output if index not in (read, written)]
    rest = flat_of(others, extents)
    if rest is None:
        raise TransformError("the output has more run-time extents than a grid axes")
    groups = [writer.loop("group", f"{{}} < {rest.size}", tag="g.0")] if others else []
    tiles = {
        index: writer.loop("tile", f"{SIDE}*{{}} < {extents[index]}", tag=f"g.{axis}")
        for axis, index in enumerate((read, written), start=len(groups))
    }
    grid = [*groups, *tiles.values()]
    fixed = rest.points(var(groups[0])) if groups else {}

    def square(fast: str, slow: str) -> tuple[list[str], dict[str, p.Expression]]:
        """Loops over a square, and the place in it for each of its indices."""
        lane = writer.loop(
            "lane",
            f"{SIDE}*{tiles[fast]} + {{}} < {extents[fast]}",
            size=SIDE,
            tag="l.0",
        )
        item = writer.loop("item", size=rows, tag="l.1")
        below = f"{SIDE}*{tiles[slow]} + {{}} < {extents[slow]}"
        dealt = strided(writer, "step", item, rows, f"{{}} < {SIDE}", below)
        return [*grid, lane, item, *dealt.inames], {fast: var(lane), slow: dealt.value}

    def at(places: dict[str, p.Expression]) -> dict[str, p.Expression]:
        starts = {index: SIDE * var(tile) for index, tile in tiles.items()}
        return {**fixed, **{i: p.Sum((starts[i], x)) for i, x in places.items()}}

    for k, row in enumerate(schedule.rows):
        turned = [n for n in row if _is_turned(schedule.spans[n], read, written)]
        loops, places = square(read, written)
        squares, held = [], []
        for name in turned:
            dtype, shape = schedule.dtypes[name], (SIDE, SIDE + 1)
            squares.append(var(writer.array("square", shape, dtype, is_shared=True)))
            value = calls_product(schedule, (name,), at(places))
            here = squares[-1][places[written], places[read]]
            held.append(writer.assign("load", here, value, loops))
        loops, places = square(written, read)
        factors = [one[places[written], places[read]] for one in squares]
        left = tuple(name for name in row if name not in turned)
        if left:
            factors.append(calls_product(schedule, left, at(places)))
        writer.store(k, p.Product(tuple(factors)), at(places), loops, held)
    return writer.finished().t_unit


def _is_turned(term: IndexList, read: str, written: str) -> bool:
    return term[-1:] == (read,) and written in term


def _space(workload: Workload) -> Space | None:
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
        lanes = _lanes(read if _is_turned(term, read, written) else written)
        cycles += request_cycles(einsum, term, size, lanes)
    steps = SIDE // rows
    n_turned = sum(_is_turned(term, read, written) for term, _ in terms)
    work = steps * (cycles + 2 * OVERHEAD_CYCLES + 2 * n_turned) + BARRIER_CYCLES
    return launch_s(
        machine.gpu,
        Launch(
            n_groups=n_groups,
            n_items=SIDE * rows,
            itemsize=itemsize,
            multiply_adds=n_groups * SIDE**2 * factors_of(einsum),
            requests=n_groups * rows * work,
            cached_bytes=n_groups * group_bytes(einsum, {read: SIDE, written: SIDE}),
            distinct_bytes=sum(distinct_bytes(einsum)),
            steps=2,
            shared_bytes=n_turned * SIDE * (SIDE + 1) * itemsize,
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
        devices=GPUS,
        cost=_cost,
    )
)
