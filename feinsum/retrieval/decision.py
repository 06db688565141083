"""Decisions: the recipes of a kernel's nests, as text for other ranks and processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from feinsum.errors import TransformError
from feinsum.raising import RaisedNest
from feinsum.records import FramedSpec, Level, Match, TransformSpec
from feinsum.records.document import STRICT
from feinsum.retrieval.matching import lookup_variants
from feinsum.retrieval.selection import Candidate, NestSelection
from feinsum.words import counted


@dataclass(frozen=True)
class DecidedNest:
    """The decision for one nest of a kernel.

    Attributes:
        workload: its key.
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
    level: Level
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
        """Why nests are unchanged."""
        return tuple(nest.reason for nest in self.nests if nest.spec is None)


def decision_of(nests: tuple[NestSelection, ...]) -> Decision:
    return Decision(tuple(map(_decided, nests)))


def _decided(one: NestSelection) -> DecidedNest:
    reason = one.why_unchanged if one.chosen is None else one.match.reason
    return DecidedNest(
        one.nest.key,
        one.frame,
        one.applied,
        one.match.level,
        reason,
        one.judgement,
    )


def selections_of(
    decision: Decision, nests: Sequence[RaisedNest]
) -> tuple[NestSelection, ...]:
    """The nests of this rank's kernel with rank 0's choices, which are checked.

    Raises:
        TransformError: if they are not the einsums of rank 0's kernel, or if a recipe
            is not in the space of its transform.
    """
    if len(nests) != len(decision.nests):
        raise TransformError(
            f"the kernel of this rank has {counted(len(nests), 'einsum')}, that of "
            "rank 0 has "
            f"{len(decision.nests)}; give all ranks one kernel"
        )
    return tuple(map(_selection, decision.nests, nests))


def _selection(decided: DecidedNest, nest: RaisedNest) -> NestSelection:
    match = Match(decided.level, decided.reason)
    if decided.spec is None:
        return NestSelection(nest, match)
    chosen = Candidate(FramedSpec(decided.spec, decided.frame), match)
    chosen.check()
    for one, _ in lookup_variants(nest):
        if one.key == decided.workload:
            judgement = f"{decided.judgement}, by the first rank"
            return NestSelection(one, match, (chosen,), judgement=judgement)
    raise TransformError(
        f"the einsum of {', '.join(nest.instructions)} has the key {nest.key} on this "
        f"rank, and {decided.workload} on rank 0; give all ranks one kernel"
    )
