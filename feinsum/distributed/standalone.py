"""What a written program has beside its own lines: blocks, and how they move.

The source of everything below the imports is copied into the program by
:func:`feinsum.distributed.program.program_of`, which needs numpy and mpi4py only.
"""

from __future__ import annotations

from math import lcm, prod
from typing import Any, NamedTuple

import numpy as np


class Where(NamedTuple):
    """A grid of ranks, which of its axes cut each axis of a tensor, fixed places, and
    which of these axes deal values out one by one.
    """

    grid: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]
    fixed: dict[int, int]
    cyclic: tuple[int, ...] = ()

    def places(self, rank: int) -> tuple[int, ...]:
        inside = rank if rank < prod(self.grid) else 0
        return tuple(int(k) for k in np.unravel_index(inside, self.grid))

    def copied(self, rank: int) -> tuple[int, ...]:
        """Places along the axes on which all ranks hold the same."""
        used = {*self.fixed, *(k for cutting in self.cuts for k in cutting)}
        return tuple(p for k, p in enumerate(self.places(rank)) if k not in used)


class Tensor(NamedTuple):
    """This rank's block of a tensor, and where all blocks are."""

    block: Any
    shape: tuple[int, ...]
    dtype: Any
    where: Where

    def boxes(self, n_ranks: int) -> list[Any]:
        return [block(self.where, self.shape, rank) for rank in range(n_ranks)]


def block(where: Where, shape: Any, rank: int) -> Any:
    """The entries along each axis; None if the rank has nothing."""
    if rank >= prod(where.grid):
        return None
    places = where.places(rank)
    if any(places[k] != at for k, at in where.fixed.items()):
        return None
    box = []
    for length, cutting in zip(shape, where.cuts, strict=True):
        side = range(length)
        for k in cutting:
            side = part(side, places[k], where.grid[k], k in where.cyclic)
        box.append(side)
    return tuple(box) if all(map(len, box)) else None


def part(side: range, number: int, n_parts: int, is_cyclic: bool = False) -> range:
    """One of so many parts of a range."""
    if is_cyclic:
        return side[number::n_parts]
    length = -(-len(side) // n_parts)
    return side[number * length : (number + 1) * length]


def meet(one: Any, other: Any) -> Any:
    """What two boxes share; None if that is nothing."""
    if one is None or other is None:
        return None
    box = tuple(map(common, one, other))
    return box if all(map(len, box)) else None


def common(one: range, other: range) -> range:
    """The values of two ranges: none, or a range of the least common step."""
    start, step = max(one.start, other.start), lcm(one.step, other.step)
    both = (x for x in range(start, start + step) if x in one and x in other)
    end = min(one.stop, other.stop)
    return range(next(both, end), end, step)


def view(array: Any, at: Any, box: Any) -> Any:
    """The box of an array that has the entries ``at``."""
    places = [
        slice(whole.index(side[0]), whole.index(side[-1]) + 1, side.step // whole.step)
        for side, whole in zip(box, at, strict=True)
    ]
    return array[(*places, ...)]


def zeros(box: Any, dtype: Any) -> Any:
    """For a box; None for none."""
    return None if box is None else np.zeros([*map(len, box)], dtype)


def move(comm: Any, array: Any, held: Any, wanted: Any, copied: Any, dtype: Any) -> Any:
    """Add up what all ranks hold of the boxes that they want.

    ``held`` and ``wanted`` have a box, or None, for every rank. Ranks serve those for
    which ``copied`` is equal.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    leaving = []
    for to in range(size):
        shared = meet(held[rank], wanted[to])
        if to != rank and shared is not None and copied(rank) == copied(to):
            piece = view(array, held[rank], shared).astype(dtype, order="C")
            leaving.append((comm.Isend(piece, to), piece))
    found = zeros(wanted[rank], dtype)
    for of in range(size):
        shared = meet(held[of], wanted[rank])
        if shared is None or copied(of) != copied(rank):
            continue
        if of == rank:
            piece = view(array, held[rank], shared)
        else:
            piece = zeros(shared, dtype)
            comm.Recv(piece, of)
        view(found, wanted[rank], shared)[...] += piece
    for request, _ in leaving:
        request.Wait()
    return found


def compute(
    comm: Any,
    subscripts: str,
    operands: Any,
    dtype: Any,
    grid: tuple[int, ...],
    axes: Any,
    result: Where,
    loop: Any = None,
    cyclic: Any = (),
) -> Tensor:
    """One einsum: each axis of the grid cuts the index of ``axes``.

    ``loop`` is an index, in how many parts it is fetched one after the other, and along
    which axes of the grid the first part differs, and whether its values are dealt out.
    So do axes in ``cyclic``.
    """
    *terms, output = subscripts.replace("->", ",").split(",")
    rank, size = comm.Get_rank(), comm.Get_size()
    shapes = [operand.shape for operand in operands]
    extents = {
        i: n
        for term, shape in zip(terms, shapes, strict=True)
        for i, n in zip(term, shape, strict=True)
    }

    def needs(term: str, of: int, step: int) -> Any:
        cuts = tuple(tuple(k for k, a in enumerate(axes) if a == i) for i in term)
        where = Where(grid, cuts, {}, cyclic)
        box = block(where, [extents[i] for i in term], of)
        if box is None or loop is None or loop[0] not in term:
            return box
        index, n_parts, turned, is_cyclic = loop
        number = (step + sum(where.places(of)[k] for k in turned)) % n_parts
        k = term.index(index)
        side = part(box[k], number, n_parts, is_cyclic)
        return (*box[:k], side, *box[k + 1 :]) if side else None

    partial_boxes = [needs(output, of, 0) for of in range(size)]
    partial = zeros(partial_boxes[rank], dtype)
    for step in range(loop[1] if loop else 1):
        wanted = [[needs(t, of, step) for of in range(size)] for t in terms]
        works = [all(row[of] is not None for row in wanted) for of in range(size)]
        blocks = []
        for operand, row in zip(operands, wanted, strict=True):
            boxes = [b if works[of] else None for of, b in enumerate(row)]
            copied, held = operand.where.copied, operand.boxes(size)
            blocks.append(move(comm, operand.block, held, boxes, copied, operand.dtype))
        if works[rank]:
            partial += np.einsum(subscripts, *blocks, optimize=len(blocks) > 2)
    made = Tensor(None, tuple(extents[i] for i in output), dtype, result)
    kept = made.boxes(size)
    found = move(comm, partial, partial_boxes, kept, result.copied, dtype)
    return made._replace(block=found)


def load(path: Any, where: Where, comm: Any) -> Tensor:
    """This rank's block of an array in a file."""
    whole = np.load(path, mmap_mode="r", allow_pickle=False)
    box = block(where, whole.shape, comm.Get_rank())
    every = [*map(range, whole.shape)]
    mine = None if box is None else np.array(view(whole, every, box))
    return Tensor(mine, whole.shape, whole.dtype, where)


def save(path: Any, tensor: Tensor, comm: Any) -> None:
    """All blocks into one file, which all ranks see."""
    if comm.Get_rank() == 0:
        np.lib.format.open_memmap(path, "w+", tensor.dtype, tensor.shape).flush()
    comm.Barrier()
    box = block(tensor.where, tensor.shape, comm.Get_rank())
    if box is not None:
        whole = np.lib.format.open_memmap(path, "r+")
        view(whole, [*map(range, whole.shape)], box)[...] = tensor.block
        whole.flush()
    comm.Barrier()
