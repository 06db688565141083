"""One answer on all ranks of a parallel program.

Rank 0 looks up and verifies, and broadcasts its decision, transform names with
parameters, as JSON. Every rank applies it to its own kernel. If one of them cannot,
none does. All ranks make the same two collective calls, whatever goes wrong in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from feinsum.errors import FeinsumError, RecordNotFoundError, error_from_code
from feinsum.records import from_json, to_json
from feinsum.retrieval.decision import Decision, decision_of
from feinsum.retrieval.result import Retrieval

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
        # Bcast takes writable buffers only
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


def agreed(
    ranks: Ranks,
    find: Callable[[], Retrieval],
    follow: Callable[[Decision], Retrieval],
) -> Retrieval:
    """Rank 0's result, on all ranks or on none.

    Args:
        find: what rank 0 does.
        follow: what the others do with its decision.

    Raises:
        RecordNotFoundError: if rank 0 found nothing, or another rank failed.
        FeinsumError: if it failed on this one.
    """
    decision, found = (
        _first_rank_decision(find) if ranks.rank == 0 else (Decision(), None)
    )
    failure: Exception | None = None
    told = ranks.broadcast(to_json(decision))
    try:
        decision = from_json(Decision, told)
        if found is None and decision.error_code is None:
            found = follow(decision)
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


def _first_rank_decision(
    find: Callable[[], Retrieval],
) -> tuple[Decision, Retrieval | None]:
    """The result of rank 0, and its decision for the others."""
    try:
        found = find()
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
