"""A plan as a standalone program, to read and change.

The program has two parts: the source of everything below the line of dashes, copied
from this file, and a main part that :func:`program_of` writes for the plan::

    comm = MPI.COMM_WORLD
    A = load(folder / "A.npy", Layout((2, 2), ((0,), ()), {1: 0}, ()), comm)
    # out[i,k] = A[i,j] * B[j,k]
    out = compute(comm, "ij,jk->ik", [A, B], ..., grid=(2, 2), axes=('i', 'k'), ...)
    save(folder / "out.npy", out, comm)

It needs numpy and mpi4py only, so the copied part imports nothing of feinsum and says
in its own words what :mod:`feinsum.distributed.boxes` does for all ranks at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feinsum.distributed.distribution import Distribution
from feinsum.distributed.local import in_letters
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.distributed.groups import Group
    from feinsum.distributed.plans import Plan
    from feinsum.distributed.schedule import GroupSchedule

HEAD = '''"""{einsum} on {processes} processes.

mpiexec -n {processes} python PROGRAM.py FOLDER

FOLDER has NAME.npy for every operand; {outputs} are written there. This program needs
numpy and mpi4py. It was written by feinsum for a plan that moves {moved} elements,
{id}.
"""

import sys
from math import lcm, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
'''

DASHES = "# " + "-" * 76


def program_of(plan: Plan) -> str:
    """Write the source of a program that does the same with numpy and mpi4py.

    Its leaves use numpy. It moves at least as much as the plan, and more if an operand
    is used twice or processes are idle.
    """
    _, _, body = Path(__file__).read_text().rpartition(DASHES)
    counts = plan.outline()
    head = HEAD.format(
        einsum=plan.title,
        processes=plan.processes,
        outputs=" and ".join(f"{name}.npy" for name in plan.outputs),
        moved=f"{counts.moved:,}",
        id=plan.id,
    )
    return f"{head}\n\n{body.strip()}\n\n\n" + "\n".join(_main_lines(plan)) + "\n"


def _main_lines(plan: Plan) -> Iterator[str]:
    yield "comm = MPI.COMM_WORLD"
    yield f"if comm.Get_size() != {plan.processes}:"
    yield f'    sys.exit("this program is for {counted(plan.processes, "process")}")'
    yield "folder = Path(sys.argv[1])"
    for name, start in plan.starts.items():
        yield f'{name} = load(folder / "{name}.npy", {_layout_text(start)}, comm)'
    for group, schedule in zip(plan.groups, plan.schedules, strict=True):
        yield from _group_lines(group, schedule, plan.dtype.str)
    for output in plan.outputs:
        yield f'save(folder / "{output}.npy", {output}, comm)'


def _layout_text(distribution: Distribution) -> str:
    sizes, fixed = distribution.machine.sizes, dict(distribution.fixed)
    return f"Layout({sizes}, {distribution.cuts}, {fixed}, {distribution.cyclic})"


def _group_lines(group: Group, schedule: GroupSchedule, dtype: str) -> Iterator[str]:
    letters = dict(zip(group.indices, in_letters(group.indices), strict=True))
    axes = tuple(None if i is None else letters[i] for i in schedule.axes)
    *terms, output = ("".join(letters[i] for i in a.indices) for a in group.accesses)
    operands = ", ".join(access.tensor for access in group.inputs)
    yield f"# {group}"
    yield f"{group.output.tensor} = compute("
    yield f'    comm, "{",".join(terms)}->{output}", [{operands}], np.dtype("{dtype}"),'
    yield f"    grid={schedule.machine.sizes}, axes={axes},"
    loop = schedule.loop
    if loop is not None:
        parts = f"{loop.parts}, {loop.rotate}, {loop.is_cyclic}"
        yield f'    loop=("{letters[loop.index]}", {parts}),'
    if schedule.cyclic:
        yield f"    cyclic={schedule.cyclic},"
    yield f"    result={_layout_text(schedule.result)},"
    yield ")"


# ----------------------------------------------------------------------------


class Layout(NamedTuple):
    """A grid of ranks, which of its axes cut each axis of a tensor, fixed coordinates,
    and which of these axes have a cyclic distribution.
    """

    grid: tuple[int, ...]
    cuts: tuple[tuple[int, ...], ...]
    fixed: dict[int, int]
    cyclic: tuple[int, ...] = ()

    def coordinates(self, rank: int) -> tuple[int, ...]:
        inside = rank if rank < prod(self.grid) else 0
        return tuple(int(k) for k in np.unravel_index(inside, self.grid))

    def copied(self, rank: int) -> tuple[int, ...]:
        """Coordinates along the axes on which all ranks hold the same."""
        used = {*self.fixed, *(k for cutting in self.cuts for k in cutting)}
        return tuple(p for k, p in enumerate(self.coordinates(rank)) if k not in used)


class Tensor(NamedTuple):
    """This rank's block of a tensor, and the layout of all blocks."""

    block: Any
    shape: tuple[int, ...]
    dtype: Any
    layout: Layout

    def boxes(self, n_ranks: int) -> list[Any]:
        return [block(self.layout, self.shape, rank) for rank in range(n_ranks)]


