"""Selections: which recipe each nest of a kernel gets, and which remain if it fails.

A selection is derived from the facts about the nests and judged before anything is
applied. A retrieval explains it; a decision is what others need to know of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from constantdict import constantdict

from feinsum.errors import FeinsumError
from feinsum.ir import from_text
from feinsum.raising import RaisedNest
from feinsum.records import (
    FramedSpec,
    Level,
    Match,
    TransformSpec,
    TuningRecord,
)
from feinsum.transforms import check_spec

MOST_REASONS = 10
"""Reasons that are given for an einsum without a recipe."""
REASON_LENGTH = 1000
"""In characters; longer error messages are cut."""
NO_FASTER = "no faster here than the given kernel"
"""How the reason begins why a sound recipe is not used."""
NO_FASTER_THAN_GENERATED = "no faster here than the kernel generated for the einsum"
"""The same where the given kernel cannot be timed."""
NOTHING_FASTER = "no known recipe is faster here than the given kernel"
"""How the reason begins why an einsum gets none of its sound recipes."""


class Candidate(NamedTuple):
    """A candidate recipe for a nest.

    Attributes:
        sizes: extents of the kernel, in the names of the recipe's frame.
    """

    recipe: FramedSpec
    match: Match
    sizes: Mapping[str, int] = constantdict()

    def check(self) -> None:
        """Check that the recipe is in the space of its transform.

        Raises:
            TransformError: if it is not.
        """
        check_spec(self.recipe.spec, from_text(self.recipe.frame))

    @property
    def records(self) -> tuple[TuningRecord, ...]:
        return tuple(r for r in self.match.ranking if r.recipe == self.recipe)

    @property
    def claim(self) -> float | None:
        """Its recorded speed-up; None if nobody measured it."""
        return max((r.measurement.speedup for r in self.records), default=None)


@dataclass(frozen=True)
class NestSelection:
    """How one nest of a kernel was looked up, and the result.

    Attributes:
        nest: the einsum.
        known: what the database knows about it.
        candidates: the remaining recipes, best first.
        failures: recipes that could not be applied, and why.
        judgement: why the first candidate may be used on this machine.
        speedup: of the first candidate over the kernel generated for the einsum, as
            measured here; zero if it was not.
        own: ids of the records that this installation measured.
        seen: what was observed here for other candidates, in words.
        is_settled: whether the choice is final; there may have been no time to try all
            known recipes.
        is_separable: whether the nest can run apart from the rest of its kernel; if
            not, no recipe is tried.
    """

    nest: RaisedNest
    known: Match
    candidates: tuple[Candidate, ...] = ()
    failures: tuple[tuple[TransformSpec, str], ...] = ()
    judgement: str = ""
    speedup: float = 0.0
    is_separable: bool = True
    own: frozenset[str] = frozenset()
    seen: tuple[tuple[TransformSpec, str], ...] = ()
    is_settled: bool = True

    @property
    def chosen(self) -> FramedSpec | None:
        """The chosen recipe, if any."""
        return self.candidates[0].recipe if self._has_any else None

    @property
    def _has_any(self) -> bool:
        return self.is_separable and bool(self.candidates)

    @property
    def match(self) -> Match:
        """The match of the chosen recipe, or of the nest if it gets none."""
        return self.candidates[0].match if self._has_any else self.known

    @property
    def applied(self) -> TransformSpec | None:
        return self.chosen.spec if self.chosen else None

    @property
    def frame(self) -> str:
        """The text of the workload to whose names :attr:`applied` refers."""
        return self.chosen.frame if self.chosen else ""

    def without_first(self, error: Exception) -> NestSelection:
        """Skip the first candidate."""
        first, *others = self.candidates
        left = self.with_failures([(first.recipe.spec, error)])
        return replace(
            left, candidates=tuple(others), judgement="", speedup=0.0, seen=()
        )

    def without_all(self, error: Exception) -> NestSelection:
        """The nest without a recipe, if it had one."""
        if not self.chosen:
            return self
        return replace(self.without_first(error), candidates=())

    def with_failures(
        self, failures: Iterable[tuple[TransformSpec, Exception]]
    ) -> NestSelection:
        """The nest with more recipes that could not be applied."""
        more = ((spec, reason_of(error)) for spec, error in failures)
        return replace(self, failures=(*self.failures, *more))

    @property
    def why_unchanged(self) -> str:
        """Why no recipe was applied, with what to do."""
        nest = self.nest
        if self.known.level == Level.MISS:
            doubts = "".join(f"skipped: {why}; " for _, why in self.failures)
            again = " again, with more trials," if self.known.is_tuned else ""
            return (
                f"{doubts}{self.known.reason} (workload {nest.form.text}, key "
                f"{nest.key}); tune it{again} with feinsum.tune or 'feinsum tune'"
            )
        if not self.is_separable:
            return (
                f"the loops of {', '.join(nest.instructions)} cannot be run apart from "
                "other instructions; move these to other loops, or state their order"
            )
        return self._why_none_of_the_known

    @property
    def _why_none_of_the_known(self) -> str:
        """Recipes that are too slow are only counted; ``explain`` lists them."""
        slow = NO_FASTER, NO_FASTER_THAN_GENERATED
        doubts = [why for _, why in self.failures if not why.startswith(slow)]
        n_slow = len(self.failures) - len(doubts)
        if n_slow and not doubts:
            return f"{NOTHING_FASTER} (key {self.nest.key})"
        told = doubts[:MOST_REASONS]
        if len(doubts) > MOST_REASONS:
            told.append(f"and {len(doubts) - MOST_REASONS} more")
        if n_slow:
            told.append(f"{n_slow} are {NO_FASTER}")
        return f"no recorded recipe could be applied: {'; '.join(told)}"


def reason_of(error: Exception) -> str:
    """What an error says, of any kind and length, in at most 1000 characters."""
    text = str(error) if isinstance(error, FeinsumError) else repr(error)
    return text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]} ..."
