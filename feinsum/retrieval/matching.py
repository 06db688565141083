"""Matching: candidate recipes for an einsum, from facts and from a cost model.

For ``ij,ej->ei`` with 10 by 10 operators, candidates are, in this order::

    recorded for this workload      on this device, its architecture, any device
    recorded at other extents       the nearest, such as 12 by 12
    predicted by the model          the few that it expects to be the fastest
    the recipe for every einsum

The policy of a retrieval limits how far down the list it goes; the effort decides
whether unmeasured recipes count. Facts are queried for all nests of a kernel together,
since a store may be remote.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import NamedTuple

from constantdict import constantdict

from feinsum.canonical import CanonicalForm, WorkloadKey, canonicalize
from feinsum.errors import FeinsumError, InvalidRecordError
from feinsum.ir import PROFILE, BatchedEinsum, from_text, generalize_each
from feinsum.measure.intermediates import get_intermediate_limit_bytes, has_room
from feinsum.measure.own import is_own
from feinsum.predict import Effort, has_vectors, is_outdone, predict_recipes
from feinsum.raising import RaisedNest, regrouped
from feinsum.records import (
    WORST_ACCEPTED,
    Device,
    Environment,
    Extents,
    FramedSpec,
    LookUp,
    Match,
    MatchLevel,
    Policy,
    Remoteness,
    Store,
    TransformSpec,
    TuningRecord,
    find_best_match,
)
from feinsum.records.signature import explain_untrusted, read_trusted_signers
from feinsum.retrieval.identity import is_ours
from feinsum.retrieval.result import Candidate, NestSelection
from feinsum.transforms import REGISTRY, list_configurations, suits_device
from feinsum.transforms.host import fuses_affine_operands
from feinsum.transforms.library import GENERIC


@dataclass
class MatchingFacts:
    """The records of a store for a device and a policy.

    Related queries are sent together, since a store may be remote. If trusted signers
    are configured, facts of other signers are skipped.

    Attributes:
        wanted: forms that are queried together with the first query.

    Raises:
        SignatureError: if the setting of trusted signers is invalid.
    """

    store: Store
    device: Device
    policy: Policy
    wanted: Sequence[CanonicalForm] = ()
    _records: dict[WorkloadKey, tuple[TuningRecord, ...]] = field(default_factory=dict)
    _signers: frozenset[str] = field(default_factory=read_trusted_signers)

    def query_forms(
        self, forms: Iterable[CanonicalForm], *, counts: bool = True
    ) -> None:
        """Query the workloads that were not queried yet.

        Args:
            forms: the forms of the workloads.
            counts: see :class:`feinsum.records.LookUp`.

        Raises:
            StoreError: if the store fails.
        """
        texts = {f.key: f.text for f in forms if f.key not in self._records}
        if texts:
            look_up = LookUp(texts, self.device, self.policy, counts)
            self._records.update(self.store.candidates(look_up))

    def of(self, form: CanonicalForm) -> tuple[TuningRecord, ...]:
        """Return the trusted records of a workload."""
        self.query_forms([form, *self.wanted])
        doubts = self._list_doubts(form.key)
        return tuple(r for r in self._records[form.key] if r.id not in doubts)

    def list_passed_over(self, form: CanonicalForm) -> list[tuple[TransformSpec, str]]:
        """List the recipes of a workload's untrusted records, with the reasons."""
        doubts = self._list_doubts(form.key)
        return [
            (record.spec, f"record {record.id[:12]}: {doubts[record.id]}")
            for record in self._records.get(form.key, ())
            if record.id in doubts
        ]

    def _list_doubts(self, workload: WorkloadKey) -> dict[str, str]:
        """Return the records without a trusted signer, by id, with the reason."""
        if not self._signers:
            return {}
        doubts = {
            record.id: explain_untrusted(record, self._signers)
            for record in self._records.get(workload, ())
        }
        return {record_id: why for record_id, why in doubts.items() if why}

    @property
    def ids(self) -> Mapping[str, tuple[str, ...]]:
        """For each workload that was queried, the ids of its records."""
        return {
            workload: tuple(record.id for record in records)
            for workload, records in self._records.items()
        }


logger = logging.getLogger(__name__)

N_PREDICTED = 3
"""Predictions that are tried; each is verified before it is used."""
MOST_DOUBTED = 20
"""Maximum facts without a trusted signature that an explanation lists."""
FRAME_FACTOR = 16
"""Maximum length of an older text of a workload, as a multiple of the current one."""


