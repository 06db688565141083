"""Scattering whole arrays from rank 0 to all ranks, and gathering results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import box_shape
from feinsum.distributed.local import Meaning, checked_operands, slices
from feinsum.distributed.plan import Plan
from feinsum.errors import PlanError

TAG = 0
"""Messages of one rank to another arrive in their order."""


def scatter(
    plan: Plan, operands: Mapping[str, Any] | None, comm: Any
) -> dict[str, NDArray[Any]]:
    """The blocks of this rank, scattered from whole operands on rank 0.

    Args:
        operands: arrays by name on rank 0; ignored on other ranks.
        comm: an mpi4py communicator.

    Raises:
        PlanError: on all ranks, with the rule ``blocks``, if an operand is missing or
            has the wrong shape or dtype.
    """
    rank, arrays, wrong = comm.Get_rank(), {}, None
    if rank == 0:
        try:
            arrays = checked_operands(plan, operands or {})
        except PlanError as error:
            wrong = str(error)
    wrong = comm.bcast(wrong)
    if wrong is not None:
        raise PlanError(wrong, rules=("blocks",))
    found = {}
    for name, dtype in plan.operands.items():
        for to in range(plan.processes if rank == 0 else 0):
            box = plan.start_box(name, to)
            if box is not None:
                piece = np.array(arrays[name][slices(box)], order="C")
                if to == 0:
                    found[name] = piece
                else:
                    comm.Send(piece, to, TAG)
        box = plan.start_box(name, rank)
        if rank and box is not None:
            found[name] = np.empty(box_shape(box), dtype)
            comm.Recv(found[name], 0, TAG)
    return found


def gather(plan: Plan, parts: Any, comm: Any, meaning: Meaning | None = None) -> Any:
    """The whole result on rank 0, None on all other ranks.

    Args:
        parts: the result of :func:`run_on_ranks` on this rank.
        meaning: computes statements that are not einsums.

    Returns:
        An array; for a plan of statements, a dictionary of arrays.
    """
    if plan.statements is None:
        return _whole(plan, plan.outputs[0], parts, plan.dtype, comm)
    found = {}
    for name in plan.outputs:
        dtype = meaning.dtype(name) if meaning else plan.dtype
        found[name] = _whole(plan, name, parts[name], dtype, comm)
    return found if comm.Get_rank() == 0 else None


def _whole(
    plan: Plan, name: str, part: Any, dtype: Any, comm: Any
) -> NDArray[Any] | None:
    if comm.Get_rank():
        if part is not None:
            comm.Send(np.ascontiguousarray(part), 0, TAG)
        return None
    whole = np.zeros(plan.shape(name), dtype)
    for of in range(plan.processes):
        box = plan.result_box(of, name)
        if box is None:
            continue
        piece = part
        if of:
            piece = np.empty(box_shape(box), dtype)
            comm.Recv(piece, of, TAG)
        whole[slices(box)] = piece
    return whole
