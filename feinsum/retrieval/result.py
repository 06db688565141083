"""The result of a retrieval: the recipe of each nest, the kernel, and the explanation.

A selection has the candidates of one nest of a kernel, the best first, and the reasons
why others were skipped. A retrieval has the selections of all nests, and the kernel
with the first candidate of each. Its text explains both (abbreviated) ::

    raised: zij,zj->zi, 1 row
    canonical: ...
    match: exact (...)
      candidate element_blocked(lanes=4): 0.120 ms, speed-up 6.2 (6.0 to 6.4), ...
    applied: element_blocked(lanes=4) (the first of those tied as fastest)
    trusted: measured by this installation at ...
    kernel: 1 of 1 nests transformed
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import loopy as lp
from constantdict import constantdict

from feinsum.db import LayerState
from feinsum.errors import FeinsumError
from feinsum.ir import from_text
from feinsum.raising import RaisedKernel, RaisedNest
from feinsum.records import (
    FramedSpec,
    Match,
    MatchLevel,
    Policy,
    TransformSpec,
    TuningRecord,
    find_outdated_records,
)
from feinsum.transforms import check_spec
from feinsum.words import format_brief, format_count

MOST_REASONS = 10
"""Maximum reasons in the message for an einsum without a recipe."""
REASON_LENGTH = 1000
"""Maximum characters of a reason; longer error messages are cut."""
NO_FASTER = "no faster here than the given kernel"
"""Start of the reason why a correct recipe is not used."""
NO_FASTER_THAN_GENERATED = "no faster here than the kernel generated for the einsum"
"""The same, if the given kernel cannot be timed."""
NOTHING_FASTER = "no known recipe is faster here than the given kernel"
"""Start of the reason why an einsum gets none of its correct recipes."""


class Candidate(NamedTuple):
    """A candidate recipe for a nest.

    Attributes:
        sizes: extents of the kernel, in the names of the recipe's frame.
        own_record: its best measurement by this installation, driver and software.
        is_builtin: whether its transform is feinsum's own. A user's transform is tried
            in a separate process before it is applied in this one.
    """

    recipe: FramedSpec
    match: Match
    sizes: Mapping[str, int] = constantdict()
    own_record: TuningRecord | None = None
    is_builtin: bool = False

    def check(self) -> None:
        """Check that the recipe is in the space of its transform.

        Raises:
            TransformError: if it is not.
        """
        check_spec(self.recipe.spec, from_text(self.recipe.frame))

    @property
    def records(self) -> tuple[TuningRecord, ...]:
        """Its records that are not outdated."""
        records = [r for r in self.match.ranking if r.recipe == self.recipe]
        outdated = find_outdated_records(records)
        return tuple(record for record in records if record.id not in outdated)

    @property
    def claim(self) -> float | None:
        """Its best recorded speed-up; None if there is no record."""
        return max((r.measurement.speedup for r in self.records), default=None)


@dataclass(frozen=True)
class NestSelection:
    """How one nest of a kernel was looked up, and the result.

    Attributes:
        nest: the einsum.
        best_match: the best match of the records about it.
        candidates: the remaining recipes, best first.
        failures: recipes that could not be applied, and why.
        judgement: why the first candidate may be used on this machine.
        speedup: speed-up of the first candidate over the kernel generated for the
            einsum, as measured here; zero if it was not measured.
        own_ids: ids of the records that this installation measured.
        seen: for other candidates, what trials here showed, in words.
        is_settled: whether the choice is final; False if there was no time to try all
            known recipes.
        is_separable: whether the nest can run apart from the rest of its kernel; if
            not, no recipe is tried.
    """

    nest: RaisedNest
    best_match: Match
    candidates: tuple[Candidate, ...] = ()
    failures: tuple[tuple[TransformSpec, str], ...] = ()
    judgement: str = ""
    speedup: float = 0.0
    is_separable: bool = True
    own_ids: frozenset[str] = frozenset()
    seen: tuple[tuple[TransformSpec, str], ...] = ()
    is_settled: bool = True

    @property
    def instructions(self) -> tuple[str, ...]:
        """The instructions of the nest; see :attr:`RaisedNest.instructions`."""
        return self.nest.instructions

    @property
    def chosen(self) -> FramedSpec | None:
        """The chosen recipe, if any."""
        return self.candidates[0].recipe if self._has_any else None

    @property
    def is_first_usable(self) -> bool:
        """Whether the first candidate fits, and may be applied in this process."""
        if not self._has_any:
            return False
        try:
            self.candidates[0].check()
        except Exception:  # noqa: BLE001  (its trial will record the reason)
            return False
        return self.candidates[0].is_builtin

    @property
    def _has_any(self) -> bool:
        return self.is_separable and bool(self.candidates)

    @property
    def match(self) -> Match:
        """The match of the chosen recipe, or of the nest if it gets none."""
        return self.candidates[0].match if self._has_any else self.best_match

    @property
    def applied(self) -> TransformSpec | None:
        return self.chosen.spec if self.chosen else None

    @property
    def frame(self) -> str:
        """The text of the workload to whose names :attr:`applied` refers."""
        return self.chosen.frame if self.chosen else ""

    def without_first(self, error: Exception) -> NestSelection:
        """Skip the first candidate."""
        first, *later = self.candidates
        selection = self.with_failures([(first.recipe.spec, error)])
        return replace(
            selection, candidates=tuple(later), judgement="", speedup=0.0, seen=()
        )

    def without_all(self, error: Exception) -> NestSelection:
        """Remove the recipe from the nest, if it has one."""
        if not self.chosen:
            return self
        return replace(self.without_first(error), candidates=())

    def with_failures(
        self, failures: Iterable[tuple[TransformSpec, Exception]]
    ) -> NestSelection:
        """Add recipes that could not be applied to the nest."""
        more = ((spec, describe_failure(error)) for spec, error in failures)
        return replace(self, failures=(*self.failures, *more))

    @property
    def why_unchanged(self) -> str:
        """The reason why no recipe was applied, and what to do."""
        nest = self.nest
        if self.best_match.level == MatchLevel.MISS:
            doubts = "".join(f"skipped: {why}; " for _, why in self.failures)
            again = " again, with more trials," if self.best_match.is_tuned else ""
            return (
                f"{doubts}{self.best_match.reason} (workload {nest.form.text}, key "
                f"{nest.key}); tune it{again} with feinsum.tune or 'feinsum tune'"
            )
        if not self.is_separable:
            return (
                f"the loops of {', '.join(nest.instructions)} cannot be run apart from "
                "other instructions; move these to other loops, or state their order"
            )
        return self._why_none_applied

    @property
    def _why_none_applied(self) -> str:
        """The reasons why recipes failed; those that are too slow are only counted."""
        slow = NO_FASTER, NO_FASTER_THAN_GENERATED
        doubts = [why for _, why in self.failures if not why.startswith(slow)]
        n_slow = len(self.failures) - len(doubts)
        if n_slow and not doubts:
            return f"{NOTHING_FASTER} (key {self.nest.key})"
        named = doubts[:MOST_REASONS]
        if len(doubts) > MOST_REASONS:
            named.append(f"and {len(doubts) - MOST_REASONS} more")
        if n_slow:
            named.append(f"{n_slow} are {NO_FASTER}")
        return f"no recorded recipe could be applied: {'; '.join(named)}"


def describe_failure(error: Exception) -> str:
    """Describe an error of any kind in at most 1000 characters."""
    # the text of other errors may lack the cause: that of KeyError is just the key
    text = str(error) if isinstance(error, FeinsumError) else repr(error)
    return text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]} ..."


@dataclass(frozen=True)
class Retrieval:
    """How a kernel was looked up, and the result.

    Attributes:
        t_unit: the transformed kernel; the given one if nothing was applied.
        raised: the given kernel, with its operands behind substitution rules.
        nests: its einsums, in kernel order.
        facts: for each workload that was queried, the ids of all its records.
        policy: the worst acceptable match.
        layers: the layers that were queried.
        gain: the gain of the recipes, in words, with the times of the given kernel and
            of this one; empty if they were not timed.
        batch: the number of cells that a loop over cells computes together, if any;
            then no nest has its own recipe.
    """

    t_unit: lp.TranslationUnit
    raised: RaisedKernel
    nests: tuple[NestSelection, ...]
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    policy: Policy = "default"
    layers: tuple[LayerState, ...] = ()
    gain: str = ""
    batch: int = 0

    @property
    def is_changed(self) -> bool:
        return bool(self.applied) or self.batch > 1

    @property
    def applied(self) -> tuple[TransformSpec, ...]:
        """The recipes in :attr:`t_unit`."""
        return tuple(n.applied for n in self.nests if n.applied is not None)

    @property
    def unchanged(self) -> tuple[NestSelection, ...]:
        """The nests that got no recipe."""
        return tuple(n for n in self.nests if n.applied is None)

    @property
    def is_settled(self) -> bool:
        """Whether the next retrieval would make the same choice."""
        return all(nest.is_settled for nest in self.nests)

    def __repr__(self) -> str:
        applied = ", ".join(map(str, self.applied)) or "unchanged"
        return format_brief(self, f"{self.raised.kernel_name}: {applied}")

    def __str__(self) -> str:
        return "\n".join(_describe_retrieval(self))


def _describe_retrieval(retrieval: Retrieval) -> Iterator[str]:
    kernel = retrieval.raised.t_unit[retrieval.raised.kernel_name]
    for nest in retrieval.nests:
        yield from _describe_nest(nest)
    for refused in retrieval.raised.refused:
        yield f"not raised: {refused.reason}"
        yield f"broken rule: {refused.rule}"
        for insn_id in refused.instructions:
            insn = kernel.id_to_insn.get(insn_id, "(unknown)")
            yield f"instruction {insn_id}: {' '.join(str(insn).split())}"
    yield f"policy: {retrieval.policy}"
    for layer in retrieval.layers:
        yield f"layer {layer}"
    if retrieval.batch > 1:
        yield f"gain: {retrieval.gain}"
        yield f"kernel: cells in batches of {retrieval.batch}"
        return
    n = len(retrieval.applied)
    if n and retrieval.gain:
        yield f"gain: {retrieval.gain}"
    changed = f"{n} of {len(retrieval.nests)} nests transformed"
    yield f"kernel: {changed if n else 'unchanged'}"


def _describe_nest(selection: NestSelection) -> Iterator[str]:
    nest, match = selection.nest, selection.match
    yield (
        f"raised: {nest.einsum.subscripts}, "
        f"{format_count(nest.einsum.batch_size, 'row')}"
    )
    yield f"instructions: {', '.join(nest.instructions)}"
    yield f"scaled by: {', '.join(map(str, nest.scale))}"
    if any(str(shift) != "0" for shift in nest.shift):
        yield f"shifted by: {', '.join(map(str, nest.shift))}"
    for operand in nest.einsum.operands:
        yield f"operand {operand}: {nest.functional.functions[operand.name]}"
    yield f"canonical: {nest.form.text}"
    names = nest.relabeling
    for kind in (names.indices, names.operands, names.size_params):
        if kind:
            yield "relabeling: " + ", ".join(f"{k} -> {v}" for k, v in kind.items())
    yield f"key: {nest.key}"
    yield f"match: {match.level} ({match.reason})"
    for record in match.ranking:
        low, high = record.measurement.speedup_interval
        yield (
            f"  candidate {record.spec}: {record.measurement.median_s * 1e3:.3f} ms, "
            f"speed-up {record.measurement.speedup:.1f} ({low:.1f} to {high:.1f}), "
            f"record {record.id[:12]}"
        )
        yield f"    {_describe_origin(record, is_own=record.id in selection.own_ids)}"
        if record.workload_text != nest.form.text:
            yield f"    in the names of {record.workload_text}"
    for spec, why in selection.failures:
        yield f"  skipped {spec}: {why}"
    for spec, words in selection.seen:
        yield f"  seen here {spec}: {words}"
    if selection.applied is not None:
        yield f"applied: {selection.applied} ({_explain_first(selection)})"
        yield f"trusted: {selection.judgement}"
    elif match.level != MatchLevel.MISS:
        yield f"not applied: {selection.why_unchanged}"


def _describe_origin(record: TuningRecord, *, is_own: bool) -> str:
    """Describe who measured a record: this installation or the claimed recorder."""
    if is_own:
        return f"measured by this installation at {record.recorded_at}"
    # a record may come from anybody, with texts of any length
    recorder = record.provenance.get("recorded_by", "an unknown recorder")
    device = record.environment.device
    return f"recorded by {recorder:.100} on {device!s:.200} at {record.recorded_at:.40}"


def _explain_first(selection: NestSelection) -> str:
    if selection.seen:
        return f"the fastest of {len(selection.seen) + 1} timed here"
    match = selection.match
    if len({record.recipe for record in match.ranking} or match.recipes) == 1:
        return "the only candidate"
    if not match.ranking:
        return "the first of those that were not measured"
    return "the first of those tied as fastest"