def block(layout: Layout, shape: Any, rank: int) -> Any:
    """The entries along each axis; None if the rank has nothing."""
    if rank >= prod(layout.grid):
        return None
    coordinates = layout.coordinates(rank)
    if any(coordinates[k] != at for k, at in layout.fixed.items()):
        return None
    box = []
    for length, cutting in zip(shape, layout.cuts, strict=True):
        side = range(length)
        for k in cutting:
            side = part(side, coordinates[k], layout.grid[k], k in layout.cyclic)
        box.append(side)
    return tuple(box) if all(map(len, box)) else None


def part(side: range, number: int, n_parts: int, is_cyclic: bool = False) -> range:
    """One of so many parts of a range."""
    if is_cyclic:
        return side[number::n_parts]
    length = -(-len(side) // n_parts)
    return side[number * length : (number + 1) * length]


def meet(left: Any, right: Any) -> Any:
    """What two boxes share; None if that is nothing."""
    if left is None or right is None:
        return None
    box = tuple(map(common, left, right))
    return box if all(map(len, box)) else None


def common(left: range, right: range) -> range:
    """The values of two ranges: none, or a range of the least common step."""
    start, step = max(left.start, right.start), lcm(left.step, right.step)
    both = (x for x in range(start, start + step) if x in left and x in right)
    end = min(left.stop, right.stop)
    return range(next(both, end), end, step)


def view(array: Any, at: Any, box: Any) -> Any:
    """The box of an array that has the entries ``at``."""
    index = [
        slice(whole.index(side[0]), whole.index(side[-1]) + 1, side.step // whole.step)
        for side, whole in zip(box, at, strict=True)
    ]
    return array[(*index, ...)]


def zeros(box: Any, dtype: Any) -> Any:
    """For a box; None for none."""
    return None if box is None else np.zeros([*map(len, box)], dtype)


def move(
    comm: Any, array: Any, sources: Any, targets: Any, copied: Any, dtype: Any
) -> Any:
    """Add up what all ranks hold of the boxes that they need.

    ``sources`` and ``targets`` have a box, or None, for every rank. Ranks serve those
    for which ``copied`` is equal.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    sending = []
    for to in range(size):
        shared = meet(sources[rank], targets[to])
        if to != rank and shared is not None and copied(rank) == copied(to):
            piece = view(array, sources[rank], shared).astype(dtype, order="C")
            sending.append((comm.Isend(piece, to), piece))
    total = zeros(targets[rank], dtype)
    for of in range(size):
        shared = meet(sources[of], targets[rank])
        if shared is None or copied(of) != copied(rank):
            continue
        if of == rank:
            piece = view(array, sources[rank], shared)
        else:
            piece = zeros(shared, dtype)
            comm.Recv(piece, of)
        view(total, targets[rank], shared)[...] += piece
    for request, _ in sending:
        request.Wait()
    return total


def compute(
    comm: Any,
    subscripts: str,
    operands: Any,
    dtype: Any,
    grid: tuple[int, ...],
    axes: Any,
    result: Layout,
    loop: Any = None,
    cyclic: Any = (),
) -> Tensor:
    """One einsum: each axis of the grid cuts the index of ``axes``.

    ``loop`` is an index, in how many parts it is fetched one after the other, along
    which axes of the grid the first part differs, and whether its parts are cyclic. So
    are those of axes in ``cyclic``.
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
        layout = Layout(grid, cuts, {}, cyclic)
        box = block(layout, [extents[i] for i in term], of)
        if box is None or loop is None or loop[0] not in term:
            return box
        index, n_parts, rotate, is_cyclic = loop
        number = (step + sum(layout.coordinates(of)[k] for k in rotate)) % n_parts
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
            copied, sources = operand.layout.copied, operand.boxes(size)
            blocks.append(
                move(comm, operand.block, sources, boxes, copied, operand.dtype)
            )
        if works[rank]:
            partial += np.einsum(subscripts, *blocks, optimize=len(blocks) > 2)
    tensor = Tensor(None, tuple(extents[i] for i in output), dtype, result)
    boxes = tensor.boxes(size)
    total = move(comm, partial, partial_boxes, boxes, result.copied, dtype)
    return tensor._replace(block=total)


def load(path: Any, layout: Layout, comm: Any) -> Tensor:
    """This rank's block of an array in a file."""
    whole = np.load(path, mmap_mode="r", allow_pickle=False)
    box = block(layout, whole.shape, comm.Get_rank())
    sides = [*map(range, whole.shape)]
    mine = None if box is None else np.array(view(whole, sides, box))
    return Tensor(mine, whole.shape, whole.dtype, layout)


def save(path: Any, tensor: Tensor, comm: Any) -> None:
    """All blocks into one file, which all ranks see."""
    if comm.Get_rank() == 0:
        np.lib.format.open_memmap(path, "w+", tensor.dtype, tensor.shape).flush()
    comm.Barrier()
    box = block(tensor.layout, tensor.shape, comm.Get_rank())
    if box is not None:
        whole = np.lib.format.open_memmap(path, "r+")
        view(whole, [*map(range, whole.shape)], box)[...] = tensor.block
        whole.flush()
    comm.Barrier()
