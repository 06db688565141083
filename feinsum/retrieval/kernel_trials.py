"""Trials of recipes in the user's own kernel, on the host.

A recipe replaces loops that the user wrote, with the user's layouts, functions and
other instructions. So the given kernel and the one with the recipe run in turns on the
same arrays, in a separate process; their results have to agree, also at extents that no
tile divides. Only the kernels that the user has and gets are generated for that.

A *form* is the given kernel in which some nests have recipes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import loopy as lp

from feinsum.cache import default_cache
from feinsum.errors import (
    BuildError,
    FeinsumError,
    MeasurementError,
    TransformError,
)
from feinsum.measure.judging import quick_sizes
from feinsum.measure.question import Question, Verdict
from feinsum.measure.reference import reference_of
from feinsum.measure.verification import tolerance_for
from feinsum.raising import RaisedKernel
from feinsum.records import (
    OK,
    Environment,
    FramedSpec,
    Level,
    Match,
    TransformSpec,
)
from feinsum.retrieval.applying import applied
from feinsum.retrieval.cell_batches import batched
from feinsum.retrieval.einsum_trials import (
    MEMORY_BYTES,
    Budget,
    EinsumTrials,
    Verification,
    check_verdict,
    own_verification,
    verified,
)
from feinsum.retrieval.generating import (
    delivered,
    generation_failures,
    in_caller,
    with_shelf,
)
from feinsum.retrieval.installation import is_ours
from feinsum.retrieval.kernel_text import NoTextError, text_of
from feinsum.retrieval.kernel_times import (
    KernelTimes,
    ragged_sizes,
    timed_kernels,
)
from feinsum.retrieval.request import Request
from feinsum.retrieval.selection import Candidate, NestSelection, reason_of
from feinsum.retrieval.verdicts import TRANSIENT, CachedVerdict
from feinsum.retrieval.verifiers import request_verdict, start_early
from feinsum.targets.host import HostDevice
from feinsum.targets.layout import bind_sizes_of, entry_kernel
from feinsum.targets.quiet import quiet
from feinsum.targets.units import CodedUnit

logger = logging.getLogger(__name__)

UNKNOWN_SIZE = 1000
"""Extent of a loop that belongs to no einsum."""
N_CELLS = 1003
"""Cells of a loop over cells; no batch size divides it."""

Form = Mapping[int, Candidate]
"""Recipes by the numbers of their nests; see also :func:`batch_form`."""
BATCH = -1
"""In place of the number of a nest: the loop over cells that calls it."""


Built = tuple[lp.TranslationUnit, Mapping[int, Exception]]
"""A form as the user gets it, and why recipes fail, by nest."""


@dataclass(frozen=True)
class Forms:
    """The forms of a given kernel, each built once.

    Attributes:
        are_timed: whether each is compiled by its trial, beside the given kernel; else
            it is compiled when it is built.
    """

    request: Request
    raised: RaisedKernel
    nests: tuple[NestSelection, ...]
    are_timed: bool = False
    _built: dict[object, Built] = field(default_factory=dict)

    @property
    def is_in_loop(self) -> bool:
        """Whether the einsums are those of a kernel that the given one calls."""
        return bool(self.raised.t_unit.entrypoints != self.request.t_unit.entrypoints)

    def build(self, form: Form) -> Built:
        """Build a form.

        Its code is generated, and in the cache once it is compiled, where the first run
        finds it.
        """
        key = tuple(sorted((k, c.recipe) for k, c in form.items()))
        if key not in self._built:
            try:
                built = self._build(form)
            except Exception as error:  # noqa: BLE001  (no recipe may break a build)
                built = self.request.t_unit, dict.fromkeys(form, error)
            self._built[key] = built
        return self._built[key]

    def _build(self, form: Form) -> Built:
        given = self.request.t_unit
        if BATCH in form:
            width = int(str(form[BATCH].recipe.spec.parameters["width"]))
            try:
                return batched(given, width), {}
            except Exception as why:  # noqa: BLE001  (no form may break a build)
                return given, {BATCH: why}
        nests = [
            replace(one, candidates=(form[k],))
            if k in form
            else replace(one, is_separable=False)
            for k, one in enumerate(self.nests)
        ]
        made = applied(self.raised, nests)
        if made.failures:
            return given, made.failures
        unit = with_shelf(delivered(made.unit, self.raised.t_unit.target))
        failures = generation_failures(self.raised, nests, made, unit)
        error: Exception | None = None
        if not failures:
            try:
                unit = in_caller(given, unit)
                error = None if self.are_timed else build_failure(self.request, unit)
            except TransformError as misfit:
                error = misfit
        if error is not None:
            failures = dict.fromkeys(form, error)
        return unit, failures


def build_failure(request: Request, unit: lp.TranslationUnit) -> BuildError | None:
    """Why a unit that is run here does not compile."""
    is_coded = isinstance(unit, CodedUnit) and unit.shelf.code()
    if not is_coded or default_cache() is None:
        return None
    try:
        with quiet(Warning):  # Loopy's, as when code is generated
            request.opened.build(unit)
    except BuildError as error:
        return error
    except FeinsumError:  # there is no compiler, as the first run will say
        return None
    return None


def batch_form(width: int) -> Form:
    """The given loop over cells, of which so many are computed together."""
    spec = TransformSpec("cells", 1, {"width": width})
    words = "no record is about batches of cells"
    return {BATCH: Candidate(FramedSpec(spec, ""), Match(Level.MISS, words))}


def can_time(request: Request) -> bool:
    """Whether given kernels are timed on the device of a request."""
    return isinstance(request.opened, HostDevice)


class KernelTrials:
    """Trials of the forms of one given kernel."""

    def __init__(self, forms: Forms, environment: Environment) -> None:
        self.forms = forms
        self.environment = environment
        self.budget = Budget()
        self._einsums = EinsumTrials(environment, self.budget)
        self._foreign = EinsumTrials(environment, self.budget, is_final=False)

    def recall(self, form: Form) -> Verdict | None:
        """The result of an earlier trial of a form."""
        return self._cached(form).recall()

    def known(self, form: Form) -> Verification | None:
        """What earlier trials found; see :meth:`Trials.known`.

        Raises:
            TransformError: if the form must not be used.
        """
        for candidate in form.values():
            if not is_ours(candidate.recipe.spec):
                self._foreign.known(candidate)
        verdict = self.recall(form)
        return None if verdict is None else self._verification(verdict, form)

    def verify(self, form: Form) -> Verification:
        """Build and time a form, or recall its trial.

        Raises:
            TransformError: if it cannot be built, is wrong, or is no faster.
        """
        self._check_foreign(form)
        place = self._cached(form)
        if (verdict := place.recall()) is None:
            with self.budget.spending():
                start_early()
                self.forms.build(form)
                with place.locked():  # another process may be timing it
                    if (verdict := place.recall()) is None:
                        verdict = self._time(form)
                        place.store(verdict)
        return self._verification(verdict, form)

    def reason(self, form: Form, k: int, found: Verification) -> str:
        """Why one nest of a form that was verified may have its recipe."""
        if own := own_verification(form[k], self.environment):
            return own.reason
        verdict = self.recall(form)
        if verdict is None or not verdict.is_ok:
            return found.reason
        return verified(verdict, verdict.message, form[k]).reason

    def gain(self, form: Form) -> str:
        """What the user has of the recipes, in words; empty if that was not timed."""
        verdict = self.recall(form)
        if verdict is None or not verdict.is_ok:
            return ""
        return f"{verdict.message}, timed on this machine at {verdict.found_at}"

    def verify_together(self, forms: Sequence[Form]) -> None:
        """Time several forms in one run of the given kernel; results are cached.

        If that fails, nothing is known about any of them.
        """
        if not self.budget.has_time:
            return
        with self.budget.spending():
            self._time_together(forms)

    def _time_together(self, forms: Sequence[Form]) -> None:
        new: list[tuple[Form, CachedVerdict, lp.TranslationUnit]] = []
        for form in forms:
            place = self._cached(form)
            if place.recall() is None and all(
                is_ours(c.recipe.spec) for c in form.values()
            ):
                unit, failures = self.forms.build(form)
                if not failures:
                    new.append((form, place, unit))
        if len(new) < 2:
            return
        start_early()
        all_nests = {k: c for form, _, _ in new for k, c in form.items()}
        try:
            with new[0][1].locked():
                times = self._times([unit for _, _, unit in new], all_nests)
        except Exception as error:  # of Loopy, of many kinds; each is tried alone
            is_odd = not isinstance(error, FeinsumError)
            logger.info("forms are timed one by one: %s", error, exc_info=is_odd)
            return
        for (_, place, _), one in zip(new, times, strict=True):
            place.store(_verdict_of(one))

    def _check_foreign(self, form: Form) -> None:
        """Try user-defined transforms in a separate process before they are applied.

        Raises:
            TransformError: if one fails there.
        """
        for candidate in form.values():
            if not is_ours(candidate.recipe.spec):
                self._foreign.verify(candidate)

    def _verification(self, verdict: Verdict, form: Form) -> Verification:
        """The verification of a form by a verdict.

        Raises:
            TransformError: if it must not be used.
        """
        candidate = next(iter(form.values()))
        if verdict.code in TRANSIENT and not verdict.baseline_s:
            return self._without_times(verdict, form.values())
        if verdict.code == MeasurementError.code:
            raise TransformError(
                f"{verdict.message}, timed on this machine at {verdict.found_at}"
            )
        check_verdict(verdict)
        if own := own_verification(candidate, self.environment):
            return own._replace(speedup=verdict.speedup)
        is_alone = len(self.forms.nests) == 1 and not self.forms.is_in_loop
        seconds = verdict.least_s if is_alone else 0.0
        found = verified(verdict, verdict.message, candidate)
        return found._replace(seconds=seconds)

    def _without_times(
        self, verdict: Verdict, candidates: Iterable[Candidate]
    ) -> Verification:
        """The verification where the given kernel could not be timed: by the einsums.

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
        return min(results, key=lambda one: one.speedup)

    def _time(self, form: Form) -> Verdict:
        unit, failures = self.forms.build(form)
        for error in failures.values():
            code = (
                error.code if isinstance(error, FeinsumError) else TransformError.code
            )
            return Verdict(code, reason_of(error))
        try:
            (times,) = self._times([unit], form)
        except BuildError as error:
            if failure := build_failure(self.forms.request, unit):
                return Verdict(BuildError.code, reason_of(failure))
            why = str(error)
        except FeinsumError as error:
            why = str(error)
        except Exception as error:  # of Loopy, of many kinds; no timing breaks a build
            logger.info("the given kernel was not timed", exc_info=True)
            why = f"{type(error).__name__}: {error}"
        else:
            return _verdict_of(times)
        return Verdict(MeasurementError.code, f"the given kernel was not timed: {why}")

    def _times(
        self, units: Sequence[lp.TranslationUnit], form: Form
    ) -> tuple[KernelTimes, ...]:
        """The times of units, in which recipes are those of a form.

        Raises:
            FeinsumError: if they cannot be timed.
        """
        opened = self.forms.request.opened
        assert isinstance(opened, HostDevice)
        sizes = self._sizes
        nests = [self.forms.nests[k] for k in form if k != BATCH]
        timed = timed_kernels(
            self._given,
            units,
            opened,
            sizes,
            exactness=max((_tolerance(one, sizes) for one in nests), default=0.0),
            n_unknown=N_CELLS if self.forms.is_in_loop else 0,
            checked_sizes=() if self.forms.is_in_loop else self._ragged_sizes,
        )
        spec, frame = next(iter(form.values())).recipe
        limit_s = self.budget.limit_s
        question = Question(frame, spec, opened.device.id, MEMORY_BYTES, sizes, limit_s)
        verdict = timed.request(
            lambda kernels: request_verdict(replace(question, kernels=kernels))
        )
        return timed.times(verdict)

    @property
    def _given(self) -> lp.TranslationUnit:
        """The given kernel, with the dtypes and sizes of given arguments."""
        raised, request = self.forms.raised, self.forms.request
        return raised.t_unit if request.arguments else request.t_unit

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Values of the integer scalars: as given, or near those of the einsums."""
        kernel = entry_kernel(self._given)
        if self.forms.is_in_loop:
            return sizes_of_loop(kernel)
        scalars = _integer_scalars(kernel)
        loops = scalars & kernel.outer_params()
        sizes = dict.fromkeys(sorted(loops), UNKNOWN_SIZE)
        for one in self.forms.raised.raised:
            quick = quick_sizes(one.einsum, one.generalized)
            sizes |= {name: n for name, n in quick.items() if name in scalars}
        return sizes | self._given_sizes

    @cached_property
    def _given_sizes(self) -> dict[str, int]:
        kernel = entry_kernel(self._given)
        return bind_sizes_of(kernel, self.forms.request.arguments or {})

    @cached_property
    def _ragged_sizes(self) -> tuple[Mapping[str, int], ...]:
        """Sizes that no tile divides, of those that are known at run time alone."""
        kernel = entry_kernel(self._given)
        names = set(self._sizes) - set(self._given_sizes)
        return ragged_sizes(kernel, self._sizes, names & kernel.outer_params())

    def _cached(self, form: Form) -> CachedVerdict:
        recipes = "\n".join(
            f"{k} {form[k].recipe.frame} {form[k].recipe.spec}" for k in sorted(form)
        )
        specs = [candidate.recipe.spec for candidate in form.values()]
        parts = "kernel", self._text, recipes
        place = CachedVerdict.of(parts, self.environment, specs)
        return place if self._text else place._replace(cache=None)

    @cached_property
    def _text(self) -> str:
        """The text of the given kernel; empty if it has none."""
        try:
            return text_of((self._given, sorted(self._sizes.items())))
        except (NoTextError, MeasurementError) as error:
            logger.info("that it is faster is not cached: %s", error)
            return ""


@dataclass(frozen=True)
class NestTrials:
    """The trials of the candidates of nests that are alike, in the whole kernel."""

    trials: KernelTrials
    numbers: Collection[int]

    @property
    def budget(self) -> Budget:
        return self.trials.budget

    @property
    def environment(self) -> Environment:
        return self.trials.environment

    def known(self, candidate: Candidate) -> Verification | None:
        """See :meth:`Trials.known`."""
        return self.trials.known(self.form(candidate))

    def verify(self, candidate: Candidate) -> Verification:
        """See :meth:`Trials.verify`."""
        return self.trials.verify(self.form(candidate))

    def form(self, candidate: Candidate) -> Form:
        return dict.fromkeys(self.numbers, candidate)


def _integer_scalars(kernel: lp.LoopKernel) -> set[str]:
    return {
        arg.name
        for arg in kernel.args
        if isinstance(arg, lp.ValueArg)
        and (arg.dtype is None or arg.dtype.numpy_dtype.kind in "iu")
    }


def sizes_of_loop(kernel: lp.LoopKernel) -> dict[str, int]:
    """The values of the scalars of a loop over some cells.

    Raises:
        MeasurementError: if a scalar is no size.
    """
    scalars = [arg for arg in kernel.args if isinstance(arg, lp.ValueArg)]
    if any(arg.dtype.numpy_dtype.kind not in "iu" for arg in scalars):
        raise MeasurementError("a scalar argument is no size")
    sizes = {arg.name: N_CELLS for arg in scalars}
    if len(scalars) == 2:
        sizes[scalars[0].name] = 0  # where cells begin
    return sizes


def _verdict_of(times: KernelTimes) -> Verdict:
    """A verdict that can be cached: ``ok`` for a form that is right and faster."""
    code, message = OK, str(times)
    if not times.is_faster:
        code, message = times.failure.code, str(times.failure)
    return Verdict(
        code,
        message,
        least_s=times.kernel_s,
        baseline_s=max(times.given_s, 1e-9),
    )


def _tolerance(one: NestSelection, sizes: Mapping[str, int]) -> float:
    """How far the results of two orders of an einsum's sums may be apart."""
    einsum = one.nest.einsum
    dtype = min(einsum.output_dtypes, key=lambda d: d.itemsize)
    known = {**sizes, **one.nest.generalized}
    known = {x.name: known.get(x.name, UNKNOWN_SIZE) for x in einsum.size_params}
    try:
        return 2 * tolerance_for(dtype, reference_of(einsum).n_terms(known))
    except FeinsumError:
        return 0.0
