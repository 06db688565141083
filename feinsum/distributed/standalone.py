"""A plan as a standalone program, to read and change: the steps of every rank.

The program has three parts: a head, the function below the line of dashes, copied from
this file, and the steps that :func:`write_program` writes for the plan. A box is a
start, an end and a step for each axis::

    STEPS = [
        [  # rank 0
            ("load", "A", ((0, 4, 1), (0, 3, 1))),
            ("make", "A@0.0.0", ((0, 4, 1), (0, 6, 1)), "<f8"),
            ("send", "A", ((0, 4, 1), (0, 3, 1)), 1, 1),
            ...

It needs numpy and mpi4py only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.distributed.local import replace_names
from feinsum.distributed.plans import require_dense_plan
from feinsum.distributed.steps import Free, Leaf, Make, Step, Transfer, get_tensor

if TYPE_CHECKING:
    from feinsum.distributed.boxes import Box
    from feinsum.distributed.plans import Plan

HEAD = '''"""{einsum} on {processes} processes.

mpiexec -n {processes} python PROGRAM.py FOLDER

FOLDER has NAME.npy for every operand; {outputs} are written there. This program needs
numpy and mpi4py. It was written by feinsum for a plan that moves {moved} elements,
{id}.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
'''

MAIN = """
comm = MPI.COMM_WORLD
if comm.Get_size() != len(STEPS):
    sys.exit(f"this program is for {len(STEPS)} processes")
run_rank_steps(STEPS[comm.Get_rank()], Path(sys.argv[1]), comm)
"""

DASHES = "# " + "-" * 76


def write_program(plan: Plan) -> str:
    """Write the source of a program that runs the plan with numpy and mpi4py.

    Its leaves use numpy, and its messages are point to point.

    Raises:
        PlanError: with the rule ``sparse``, if an operand is sparse.
    """
    require_dense_plan(plan, "written as a program")
    _, _, body = Path(__file__).read_text().rpartition(DASHES)
    head = HEAD.format(
        einsum=plan.title,
        processes=plan.processes,
        outputs=" and ".join(f"{name}.npy" for name in plan.outputs),
        moved=f"{plan.outline().moved:,}",
        id=plan.id,
    )
    ranks = (_format_rank(plan, rank) for rank in range(plan.processes))
    steps = "\n".join(line for lines in ranks for line in lines)
    return f"{head}\n\n{body.strip()}\n\n\nSTEPS: Any = [\n{steps}\n]\n{MAIN}"


def _format_rank(plan: Plan, rank: int) -> Iterator[str]:
    yield f"    [  # rank {rank}"
    for name in plan.operands:
        box = plan.start_box(name, rank)
        if box is not None:
            yield f"        {('load', name, _convert_box(box))},"
    for step in plan.steps[rank]:
        yield f"        {_as_tuple(plan, step, rank)},"
    for name in plan.outputs:
        # on all ranks, because saving is collective
        shape, dtype = plan.shape(name), plan.dtype.str
        box = plan.result_box(rank, name)
        yield f"        {('save', name, box and _convert_box(box), shape, dtype)},"
    yield "    ],"


def _as_tuple(plan: Plan, step: Step, rank: int) -> tuple[Any, ...]:
    match step:
        case Make(buffer, box):
            dtype = plan.operands.get(get_tensor(buffer), plan.dtype).str
            return ("make", buffer, _convert_box(box), dtype)
        case Transfer(sender, receiver, source, target, box, is_added, tag):
            sides = _convert_box(box)
            if sender == receiver:
                return ("take", source, sides, target, is_added)
            if sender == rank:
                return ("send", source, sides, receiver, tag)
            return ("receive", target, sides, sender, tag, is_added)
        case Leaf(group, sources, target, box):
            text = replace_names(plan.groups[group].subscripts)
            blocks = tuple(
                (name, _convert_box(operand_box)) for name, operand_box in sources
            )
            return ("compute", target, _convert_box(box), text, blocks)
        case Free(buffer):
            return ("free", buffer)


def _convert_box(box: Box) -> tuple[tuple[int, int, int], ...]:
    return tuple((side.start, side.stop, side.step) for side in box)


# ----------------------------------------------------------------------------


def run_rank_steps(steps: Any, folder: Any, comm: Any) -> None:
    """Run the steps of this rank; a buffer is an array with its box."""
    buffers: dict[str, Any] = {}
    sending = []

    def view(name: str, sides: Any) -> Any:
        """Return the part of a buffer that lies in a box."""
        array, buffer_sides = buffers[name]
        index = [
            slice((start - first) // step, -(-(stop - first) // step), stride // step)
            for (start, stop, stride), (first, _, step) in zip(
                sides, buffer_sides, strict=True
            )
        ]
        return array[(*index, ...)]

    def get_slices(sides: Any) -> Any:
        return (*(slice(*side) for side in sides), ...)

    for kind, name, *arguments in steps:
        if kind == "load":
            array = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            buffers[name] = (
                np.array(array[get_slices(arguments[0])], order="C"),
                arguments[0],
            )
        elif kind == "make":
            lengths = [len(range(*side)) for side in arguments[0]]
            buffers[name] = np.zeros(lengths, arguments[1]), arguments[0]
        elif kind == "free":
            del buffers[name]
        elif kind == "take":
            sides, target, is_added = arguments
            target_view = view(target, sides)
            target_view[...] = view(name, sides) + (target_view if is_added else 0)
        elif kind == "send":
            sides, rank, tag = arguments
            piece = view(name, sides).copy()
            sending.append((comm.Isend(piece, rank, tag % 32000), piece))
        elif kind == "receive":
            sides, rank, tag, is_added = arguments
            target_view = view(name, sides)
            piece = np.empty(target_view.shape, target_view.dtype)
            comm.Recv(piece, rank, tag % 32000)
            target_view[...] = piece + (target_view if is_added else 0)
        elif kind == "compute":
            sides, subscripts, sources = arguments
            blocks = [view(source, target_view) for source, target_view in sources]
            target_view = view(name, sides)
            target_view += np.einsum(subscripts, *blocks, optimize=len(blocks) > 2)
        elif kind == "save":
            sides, shape, dtype = arguments
            path = folder / f"{name}.npy"
            if comm.Get_rank() == 0:
                np.lib.format.open_memmap(path, "w+", dtype, shape).flush()
            comm.Barrier()
            if sides is not None:
                result = np.lib.format.open_memmap(path, "r+")
                result[get_slices(sides)] = buffers[name][0]
                result.flush()
            comm.Barrier()
    for request, _ in sending:
        request.Wait()