class LookupForm(NamedTuple):
    """A canonical form under which facts are looked up.

    Attributes:
        sizes: values of its size parameters, as far as they are known.
        is_nearest: whether one of these sizes is a literal extent in the kernel.
    """

    form: CanonicalForm
    sizes: Mapping[str, int]
    is_nearest: bool = False


class Nearest(NamedTuple):
    """The match of one form of an einsum.

    Attributes:
        k: the position of the form among those that were looked up.
        is_nearest: whether the facts may be for other extents.
        sizes: values of the size parameters of the form.
        effort: determines whether unmeasured recipes may be used.
    """

    k: int
    is_nearest: bool
    form: CanonicalForm
    records: list[TuningRecord]
    extents: Extents
    environment: Environment
    policy: Policy
    sizes: Mapping[str, int]
    effort: Effort = "recorded"

    def match(self, without: Collection[FramedSpec] = ()) -> Match:
        """Return the best match, or an unmeasured recipe if accepted.

        Args:
            without: recipes to exclude.
        """
        match = find_best_match(
            [record for record in self.records if record.recipe not in without],
            self.environment,
            self.policy,
            is_nearest=self.is_nearest,
            extents=self.extents,
        )
        if self.effort == "recorded":
            return match
        # a recipe with records is not unmeasured, even if these match at a worse level
        tried = {*(record.recipe for record in self.records), *without}
        worst = WORST_ACCEPTED[self.policy]
        for level, is_wanted, list_recipes, why in (
            (
                MatchLevel.PREDICTED,
                match.level > MatchLevel.PREDICTED,
                self._list_predicted,
                "is expected to be the fastest, and was not measured",
            ),
            (
                MatchLevel.GENERIC,
                match.level == MatchLevel.MISS,
                self._list_generic,
                "is for every einsum, and was not measured",
            ),
        ):
            if not is_wanted or worst < level:
                continue
            recipes = (FramedSpec(spec, self.form.text) for spec in list_recipes())
            if untried := tuple(r.spec for r in recipes if r not in tried):
                reason = f"{match.reason}; {untried[0]} {why}"
                return Match(level, reason, recipes=untried)
        return match

    def _list_predicted(self) -> Sequence[TransformSpec]:
        """Return predicted recipes, which only a form at the kernel's extents has."""
        if self.is_nearest:
            return ()
        einsum, sizes = self.form.einsum, constantdict(self.sizes)
        limit = get_intermediate_limit_bytes(einsum, sizes)
        return _list_predictions(einsum, sizes, self.environment.device, limit)

    def _list_generic(self) -> list[TransformSpec]:
        """Return the recommended configuration of the family that fits every einsum.

        It is returned even if a search would not try it.
        """
        kind = self.environment.device.kind
        suited = [
            transform
            for (name, _), transform in sorted(REGISTRY.items())
            if name == GENERIC.name and kind in transform.devices
        ]
        if not suited:
            return []
        return [*islice(list_configurations(suited[-1], self.form.einsum), 1)]

    def candidates(self, match: Match) -> Iterator[Candidate]:
        """Yield all recipes: those of the match, then those of the next level, etc."""
        seen: set[FramedSpec] = set()
        extents = {**self.extents, self.form.text: self.sizes}
        while match.is_hit:
            generic = (FramedSpec(spec, self.form.text) for spec in match.recipes)
            recorded = (record.recipe for record in match.ranking)
            for recipe in dict.fromkeys((*recorded, *generic)):
                seen.add(recipe)
                yield Candidate(
                    recipe,
                    match,
                    extents[recipe.frame],
                    own_record=self._find_own_record(recipe, match),
                    is_builtin=is_ours(recipe.spec),
                )
            match = self.match(without=seen)

    def _find_own_record(self, recipe: FramedSpec, match: Match) -> TuningRecord | None:
        """Return this installation's best record of a recipe with this software."""
        if match.level != MatchLevel.EXACT:
            return None
        # the ranking has outdated records last
        return next(
            (
                record
                for record in match.ranking
                if record.recipe == recipe
                and record.environment.software == self.environment.software
                and is_own(record.id)
            ),
            None,
        )


