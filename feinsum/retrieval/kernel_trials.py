"""Trials of recipes in the user's own kernel, on the host, and the choice by them.

A recipe replaces loops that the user wrote, with the user's layouts, functions and
other instructions. So the given kernel and the one with the recipe run in turns on the
same arrays, in a separate process. Their results have to agree, even at extents that no
tile divides. No other kernels are generated.

A *variant* is the given kernel in which some nests have recipes. For three einsums, two
of which are equal, these variants are tried, in this order ::

    {0: packed, 1: packed, 2: streamed}   all first candidates: if this kernel is right
                                          and as fast as claimed, the search ends
    {0: packed, 1: packed}                the candidates of equal einsums, one
    {0: generic, 1: generic}              after the other, until one is as good as its
    {2: streamed}                         record claims
    {0: generic, 1: generic, 2: streamed} recipes that gain alone have to gain together
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import loopy as lp

from feinsum.errors import (
    BuildError,
    FeinsumError,
    MeasurementError,
    TransformError,
)
from feinsum.extras import show_progress
from feinsum.measure.verdicts import Verdict, VerificationRequest
from feinsum.records import OK, Device, Environment
from feinsum.retrieval.cell_batches import WIDTHS
from feinsum.retrieval.einsum_trials import MEMORY_BYTES, EinsumTrials
from feinsum.retrieval.generating import (
    BATCH,
    Transformed,
    Variant,
    Variants,
    find_build_failure,
    get_batch_width,
    make_batch_variant,
    make_variant,
)
from feinsum.retrieval.identity import NoTextError, serialize_value
from feinsum.retrieval.kernel_times import (
    N_CELLS,
    KernelTimes,
    choose_loop_sizes,
    choose_ragged_sizes,
    choose_sizes,
    compute_summation_tolerance,
    generate_timed_kernels,
)
from feinsum.retrieval.request import Request
from feinsum.retrieval.result import Candidate, NestSelection, describe_failure
from feinsum.retrieval.search import (
    BORNE_OUT,
    TIED,
    Budget,
    VerifiedRecipe,
    check_verdict,
    estimate_claimed_speedup,
    find_own_verification,
    format_at,
    make_verification,
    select_best,
)
from feinsum.retrieval.verifiers import (
    TRANSIENT,
    CachedVerdict,
    request_verdict,
    start_early,
)
from feinsum.targets.host import HostDevice
from feinsum.targets.layout import bind_sizes_of, get_entry_kernel

logger = logging.getLogger(__name__)


def can_time(request: Request) -> bool:
    """Return whether given kernels can be timed on the device of a request."""
    return isinstance(request.opened, HostDevice)


def choose_in_kernel(
    variants: Variants, environment: Environment, *, has_batches: bool
) -> Transformed:
    """Build the given kernel with the recipes that gain most.

    Args:
        variants: the variants of the kernel.
        environment: the device and the software.
        has_batches: whether a loop over cells may compute several cells together.
    """
    trials = KernelTrials(variants, environment)
    may_batch = has_batches and variants.is_in_loop and variants.request.may_try_forms
    batches = [make_batch_variant(width) for width in WIDTHS] if may_batch else []
    is_sound = all(nest.is_first_usable or not nest.chosen for nest in variants.nests)
    if batches:
        firsts = [make_variant(variants.nests)] if is_sound else []
        trials.verify_together([*firsts, *batches])
    # Similar einsums get the same recipe: a right-hand side has dozens, and separate
    # trials would take minutes.
    groups = _group_nests(variants.nests)
    selected = None
    if is_sound and len(groups) > 1:
        selected = _select_first_candidates(variants.nests, trials)
    if selected is None:
        selected = _select_one_by_one(variants.nests, groups, trials)
    return _with_batch(_build_selected(selected, trials), batches, trials)


def _select_first_candidates(
    nests: Sequence[NestSelection], trials: KernelTrials
) -> list[NestSelection] | None:
    """Select all first candidates, if their kernel is about as good as they claim."""
    variant = make_variant(nests)
    try:
        verification = trials.verify(variant)
    except TransformError as error:
        logger.info("recipes are tried one by one: %s", error)
        return None
    # the kernel should gain at least as much as the einsum that gains least
    claim = min(estimate_claimed_speedup(c, trials.device) for c in variant.values())
    if verification.speedup < max(1.0, BORNE_OUT * claim):
        return None
    return [
        replace(
            nest,
            judgement=trials.reason(variant, k, verification),
            speedup=verification.speedup,
        )
        if k in variant
        else nest
        for k, nest in enumerate(nests)
    ]


def _select_one_by_one(
    nests: Sequence[NestSelection],
    groups: Sequence[tuple[int, ...]],
    trials: KernelTrials,
) -> list[NestSelection]:
    """Choose the best recipe of each group of nests, then keep what gains together."""
    if len(groups) > 1:
        trials.verify_together(
            [
                dict.fromkeys(group, nests[group[0]].candidates[0])
                for group in groups
                if nests[group[0]].is_first_usable
            ]
        )
    selected = [*nests]
    with show_progress(len(groups), "timing recipes") as advance:
        for group in groups:
            best = select_best(nests[group[0]], NestTrials(trials, group))
            for k in group:
                selected[k] = replace(best, nest=nests[k].nest)
            advance()
    if len(_group_nests(selected)) <= 1:
        return selected
    variant = make_variant(selected)
    try:
        trials.verify(variant)
    except TransformError as error:  # each gains alone, but not all of them together
        best = max((selected[k] for k in variant), key=lambda nest: nest.speedup)
        return [
            nest
            if nest.applied == best.applied and nest.nest.key == best.nest.key
            else nest.without_all(error)
            for nest in selected
        ]
    return selected


def _group_nests(nests: Iterable[NestSelection]) -> list[tuple[int, ...]]:
    """Group the numbers of nests with equal workloads and candidates."""
    groups: dict[object, list[int]] = {}
    for k, nest in enumerate(nests):
        if nest.chosen:
            recipes = tuple(candidate.recipe for candidate in nest.candidates)
            groups.setdefault((nest.nest.key, recipes), []).append(k)
    return [tuple(group) for group in groups.values()]


def _build_selected(
    selected: Sequence[NestSelection], trials: KernelTrials
) -> Transformed:
    """Build the kernel with selected recipes."""
    variant = make_variant(selected)
    if not variant:
        return Transformed(trials.variants.request.t_unit, tuple(selected))
    unit, failures = trials.variants.build(variant)
    if not failures:
        return Transformed(unit, tuple(selected), trials.gain(variant))
    # the verdict is from an earlier process, in which the variant could be built
    nests_left = [
        nest.without_all(failures[k]) if k in failures else nest
        for k, nest in enumerate(selected)
    ]
    return _build_selected(nests_left, trials)


def _with_batch(
    chosen: Transformed, batches: Sequence[Variant], trials: KernelTrials
) -> Transformed:
    """Choose the fastest batch of cells, if it beats the chosen recipes."""
    speedups: list[tuple[Variant, float]] = []
    for batch in batches:
        try:
            speedups.append((batch, trials.verify(batch).speedup))
        except TransformError as error:
            logger.info("no batches of %d cells: %s", get_batch_width(batch), error)
    if not speedups:
        return chosen
    chosen_speedup = max(
        (nest.speedup for nest in chosen.nests if nest.chosen), default=0.0
    )
    best = max(chosen_speedup, *(speedup for _, speedup in speedups))
    if make_variant(chosen.nests) and chosen_speedup >= TIED * best:
        return chosen
    batch = next(batch for batch, speedup in speedups if speedup >= TIED * best)
    unit, _ = trials.variants.build(batch)
    return Transformed(unit, (), trials.gain(batch), get_batch_width(batch))


class KernelTrials:
    """Trials of the variants of one given kernel."""

    def __init__(self, variants: Variants, environment: Environment) -> None:
        self.variants = variants
        self.environment = environment
        self.budget = Budget()
        self._einsums = EinsumTrials(environment, self.budget)
        self._foreign = EinsumTrials(environment, self.budget, is_final=False)

    @property
    def device(self) -> Device:
        return self.environment.device

    def recall(self, variant: Variant) -> VerifiedRecipe | None:
        """Return the result of an earlier trial; see :meth:`Trials.recall`.

        Raises:
            TransformError: if the variant must not be used.
        """
        for candidate in variant.values():
            if not candidate.is_builtin:
                self._foreign.recall(candidate)
        verdict = self._get_cached(variant).recall()
        return None if verdict is None else self._make_verification(verdict, variant)

    def verify(self, variant: Variant) -> VerifiedRecipe:
        """Build and time a variant, or recall its trial.

        Raises:
            TransformError: if it cannot be built, is wrong, or is no faster.
        """
        for candidate in variant.values():
            # code of users runs in another process before it runs in this one
            if not candidate.is_builtin:
                self._foreign.verify(candidate)
        cached = self._get_cached(variant)
        if (verdict := cached.recall()) is None:
            with self.budget.count_time():
                start_early()
                self.variants.build(variant)
                verdict = cached.recall_or(lambda: self._time(variant))
        return self._make_verification(verdict, variant)

    def verify_together(self, variants: Sequence[Variant]) -> None:
        """Time several variants in one run of the given kernel; results are cached.

        If that fails, no result is cached, and each is timed alone later.
        """
        if not self.budget.has_time:
            return
        with self.budget.count_time():
            self._time_together(variants)

    def reason(self, variant: Variant, k: int, verification: VerifiedRecipe) -> str:
        """Explain why one nest of a verified variant may have its recipe."""
        if measured := find_own_verification(variant[k]):
            return measured.reason
        verdict = self._get_cached(variant).recall()
        if verdict is None or not verdict.is_ok:
            return verification.reason
        return make_verification(verdict, verdict.message, variant[k]).reason

    def gain(self, variant: Variant) -> str:
        """Describe the gain of the recipes; empty if it was not timed."""
        verdict = self._get_cached(variant).recall()
        if verdict is None or not verdict.is_ok:
            return ""
        gain = f"{verdict.message}{format_at(verdict.sizes)}"
        return f"{gain}, timed on this machine at {verdict.found_at}"

    def _time_together(self, variants: Sequence[Variant]) -> None:
        untimed: list[tuple[Variant, CachedVerdict, lp.TranslationUnit]] = []
        for variant in variants:
            cached = self._get_cached(variant)
            is_builtin = all(candidate.is_builtin for candidate in variant.values())
            if is_builtin and cached.recall() is None:
                unit, failures = self.variants.build(variant)
                if not failures:
                    untimed.append((variant, cached, unit))
        if len(untimed) < 2:
            return
        start_early()
        all_nests = {k: c for variant, _, _ in untimed for k, c in variant.items()}
        try:
            with untimed[0][1].locked():
                times = self._time_units([unit for _, _, unit in untimed], all_nests)
        except Exception as error:  # Loopy raises many kinds; each is tried alone later
            is_unexpected = not isinstance(error, FeinsumError)
            message = "variants are timed one by one: %s"
            logger.info(message, error, exc_info=is_unexpected)
            return
        for (_, cached, _), variant_times in zip(untimed, times, strict=True):
            cached.store(_make_verdict(variant_times, self._sizes))

    def _make_verification(self, verdict: Verdict, variant: Variant) -> VerifiedRecipe:
        """Turn a verdict into the verification of a variant.

        Raises:
            TransformError: if it must not be used.
        """
        candidate = next(iter(variant.values()))
        if verdict.code in TRANSIENT and not verdict.baseline_s:
            return self._without_times(verdict, variant.values())
        if verdict.code == MeasurementError.code:
            raise TransformError(
                f"{verdict.message}, timed on this machine at {verdict.found_at}"
            )
        check_verdict(verdict)
        if measured := find_own_verification(candidate):
            return measured._replace(speedup=verdict.speedup)
        # a kernel's time is that of its recipe only if it does nothing else
        is_alone = len(self.variants.nests) == 1 and not self.variants.is_in_loop
        verification = make_verification(verdict, verdict.message, candidate)
        return verification._replace(seconds=verdict.least_s if is_alone else 0.0)

    def _without_times(
        self, verdict: Verdict, candidates: Iterable[Candidate]
    ) -> VerifiedRecipe:
        """Verify by the einsums, since the given kernel could not be timed.

        Raises:
            TransformError: if a recipe is wrong, or not faster than the kernel that is
                generated for its einsum.
        """
        results = []
        for candidate in candidates:
            if not candidate.recipe.frame:
                raise TransformError(verdict.message)
            try:
                results.append(self._einsums.verify(candidate))
            except TransformError as error:
                raise TransformError(f"{error}; {verdict.message}") from None
        return min(results, key=lambda verification: verification.speedup)

    def _time(self, variant: Variant) -> Verdict:
        unit, failures = self.variants.build(variant)
        for error in failures.values():
            code = getattr(error, "code", TransformError.code)
            return Verdict(code, describe_failure(error))
        try:
            (times,) = self._time_units([unit], variant)
        except BuildError as error:
            if failure := find_build_failure(self.variants.request, unit):
                return Verdict(BuildError.code, describe_failure(failure))
            reason = str(error)
        except FeinsumError as error:
            reason = str(error)
        except Exception as error:  # of Loopy; a failed timing must not break a build
            logger.info("the given kernel was not timed", exc_info=True)
            reason = f"{type(error).__name__}: {error}"
        else:
            return _make_verdict(times, self._sizes)
        message = f"the given kernel was not timed: {reason}"
        return Verdict(MeasurementError.code, message)

    def _time_units(
        self, units: Sequence[lp.TranslationUnit], variant: Variant
    ) -> tuple[KernelTimes, ...]:
        """Time units, using the sizes and tolerances of a variant's recipes.

        Raises:
            FeinsumError: if they cannot be timed.
        """
        opened = self.variants.request.opened
        assert isinstance(opened, HostDevice)
        sizes = self._sizes
        nests = [self.variants.nests[k] for k in variant if k != BATCH]
        tolerances = (compute_summation_tolerance(nest, sizes) for nest in nests)
        timed = generate_timed_kernels(
            self._timed_unit,
            units,
            opened,
            sizes,
            exactness=max(tolerances, default=0.0),
            n_unknown=N_CELLS if self.variants.is_in_loop else 0,
            checked_sizes=() if self.variants.is_in_loop else self._ragged_sizes,
        )
        spec, frame = next(iter(variant.values())).recipe
        limit_s = self.budget.limit_s
        request = VerificationRequest(
            frame, spec, opened.device.id, MEMORY_BYTES, sizes, limit_s
        )
        verdict = timed.request(
            lambda kernels: request_verdict(replace(request, kernels=kernels))
        )
        return timed.times(verdict)

    @property
    def _timed_unit(self) -> lp.TranslationUnit:
        """The given kernel, with the dtypes and sizes of given arguments."""
        raised, request = self.variants.raised, self.variants.request
        return raised.t_unit if request.arguments else request.t_unit

    @cached_property
    def _given_sizes(self) -> dict[str, int]:
        kernel = get_entry_kernel(self._timed_unit)
        return bind_sizes_of(kernel, self.variants.request.arguments or {})

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Values of the integer scalars: as given, or near those of the einsums."""
        kernel = get_entry_kernel(self._timed_unit)
        if self.variants.is_in_loop:
            return choose_loop_sizes(kernel)
        return choose_sizes(kernel, self.variants.raised) | self._given_sizes

    @cached_property
    def _ragged_sizes(self) -> tuple[Mapping[str, int], ...]:
        """Values that no tile divides, for sizes that are only known at run time."""
        kernel = get_entry_kernel(self._timed_unit)
        names = set(self._sizes) - set(self._given_sizes)
        return choose_ragged_sizes(kernel, self._sizes, names & kernel.outer_params())

    def _get_cached(self, variant: Variant) -> CachedVerdict:
        recipes = "\n".join(
            f"{k} {variant[k].recipe.frame} {variant[k].recipe.spec}"
            for k in sorted(variant)
        )
        # a kernel without a text, such as one that calls a function, has no lasting key
        is_kept = all(candidate.is_builtin for candidate in variant.values())
        return CachedVerdict.of(
            ("kernel", self._text, recipes),
            self.environment,
            is_kept=is_kept and bool(self._text),
        )

    @cached_property
    def _text(self) -> str:
        """The text of the given kernel; empty if it has none."""
        try:
            return serialize_value((self._timed_unit, sorted(self._sizes.items())))
        except (NoTextError, MeasurementError) as error:
            logger.info("that it is faster is not cached: %s", error)
            return ""


@dataclass(frozen=True)
class NestTrials:
    """The trials of the candidates of equal nests, in the whole kernel."""

    trials: KernelTrials
    numbers: Collection[int]

    @property
    def budget(self) -> Budget:
        return self.trials.budget

    @property
    def device(self) -> Device:
        return self.trials.device

    def recall(self, candidate: Candidate) -> VerifiedRecipe | None:
        """See :meth:`Trials.recall`."""
        return self.trials.recall(dict.fromkeys(self.numbers, candidate))

    def verify(self, candidate: Candidate) -> VerifiedRecipe:
        """See :meth:`Trials.verify`."""
        return self.trials.verify(dict.fromkeys(self.numbers, candidate))


def _make_verdict(times: KernelTimes, sizes: Mapping[str, int]) -> Verdict:
    """Convert times to a verdict for the cache: ``ok`` if right and faster."""
    code, message = OK, str(times)
    if not times.is_faster:
        code, message = times.failure.code, str(times.failure)
    return Verdict(
        code,
        message,
        least_s=times.kernel_s,
        baseline_s=max(times.given_s, 1e-9),
        sizes=sizes,
    )
