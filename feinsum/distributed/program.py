"""A plan as a standalone program, to read and change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from feinsum.distributed import standalone
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.local import in_letters
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.distributed.groups import Group
    from feinsum.distributed.plan import Plan
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


def program_of(plan: Plan) -> str:
    """The source of a program that does the same with numpy and mpi4py.

    Its leaves use numpy. It moves at least as much as the plan, and more if an operand
    is used twice or processes are idle.
    """
    source = Path(standalone.__file__).read_text()
    body = source[source.index("class Where(") :].rstrip()
    counts = plan.outline()
    head = HEAD.format(
        einsum=plan.title,
        processes=plan.processes,
        outputs=" and ".join(f"{name}.npy" for name in plan.outputs),
        moved=f"{counts.moved:,}",
        id=plan.id,
    )
    return f"{head}\n\n{body}\n\n\n" + "\n".join(_main(plan)) + "\n"


def _main(plan: Plan) -> Iterator[str]:
    yield "comm = MPI.COMM_WORLD"
    yield f"if comm.Get_size() != {plan.processes}:"
    yield f'    sys.exit("this program is for {counted(plan.processes, "process")}")'
    yield "folder = Path(sys.argv[1])"
    for name, start in plan.starts.items():
        yield f'{name} = load(folder / "{name}.npy", {_where(start)}, comm)'
    for group, schedule in zip(plan.groups, plan.schedules, strict=True):
        yield from _group(group, schedule, plan.dtype.str)
    for output in plan.outputs:
        yield f'save(folder / "{output}.npy", {output}, comm)'


def _where(held: Distribution) -> str:
    return (
        f"Where({held.machine.sizes}, {held.cuts}, {dict(held.fixed)}, {held.cyclic})"
    )


def _group(group: Group, schedule: GroupSchedule, dtype: str) -> Iterator[str]:
    letters = dict(zip(group.indices, in_letters(group.indices), strict=True))
    axes = tuple(None if i is None else letters[i] for i in schedule.axes)
    terms = ["".join(letters[i] for i in access.indices) for access in group.inputs]
    output = "".join(letters[i] for i in group.output.indices)
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
    yield f"    result={_where(schedule.result)},"
    yield ")"
