"""Decisions: the recipes of a kernel's nests, as text for other ranks and processes.

Rank 0 of a parallel program looks up and verifies recipes, and broadcasts its decision
as JSON: names of transforms with parameters. Every rank applies it to its own kernel.
If one of them cannot, none of them does ::

    rank 0                               other ranks
    retrieve: kernel, decision
    broadcast  ----- decision ------->   raise, check the keys, apply
    sum        <---- failed: 0/1 ---->   sum
    the kernel, if no rank failed        the kernel, if no rank failed

All ranks make the same two collective calls, even if something fails in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from feinsum.errors import (
    FeinsumError,
    RecordNotFoundError,
    TransformError,
    make_error,
)
from feinsum.raising import RaisedNest
from feinsum.records import (
    FramedSpec,
    Match,
    MatchLevel,
    TransformSpec,
    from_json,
    to_json,
)
from feinsum.records.document import STRICT
from feinsum.retrieval.matching import list_lookup_variants
from feinsum.retrieval.result import Candidate, NestSelection, Retrieval
from feinsum.words import format_count


@dataclass(frozen=True)
class DecidedNest:
    """The decision for one nest of a kernel.

    Attributes:
        workload: the key of its workload.
        frame: the text of the workload to whose names the recipe refers.
        spec: the recipe; None if the nest is unchanged.
        level: the match level of the recipe.
        reason: why the nest is unchanged, or why this recipe was chosen.
        judgement: why the recipe may be used.
    """

    __pydantic_config__ = STRICT

    workload: str
    frame: str
    spec: TransformSpec | None
    level: MatchLevel
    reason: str
    judgement: str = ""


@dataclass(frozen=True)
class Decision:
    """A serializable selection: the decisions for the nests of a kernel, in order.

    Attributes:
        error_code, error: why no nest gets a recipe.
    """

    __pydantic_config__ = STRICT

    nests: tuple[DecidedNest, ...] = ()
    error_code: str | None = None
    error: str = ""

    @property
    def unchanged(self) -> tuple[str, ...]:
        """The reasons why nests are unchanged."""
        return tuple(nest.reason for nest in self.nests if nest.spec is None)


def make_decision(nests: tuple[NestSelection, ...]) -> Decision:
    return Decision(tuple(map(_decide_nest, nests)))


def _decide_nest(selection: NestSelection) -> DecidedNest:
    is_unchanged = selection.chosen is None
    return DecidedNest(
        selection.nest.key,
        selection.frame,
        selection.applied,
        selection.match.level,
        selection.why_unchanged if is_unchanged else selection.match.reason,
        selection.judgement,
    )


def make_selections(
    decision: Decision, nests: Sequence[RaisedNest]
) -> tuple[NestSelection, ...]:
    """Return this rank's nests with rank 0's recipes, after checking them.

    Raises:
        TransformError: if the nests are not the einsums of rank 0's kernel, or if a
            recipe is not in the space of its transform.
    """
    if len(nests) != len(decision.nests):
        raise TransformError(
            f"the kernel of this rank has {format_count(len(nests), 'einsum')}, that "
            f"of rank 0 has {len(decision.nests)}; give all ranks one kernel"
        )
    return tuple(map(_make_selection, decision.nests, nests))


def _make_selection(decided: DecidedNest, nest: RaisedNest) -> NestSelection:
    match = Match(decided.level, decided.reason)
    if decided.spec is None:
        return NestSelection(nest, match)
    chosen = Candidate(FramedSpec(decided.spec, decided.frame), match)
    # rank 0 may run another version of feinsum
    chosen.check()
    # rank 0 may have looked up the nest with joined operands, or at other extents
    for variant, _ in list_lookup_variants(nest):
        if variant.key == decided.workload:
            judgement = f"{decided.judgement}, by the first rank"
            return NestSelection(variant, match, (chosen,), judgement=judgement)
    raise TransformError(
        f"the einsum of {', '.join(nest.instructions)} has the key {nest.key} on this "
        f"rank, and {decided.workload} on rank 0; give all ranks one kernel"
    )


logger = logging.getLogger(__name__)


class Ranks:
    """A communicator: an object with mpi4py's methods, in lower or upper case.

    Args:
        comm: an object with ``Get_rank`` and ``Get_size``, and either ``bcast`` and
            ``allreduce`` or ``Bcast`` and ``Allreduce``.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def broadcast(self, text: str) -> str:
        """Send rank 0's text to all ranks."""
        if hasattr(self._comm, "bcast"):
            return str(self._comm.bcast(text if self.rank == 0 else None, root=0))
        # Bcast requires writable buffers, even on the sender
        content = np.frombuffer(text.encode(), dtype=np.uint8).copy()
        length = np.array([content.size], dtype=np.int64)
        self._comm.Bcast(length, root=0)
        if self.rank != 0:
            content = np.empty(int(length[0]), dtype=np.uint8)
        self._comm.Bcast(content, root=0)
        return content.tobytes().decode()

    def sum(self, number: int) -> int:
        """Sum a number over all ranks."""
        if hasattr(self._comm, "allreduce"):
            return int(self._comm.allreduce(number))
        addend = np.array([number], dtype=np.int64)
        total = np.zeros_like(addend)
        self._comm.Allreduce(addend, total)
        return int(total[0])


def agree(
    ranks: Ranks,
    find: Callable[[], Retrieval],
    follow: Callable[[Decision], Retrieval],
) -> Retrieval:
    """Apply rank 0's result on all ranks, or on none.

    Args:
        ranks: the communicator's ranks.
        find: computes rank 0's result.
        follow: applies rank 0's decision on the other ranks.

    Raises:
        RecordNotFoundError: if rank 0 found no recipe, or another rank failed.
        FeinsumError: if this rank failed.
    """
    decision, retrieval = (
        _find_first_rank_decision(find) if ranks.rank == 0 else (Decision(), None)
    )
    failure: Exception | None = None
    text = ranks.broadcast(to_json(decision))
    try:
        decision = from_json(Decision, text)
        if retrieval is None and decision.error_code is None:
            retrieval = follow(decision)
    except Exception as error:
        logger.exception("the recipes of rank 0 cannot be applied on %d", ranks.rank)
        failure = error
    # the second collective call, which every rank makes even if it failed
    n_failed = ranks.sum(int(failure is not None))
    if failure is not None:
        raise failure
    if decision.error_code is not None:
        raise make_error(decision.error_code, decision.error)
    if n_failed:
        raise RecordNotFoundError(
            f"the recipes of rank 0 cannot be applied on {n_failed} of {ranks.size} "
            "ranks; see the warning on one of these"
        )
    assert retrieval is not None
    return retrieval


def _find_first_rank_decision(
    find: Callable[[], Retrieval],
) -> tuple[Decision, Retrieval | None]:
    """Compute rank 0's result, and the decision that the other ranks follow."""
    try:
        retrieval = find()
        if not retrieval.applied:
            reasons = "; ".join(nest.why_unchanged for nest in retrieval.nests)
            raise RecordNotFoundError(reasons or "the kernel has no einsum")
        decision = make_decision(retrieval.nests)
    except FeinsumError as error:
        return Decision(error_code=RecordNotFoundError.code, error=str(error)), None
    except Exception as error:  # the other ranks wait for an answer
        logger.exception("the look-up of rank 0 failed")
        reason = f"look-up failed on rank 0 with {type(error).__name__}: {error}"
        return Decision(error_code=RecordNotFoundError.code, error=reason), None
    return decision, retrieval
