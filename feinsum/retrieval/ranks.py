"""One answer on all ranks of a parallel program.

Rank 0 looks up and verifies, and broadcasts its choice, transform names with
parameters, as JSON. Every rank applies it to its own kernel. If one of them cannot,
none does. All ranks make the same two collective calls, whatever goes wrong in between.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from feinsum.retrieval.applying import applied
from feinsum.retrieval.generating import delivered
from feinsum.retrieval.matching import lookup_variants
from feinsum.retrieval.pipeline import in_caller, perform_retrieval
from feinsum.retrieval.request import Request
from feinsum.retrieval.result import Retrieval
from feinsum.retrieval.selection import (
    Candidate,
    DecidedNest,
    Decision,
    NestSelection,
    decision_of,
)

__all__ = ["Ranks", "perform_on_ranks"]

logger = logging.getLogger(__name__)


class Ranks:
    """A communicator: an object with mpi4py's methods, lower or upper case.

    Args:
        comm: has ``Get_rank`` and ``Get_size``, and either ``bcast`` and ``allreduce``
            or ``Bcast`` and ``Allreduce``.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def broadcast(self, text: str) -> str:
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


def perform_on_ranks(request: Request, ranks: Ranks) -> Retrieval:
    """Rank 0's result, applied on all ranks or on none.

    Raises:
        RecordNotFoundError: if rank 0 found nothing, or another rank failed.
        FeinsumError: if it failed on this one.
    """
    decision, found = (
        _first_rank_decision(request) if ranks.rank == 0 else (Decision(), None)
    )
    failure: Exception | None = None
    told = ranks.broadcast(to_json(decision))
    try:
        decision = from_json(Decision, told)
        if found is None and decision.error_code is None:
            found = _as_decided(request, decision)
    except Exception as error:
        logger.exception("the recipes of rank 0 cannot be applied on %d", ranks.rank)
        failure = error
    n_failed = ranks.sum(int(failure is not None))
    if failure is not None:
        raise failure
    if decision.error_code is not None:
        raise error_from_code(decision.error_code, decision.error)
    if n_failed:
        raise RecordNotFoundError(
            f"the recipes of rank 0 cannot be applied on {n_failed} of {ranks.size} "
            "ranks; see the warning on one of these"
        )
    assert found is not None
    return found


def _as_decided(request: Request, decision: Decision) -> Retrieval:
    """The kernel with the recipes of a decision.

    Raises:
        FeinsumError: if one cannot be applied.
    """
    if callee := request.of_callee():
        return in_caller(request, _as_decided(callee, decision))
    raised = request.raised()
    nests = _decided_nests(decision, raised.raised)
    for one in nests:
        for candidate in one.candidates:
            candidate.check()
    made = applied(raised, nests)
    for error in made.failures.values():
        raise error
    return Retrieval(delivered(made.unit, raised.t_unit.target), raised, nests)


def _decided_nests(
    decision: Decision, nests: Sequence[RaisedNest]
) -> tuple[NestSelection, ...]:
    """The nests of this rank's kernel with rank 0's choices.

    Raises:
        TransformError: if they are not the einsums of rank 0's kernel.
    """
    if len(nests) != len(decision.nests):
        raise TransformError(
            f"the kernel of this rank has {len(nests)} einsums, that of rank 0 has "
            f"{len(decision.nests)}; give all ranks one kernel"
        )
    return tuple(
        _decided_nest(*pair) for pair in zip(decision.nests, nests, strict=True)
    )


def _decided_nest(decided: DecidedNest, nest: RaisedNest) -> NestSelection:
    match = Match(decided.level, decided.reason)
    if decided.spec is None:
        return NestSelection(nest, match)
    chosen = Candidate(FramedSpec(decided.spec, decided.frame), match)
    for one, _ in lookup_variants(nest):
        if one.key == decided.workload:
            judgement = f"{decided.judgement}, by the first rank"
            return NestSelection(one, match, (chosen,), judgement=judgement)
    raise TransformError(
        f"the einsum of {', '.join(nest.instructions)} has the key {nest.key} on this "
        f"rank, and {decided.workload} on rank 0; give all ranks one kernel"
    )


def _first_rank_decision(request: Request) -> tuple[Decision, Retrieval | None]:
    """The result of rank 0, and its decision for the others."""
    try:
        found = perform_retrieval(request, has_batches=False)
        if not found.applied:
            reasons = "; ".join(nest.why_unchanged for nest in found.nests)
            raise RecordNotFoundError(reasons or "the kernel has no einsum")
        decision = decision_of(found.nests)
    except FeinsumError as error:
        return Decision(error_code=RecordNotFoundError.code, error=str(error)), None
    except Exception as error:  # the other ranks wait for an answer
        logger.exception("the look-up of rank 0 failed")
        reason = f"look-up failed on rank 0 with {type(error).__name__}: {error}"
        return Decision(error_code=RecordNotFoundError.code, error=reason), None
    return decision, found
