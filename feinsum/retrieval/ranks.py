"""One answer on all ranks of a parallel program.

Rank 0 looks up and verifies, and says what it chose: names of transforms with their
parameters, as JSON. Every rank applies that to its own kernel. If one of them cannot,
none does. All ranks make the same two collective calls, whatever goes wrong between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from feinsum.errors import (
    FeinsumError,
    RecordNotFoundError,
    TransformError,
    error_from_code,
)
from feinsum.raising import RaisedNest
from feinsum.records import FramedSpec, Match, from_json, to_json
from feinsum.retrieval.known import readings
from feinsum.retrieval.result import Retrieval
from feinsum.retrieval.selection import (
    Candidate,
    NestSelection,
    Plan,
    PlannedNest,
    plan_of,
)

__all__ = ["Ranks", "found_together", "planned_nests"]

logger = logging.getLogger(__name__)


class Ranks:
    """A communicator: an object with methods of mpi4py's, lower or upper case.

    Args:
        comm: has ``Get_rank`` and ``Get_size``, and either ``bcast`` and ``allreduce``
            or ``Bcast`` and ``Allreduce``.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def told_by_first(self, text: str) -> str:
        """The text of rank 0, on all ranks."""
        if hasattr(self._comm, "bcast"):
            return str(self._comm.bcast(text if self.rank == 0 else None, root=0))
        content = np.frombuffer(text.encode(), dtype=np.uint8).copy()
        length = np.array([content.size], dtype=np.int64)
        self._comm.Bcast(length, root=0)
        if self.rank != 0:
            content = np.empty(int(length[0]), dtype=np.uint8)
        self._comm.Bcast(content, root=0)
        return content.tobytes().decode()

    def sum(self, number: int) -> int:
        """The sum of the numbers of all ranks."""
        if hasattr(self._comm, "allreduce"):
            return int(self._comm.allreduce(number))
        own = np.array([number], dtype=np.int64)
        total = np.zeros_like(own)
        self._comm.Allreduce(own, total)
        return int(total[0])


def found_together(
    ranks: Ranks, find: Callable[[], Retrieval], apply: Callable[[Plan], Retrieval]
) -> Retrieval:
    """What rank 0 finds, if every rank can apply it.

    Raises:
        RecordNotFoundError: if rank 0 found nothing, or another rank failed.
        FeinsumError: if it failed on this one.
    """
    plan, found = _first_rank_plan(find) if ranks.rank == 0 else (Plan(), None)
    failure: Exception | None = None
    told = ranks.told_by_first(to_json(plan))
    try:
        plan = from_json(Plan, told)
        if found is None and plan.error_code is None:
            found = apply(plan)
    except Exception as error:
        logger.exception("the recipes of rank 0 cannot be applied on %d", ranks.rank)
        failure = error
    n_failed = ranks.sum(int(failure is not None))
    if failure is not None:
        raise failure
    if plan.error_code is not None:
        raise error_from_code(plan.error_code, plan.error)
    if n_failed:
        raise RecordNotFoundError(
            f"the recipes of rank 0 cannot be applied on {n_failed} of {ranks.size} "
            "ranks; the warning of one of these says why"
        )
    assert found is not None
    return found


def planned_nests(plan: Plan, nests: Sequence[RaisedNest]) -> tuple[NestSelection, ...]:
    """The nests of a kernel of this rank with what rank 0 chose for them.

    Raises:
        TransformError: if they are not the einsums of the kernel of rank 0.
    """
    if len(nests) != len(plan.nests):
        raise TransformError(
            f"the kernel of this rank has {len(nests)} einsums, that of rank 0 has "
            f"{len(plan.nests)}; give all ranks one kernel"
        )
    return tuple(_as_planned(*pair) for pair in zip(plan.nests, nests, strict=True))


def _as_planned(planned: PlannedNest, nest: RaisedNest) -> NestSelection:
    match = Match(planned.level, planned.reason)
    if planned.spec is None:
        return NestSelection(nest, match)
    chosen = Candidate(FramedSpec(planned.spec, planned.frame), match)
    for one, _ in readings(nest):
        if one.key == planned.workload:
            judgement = f"{planned.judgement}, by the first rank"
            return NestSelection(one, match, (chosen,), judgement=judgement)
    raise TransformError(
        f"the einsum of {', '.join(nest.instructions)} has the key {nest.key} on this "
        f"rank, and {planned.workload} on rank 0; give all ranks one kernel"
    )


def _first_rank_plan(
    find: Callable[[], Retrieval],
) -> tuple[Plan, Retrieval | None]:
    """The result of rank 0, and its plan for the others."""
    try:
        found = find()
        if not found.applied:
            reasons = "; ".join(nest.why_unchanged for nest in found.nests)
            raise RecordNotFoundError(reasons or "the kernel has no einsum")
        plan = plan_of(found.nests)
    except FeinsumError as error:
        return Plan(error_code=RecordNotFoundError.code, error=str(error)), None
    except Exception as error:  # the other ranks wait for an answer
        logger.exception("the look-up of rank 0 failed")
        reason = f"look-up failed on rank 0 with {type(error).__name__}: {error}"
        return Plan(error_code=RecordNotFoundError.code, error=reason), None
    return plan, found
