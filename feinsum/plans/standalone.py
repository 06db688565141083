"""What a written program has beside its own lines: blocks, and how they move.

The source of everything below the imports is copied into the program by
:func:`feinsum.plans.program.program_of`, which needs numpy and mpi4py only.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Tensor", "Where", "block", "compute", "load", "move", "save"]


class Where(NamedTuple):
    """A grid of ranks, which of its axes cut each axis of a tensor, fixed places."""

    grid: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]
    fixed: dict[int, int]

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
    """First entry and end along each axis; None if the rank has nothing."""
    if rank >= prod(where.grid):
        return None
    places = where.places(rank)
    if any(places[k] != at for k, at in where.fixed.items()):
        return None
    box = []
    for length, cutting in zip(shape, where.cuts, strict=True):
        first, end = 0, length
        for k in cutting:
            first, end = part(first, end, places[k], where.grid[k])
        box.append((first, end))
    return tuple(box) if all(a < b for a, b in box) else None


def part(first: int, end: int, number: int, n_parts: int) -> tuple[int, int]:
    """One of so many parts of a range."""
    length = -(-(end - first) // n_parts)
    low = min(first + number * length, end)
    return low, min(low + length, end)


def meet(one: Any, other: Any) -> Any:
    """What two boxes share; None if that is nothing."""
    if one is None or other is None:
        return None
    pairs = zip(one, other, strict=True)
    box = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in pairs)
    return box if all(a < b for a, b in box) else None


def view(array: Any, at: Any, box: Any) -> Any:
    """The box of an array whose first entry is where ``at`` begins."""
    pairs = zip(box, at, strict=True)
    return array[(*(slice(a - c, b - c) for (a, b), (c, _) in pairs), ...)]


def zeros(box: Any, dtype: Any) -> Any:
    """For a box; None for none."""
    return None if box is None else np.zeros([b - a for a, b in box], dtype)


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
) -> Tensor:
    """One einsum: each axis of the grid cuts the index of ``axes``.

    ``loop`` is an index, in how many parts it is fetched one after the other, and along
    which axes of the grid the first part differs.
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
        where = Where(grid, cuts, {})
        box = block(where, [extents[i] for i in term], of)
        if box is None or loop is None or loop[0] not in term:
            return box
        index, n_parts, turned = loop
        number = (step + sum(where.places(of)[k] for k in turned)) % n_parts
        k = term.index(index)
        low, high = box[k]
        first, end = part(low, high, number, n_parts)
        return (*box[:k], (first, end), *box[k + 1 :]) if first < end else None

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
    mine = None if box is None else np.array(view(whole, [(0, 0)] * whole.ndim, box))
    return Tensor(mine, whole.shape, whole.dtype, where)


def save(path: Any, tensor: Tensor, comm: Any) -> None:
    """All blocks into one file, which all ranks see."""
    if comm.Get_rank() == 0:
        np.lib.format.open_memmap(path, "w+", tensor.dtype, tensor.shape).flush()
    comm.Barrier()
    box = block(tensor.where, tensor.shape, comm.Get_rank())
    if box is not None:
        whole = np.lib.format.open_memmap(path, "r+")
        view(whole, [(0, 0)] * whole.ndim, box)[...] = tensor.block
        whole.flush()
    comm.Barrier()