def select_candidates(
    nest: RaisedNest,
    facts: MatchingFacts,
    environment: Environment,
    policy: Policy,
    effort: Effort,
) -> NestSelection:
    """Select all recipes that are recorded for a nest, at any extents, or predicted."""
    nests: list[RaisedNest] = []

    def list_forms() -> Iterator[LookupForm]:
        for variant, has_other_extents in list_lookup_variants(nest):
            nests.append(variant)
            yield build_lookup_form(
                variant.form, variant.generalized, is_nearest=has_other_extents
            )

    best, match = find_nearest(list_forms(), facts, environment, policy, effort)
    forms_seen = {variant.form.key: variant.form for variant in nests}.values()
    doubted = [d for form in forms_seen for d in facts.list_passed_over(form)]
    candidates = _prefer_prediction(best, tuple(best.candidates(match)))
    candidates = _move_libraries_last(nests[best.k], candidates)
    first_match = candidates[0].match if candidates else match
    is_exact = first_match.level == MatchLevel.EXACT
    ranking = first_match.ranking if is_exact else ()
    return NestSelection(
        nests[best.k],
        match,
        # this installation's measurements come before claims by others
        tuple(sorted(candidates, key=lambda candidate: candidate.own_record is None)),
        tuple(doubted[:MOST_DOUBTED]),
        own_ids=frozenset(record.id for record in ranking if is_own(record.id)),
    )


def _move_libraries_last(
    nest: RaisedNest, candidates: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """Move recipes that call libraries last, if an operand is evaluated for them.

    They were timed with plain arrays. The contraction kernel also takes affine
    functions of one array; any other operand is first evaluated to memory.
    """
    is_fused = fuses_affine_operands(nest.einsum)
    if all(
        function.is_plain_read() or (is_fused and function.is_affine_read())
        for function in nest.functions.values()
    ):
        return candidates
    return tuple(
        sorted(candidates, key=lambda candidate: candidate.recipe.spec.is_on_host)
    )


def _prefer_prediction(
    nearest_match: Nearest, candidates: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """Put a faster prediction before a recipe that another microarchitecture recorded.

    For example, a processor that splits 512-bit vectors into halves prefers narrower
    vectors, which run at half the speed on a processor that does not.
    """
    predicted = next(
        (c for c in candidates if c.match.level == MatchLevel.PREDICTED), None
    )
    if predicted is None:
        return candidates
    first = candidates[0]
    # a recipe recorded on this microarchitecture is more reliable than any model
    is_foreign = first.match.remoteness.is_other_microarchitecture
    if not is_foreign or first.recipe.frame != nearest_match.form.text:
        return candidates
    specs = first.recipe.spec, predicted.recipe.spec
    device = nearest_match.environment.device
    if not is_outdone(nearest_match.form.einsum, nearest_match.sizes, device, *specs):
        return candidates
    return (predicted, *(c for c in candidates if c is not predicted))


def list_lookup_variants(nest: RaisedNest) -> Iterator[tuple[RaisedNest, bool]]:
    """Yield all variants of a nest to look up, and whether each generalizes an extent.

    The nest itself comes first, then variants that join operands of equal indices.
    """
    for grouped in chain([nest], regrouped(nest)):
        yield grouped, False
        yield from ((general, True) for general in grouped.generalize_each())


def build_lookup_form(
    form: CanonicalForm, sizes: Mapping[str, int], *, is_nearest: bool = False
) -> LookupForm:
    """Build the form to look up, with its size parameters' values and a profile."""
    names = form.relabeling.size_params
    all_sizes = {names[name]: n for name, n in sizes.items() if name in names}
    all_sizes |= {name: n for name, n in sizes.items() if name.startswith(PROFILE)}
    return LookupForm(form, all_sizes, is_nearest)


def list_lookup_forms(
    einsum: BatchedEinsum, sizes: Mapping[str, int]
) -> Iterator[LookupForm]:
    """Yield the forms of an einsum with size parameters, beginning with its own.

    Args:
        einsum: the einsum.
        sizes: the values of its size parameters, and a profile.
    """
    yield build_lookup_form(canonicalize(einsum), sizes)
    for other, more in generalize_each(einsum):
        yield build_lookup_form(canonicalize(other), {**sizes, **more}, is_nearest=True)


def find_nearest(
    forms: Iterable[LookupForm],
    facts: MatchingFacts,
    environment: Environment,
    policy: Policy,
    effort: Effort = "recorded",
) -> tuple[Nearest, Match]:
    """Find the form with the best match; query other forms only if the first has none.

    Recipes are excluded if they are for another kind of device, if the processor lacks
    their vectors, or if their intermediates exceed the memory limit.

    Args:
        forms: forms of the einsum, followed by others, such as at other extents.
        facts: the records of the workloads.
        environment: the device and the software.
        policy: which matches are accepted.
        effort: which unmeasured recipes are allowed, if any.
    """

    def match_form(k: int, form_queried: LookupForm) -> tuple[Nearest, Match]:
        form, sizes, is_nearest = form_queried
        sound, extents = _list_sound_records(form, sizes, facts)
        records = [
            record
            for record in sound
            if _can_run(record, form, extents, environment.device)
        ]
        candidate_form = Nearest(
            k, is_nearest, form, records, extents, environment, policy, sizes, effort
        )
        return candidate_form, candidate_form.match()

    # other forms take time to canonicalize; an exact fact makes them unnecessary
    remaining = iter(forms)
    first = match_form(0, next(remaining))
    # levels are ordered from the best to the worst
    if first[1].level < MatchLevel.NEAREST_EXTENTS:
        return first
    other_forms = list(remaining)
    # do not count a miss of a generalized workload as demand: no kernel has it
    facts.query_forms((form_queried.form for form_queried in other_forms), counts=False)
    matches = [
        match_form(k, form_queried)
        for k, form_queried in enumerate(other_forms, start=1)
    ]
    return min([first, *matches], key=lambda form_queried: _rank_match(*form_queried))


def _rank_match(
    form_matched: Nearest, match: Match
) -> tuple[MatchLevel, bool, Remoteness, float, int]:
    remoteness = match.remoteness
    return match.level, not match.ranking, remoteness, match.distance, form_matched.k


@lru_cache(maxsize=256)
def _list_predictions(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    limit: int,
) -> tuple[TransformSpec, ...]:
    """Return the first few predicted recipes that a kernel can contain.

    Args:
        einsum: the einsum.
        sizes: the values of its size parameters.
        device: the device to run on.
        limit: maximum bytes of the intermediates of a recipe.
    """
    ranking = predict_recipes(einsum, sizes, device, intermediate_bytes=limit)
    code = (prediction.spec for prediction in ranking if not prediction.spec.is_on_host)
    return tuple(islice(code, N_PREDICTED))


def _list_sound_records(
    form: CanonicalForm, sizes: Mapping[str, int], facts: MatchingFacts
) -> tuple[list[TuningRecord], Extents]:
    """Return a workload's records, and the extents in the names of each of its texts.

    Records under its key that are of another workload are logged and left out.
    """
    records = facts.of(form)
    extents: dict[str, Mapping[str, int]] = {}
    doubts: dict[str, str] = {}
    for frame in sorted({record.workload_text for record in records}):
        try:
            extents[frame] = _translate_extents(frame, form, sizes)
        except FeinsumError as error:
            doubts[frame] = str(error)
    for record in records:
        if doubt := doubts.get(record.workload_text):
            logger.error("skipped record %s: %.1000s", record.id, doubt)
    return [r for r in records if r.workload_text in extents], extents


def _can_run(
    record: TuningRecord, form: CanonicalForm, extents: Extents, device: Device
) -> bool:
    """Return whether a recipe fits the device, and its intermediates the memory."""
    spec, frame = record.recipe
    if not suits_device(spec, device.kind):
        return False
    # its names are those of the frame
    einsum = form.einsum if frame == form.text else from_text(frame)
    # a device has the vectors of a recipe that it measured
    is_measured_here = record.environment.device.is_surely(device)
    if not (is_measured_here or has_vectors(spec, einsum, device)):
        return False
    return has_room(spec, einsum, extents[frame])


def _translate_extents(
    frame: str, form: CanonicalForm, sizes: Mapping[str, int]
) -> Mapping[str, int]:
    """Return the extents in the names of a text of the workload.

    An older version of the canonicalizer may have written the text.

    Raises:
        InvalidRecordError: if the text is of another workload, or of none.
    """
    if frame == form.text:
        return sizes
    # do not spend time parsing a long text, which a database may contain
    if len(frame) > FRAME_FACTOR * len(form.text):
        raise InvalidRecordError(f"its text of {len(frame)} characters is too long")
    try:
        form_of_frame = canonicalize(from_text(frame))
    except FeinsumError as error:
        raise InvalidRecordError(
            f"its text {frame!r} is not an einsum that can be canonicalized: {error}"
        ) from None
    if form_of_frame.text != form.text:
        raise InvalidRecordError(
            f"it has the key of another workload: {frame!r} is not {form.text!r}"
        )
    names = form_of_frame.relabeling.size_params
    nodes = {name: n for name, n in sizes.items() if name.startswith(PROFILE)}
    extents = {name: sizes[names[name]] for name in names if names[name] in sizes}
    return nodes | extents
