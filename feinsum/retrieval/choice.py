"""The recipes of a kernel: records say what is tried first, times say what is used.

Candidates are tried in the order of their records, until one is about as good here as
its record claims. The fastest of all candidates that were tried here is used. So a
record that claims too much costs one trial and displaces nothing.

Of a kernel with several einsums, the first candidates are tried together. If that
kernel is right and faster, as most are, nothing else is built. If not, the recipes of
each einsum are tried alone, and those that gain something remain.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import NamedTuple

import loopy as lp

from feinsum.errors import TransformError
from feinsum.ir import from_text
from feinsum.measure.judging import quick_sizes
from feinsum.measure.reference import einsum_operations, footprint_bytes
from feinsum.raising import RaisedKernel
from feinsum.records import Device, Environment
from feinsum.retrieval.cell_batches import WIDTHS
from feinsum.retrieval.einsum_trials import (
    EinsumTrials,
    Trials,
    Verification,
    own_ids,
    own_verification,
)
from feinsum.retrieval.installation import is_ours
from feinsum.retrieval.kernel_trials import (
    Form,
    Forms,
    KernelTrials,
    NestTrials,
    batch_form,
    can_time,
)
from feinsum.retrieval.progress import shown_progress
from feinsum.retrieval.request import Request
from feinsum.retrieval.selection import NO_FASTER, Candidate, NestSelection

logger = logging.getLogger(__name__)

N_NEW = 5
"""Recipes of an einsum that one retrieval verifies and times."""
N_UNBUILT = 5
"""Recipes of a nest with which the kernel may fail to build, if none is timed."""
BORNE_OUT = 0.5
"""Part of a recorded speed-up that has to be seen here to end the search."""
TIED = 0.95
"""Part of the best speed-up from which candidates are equally good. The first of these
is used, so that noise does not choose between them."""
UNVERIFIED = "not verified on this machine: verification is off"
AT_ONCE = 64
"""Candidates whose earlier results are looked up together."""

Nests = tuple[NestSelection, ...]


class Transformed(NamedTuple):
    """A kernel with the best recipes, as the user gets it.

    Attributes:
        unit: the given one if no nest has a recipe.
        gain: what the user has of the recipes, in words; empty if that was not timed.
        batch: how many cells a loop over cells computes together, if that is what it
            gains most by; then no nest has a recipe.
    """

    unit: lp.TranslationUnit
    nests: Nests
    gain: str = ""
    batch: int = 0


def choose_recipes(
    request: Request,
    raised: RaisedKernel,
    nests: Nests,
    environment: Environment,
    *,
    has_batches: bool = True,
) -> Transformed:
    """Choose a recipe for each nest, and build the kernel with them.

    Where recipes are verified, they are tried in the given kernel if that can be timed,
    and else in kernels that are generated for their einsums.

    Args:
        has_batches: whether a loop over cells may compute several together.
    """
    nests = tuple(_own_first(one, environment) if one.chosen else one for one in nests)
    is_timed = request.verify and can_time(request)
    forms = Forms(request, raised, nests, is_timed)
    if not request.verify:
        return _build_selected(forms, nests, partial(_first_that_fits, environment))
    if is_timed:
        kernel = KernelTrials(forms, environment)
        may_batch = has_batches and forms.is_in_loop and request.may_try_forms
        batches = {width: batch_form(width) for width in WIDTHS} if may_batch else {}
        firsts = [_form_of(nests)] if all(map(_is_sound, nests)) else []
        if batches:
            kernel.verify_together([*firsts, *batches.values()])
        chosen = _choose_in_kernel(forms, nests, kernel)
        return _with_batch(chosen, batches, kernel)
    trials = EinsumTrials(environment)
    trials.verify_together(one.candidates[0] for one in nests if _is_first_sound(one))
    return _build_selected(forms, nests, lambda one: select_best(one, trials))


def _own_first(one: NestSelection, environment: Environment) -> NestSelection:
    """The nest with what this installation measured first, whatever others claim."""

    def is_foreign(candidate: Candidate) -> bool:
        return own_verification(candidate, environment) is None

    candidates = tuple(sorted(one.candidates, key=is_foreign))
    return replace(one, own=own_ids(one.match), candidates=candidates)


def _choose_in_kernel(forms: Forms, nests: Nests, trials: KernelTrials) -> Transformed:
    groups = _groups(nests)
    if len(groups) > 1:
        if together := _choose_together(forms, nests, trials):
            return together
        firsts = (
            numbers[0] for numbers in groups if _is_first_sound(nests[numbers[0]])
        )
        by_first = {numbers[0]: numbers for numbers in groups}
        trials.verify_together(
            [dict.fromkeys(by_first[k], nests[k].candidates[0]) for k in firsts]
        )
    selected = [*nests]
    with shown_progress(len(groups), "timing recipes") as advance:
        for numbers in groups:
            best = select_best(nests[numbers[0]], NestTrials(trials, numbers))
            for k in numbers:
                selected[k] = replace(best, nest=nests[k].nest)
            advance()
    form = _form_of(selected)
    if len(_groups(selected)) > 1:
        try:
            trials.verify(form)
        except TransformError as error:  # each gains something, but not all together
            best = max((selected[k] for k in form), key=lambda one: one.speedup)
            selected = [
                one if one.applied == best.applied and one.nest.key == best.nest.key
                else one.without_all(error)
                for one in selected
            ]  # fmt: skip
            form = _form_of(selected)
    return _transformed(forms, selected, trials)


def _choose_together(
    forms: Forms, nests: Nests, trials: KernelTrials
) -> Transformed | None:
    """The kernel with all first candidates, if it is as good as they claim."""
    if not all(map(_is_sound, nests)):
        return None
    form = _form_of(nests)
    try:
        verification = trials.verify(form)
    except TransformError as error:
        logger.info("recipes are tried one by one: %s", error)
        return None
    here = trials.environment.device
    # the whole gains at least as much as the einsum that gains the least
    claim = min(_claim(candidate, here) for candidate in form.values())
    if verification.speedup < max(1.0, BORNE_OUT * claim):
        return None
    selected = [
        replace(
            one,
            judgement=trials.reason(form, k, verification),
            speedup=verification.speedup,
        )
        if k in form
        else one
        for k, one in enumerate(nests)
    ]
    return _transformed(forms, selected, trials)


def _with_batch(
    chosen: Transformed, batches: Mapping[int, Form], trials: KernelTrials
) -> Transformed:
    """The fastest batch of cells, if it is faster than the chosen recipes."""
    chosen_form = _form_of(chosen.nests)
    speedups: dict[int, float] = {}
    for width, form in batches.items():
        try:
            speedups[width] = trials.verify(form).speedup
        except TransformError as error:
            logger.info("no batches of %d cells: %s", width, error)
    least = max((one.speedup for one in chosen.nests if one.chosen), default=0.0)
    best = max([*speedups.values(), least], default=0.0)
    if not speedups or (chosen_form and least >= TIED * best):
        return chosen
    width = next(w for w, speedup in speedups.items() if speedup >= TIED * best)
    unit, _ = trials.forms.build(batches[width])
    return Transformed(unit, (), trials.gain(batches[width]), width)


def _transformed(
    forms: Forms, selected: Sequence[NestSelection], trials: KernelTrials
) -> Transformed:
    nests, form = tuple(selected), _form_of(selected)
    if not form:
        return Transformed(forms.request.t_unit, nests)
    unit, failures = forms.build(form)
    if failures:  # its verdict is from an earlier process
        left = tuple(
            one.without_all(failures[k]) if k in failures else one
            for k, one in enumerate(nests)
        )
        return _transformed(forms, left, trials)
    return Transformed(unit, nests, trials.gain(form))


def _build_selected(
    forms: Forms, nests: Nests, select: Callable[[NestSelection], NestSelection]
) -> Transformed:
    """The kernel with selected recipes, without those with which it does not build."""
    n_left = [N_UNBUILT] * len(nests)
    while True:
        nests = tuple(map(select, nests))
        form = _form_of(nests)
        unit, failures = forms.build(form) if form else (forms.request.t_unit, {})
        if not failures:
            return Transformed(unit, nests)
        left = [*nests]
        for k, error in failures.items():
            n_left[k] -= 1
            skipped = left[k].without_first(error)
            logger.warning("recipe %.200s was skipped: %s", *skipped.failures[-1])
            left[k] = skipped if n_left[k] else replace(skipped, candidates=())
        nests = tuple(left)


def _form_of(nests: Iterable[NestSelection]) -> Form:
    return {k: one.candidates[0] for k, one in enumerate(nests) if one.chosen}


def _groups(nests: Iterable[NestSelection]) -> list[tuple[int, ...]]:
    """The numbers of nests with equal workloads and candidates."""
    groups: dict[object, list[int]] = {}
    for k, one in enumerate(nests):
        if one.chosen:
            recipes = tuple(candidate.recipe for candidate in one.candidates)
            groups.setdefault((one.nest.key, recipes), []).append(k)
    return [tuple(group) for group in groups.values()]


def _is_sound(one: NestSelection) -> bool:
    return not one.chosen or _is_first_sound(one)


def _is_first_sound(one: NestSelection) -> bool:
    """Whether the first candidate fits, and may be applied in this process."""
    if not one.chosen:
        return False
    try:
        one.candidates[0].check()
    except Exception:  # noqa: BLE001  (where it is tried, the reason is kept)
        return False
    return is_ours(one.candidates[0].recipe.spec)


class _Tried(NamedTuple):
    """A usable candidate."""

    candidate: Candidate
    verification: Verification


@dataclass
class _Outcome:
    """The outcome of the candidates of a nest.

    Attributes:
        good: those that may be used.
        untried: those for which there was no time.
        failures: those that may not, and why.
        n_new: those that were tried now.
        is_over: whether one was about as good as its record claims.
    """

    good: list[_Tried] = field(default_factory=list)
    untried: list[Candidate] = field(default_factory=list)
    failures: list[tuple[Candidate, Exception]] = field(default_factory=list)
    n_new: int = 0
    is_over: bool = False


def select_best(one: NestSelection, trials: Trials) -> NestSelection:
    """The nest, with the candidate that is best here moved to the front."""
    if not one.chosen or one.judgement:
        return one
    outcome, rest = _Outcome(), iter(one.candidates)
    while not outcome.is_over and (some := [*islice(rest, AT_ONCE)]):
        _try(some, trials, outcome)
    return _with_best(one, outcome, [*rest])


def _first_that_fits(environment: Environment, one: NestSelection) -> NestSelection:
    """Without verification nothing but the form of a recipe is looked at."""
    if not one.chosen:
        return one
    failures: list[tuple[Candidate, Exception]] = []
    for k, candidate in enumerate(one.candidates):
        try:
            candidate.check()
        except Exception as error:  # noqa: BLE001  (no recipe may break a build)
            failures.append((candidate, error))
            continue
        own = own_verification(candidate, environment)
        return replace(
            _with_failures(one, failures),
            candidates=one.candidates[k:],
            judgement=own.reason if own else UNVERIFIED,
        )
    return replace(_with_failures(one, failures), candidates=())


def _try(some: Sequence[Candidate], trials: Trials, outcome: _Outcome) -> None:
    """Try candidates in order; earlier results of all of them count."""
    known = [*_known(some, trials, outcome)]
    budget, here = trials.budget, trials.environment.device
    for k, (candidate, verification) in enumerate(known):
        has_time = budget.has_time_for_better if outcome.good else budget.has_time
        if verification is None and not (outcome.n_new < N_NEW and has_time):
            outcome.untried.append(candidate)
            continue
        if verification is None:
            outcome.n_new += 1
            try:
                verification = trials.verify(candidate)
            except Exception as error:  # noqa: BLE001  (no recipe may break a build)
                outcome.failures.append((candidate, error))
                continue
        outcome.good.append(_Tried(candidate, verification))
        if _confirms_claim(candidate, verification, here) or (
            0 < verification.seconds <= _least_claimed_s(some, here) / BORNE_OUT
        ):
            outcome.is_over = True
            left = known[k + 1 :]
            outcome.good += [_Tried(c, v) for c, v in left if v is not None]
            outcome.untried += [c for c, v in left if v is None]
            return


def _known(
    some: Iterable[Candidate], trials: Trials, outcome: _Outcome
) -> Iterator[tuple[Candidate, Verification | None]]:
    """The potentially useful candidates, with their earlier results."""
    for candidate in some:
        try:
            candidate.check()
            yield candidate, trials.known(candidate)
        except Exception as error:  # noqa: BLE001  (no recipe may break a build)
            outcome.failures.append((candidate, error))


def _confirms_claim(candidate: Candidate, seen: Verification, here: Device) -> bool:
    """Whether its speed-up is about what its records claim.

    A prediction claims to be faster than what it was timed against.
    """
    claim = BORNE_OUT * _claim(candidate, here)
    return seen.is_own or seen.speedup >= max(1.0, claim)


def _least_claimed_s(candidates: Iterable[Candidate], here: Device) -> float:
    """The shortest time that the records of any candidate let expect for this kernel.

    Speed-ups are over a generated kernel, which the given one may be ahead of. A time
    near this one ends the search, too: no record claims to be much faster. That of the
    candidate itself would not do, since it may be slow, as it says.
    """
    times = (_claimed_s(one, here) for one in candidates if one.records)
    return min(times, default=0.0)


def _claimed_s(candidate: Candidate, here: Device) -> float:
    """The time that the records of a candidate let expect for this kernel."""
    einsum, sizes = from_text(candidate.recipe.frame), dict(candidate.sizes)
    sizes = {**quick_sizes(einsum, sizes), **sizes}
    n_operations = sum(einsum_operations(einsum, sizes).values())
    n_bytes = footprint_bytes(einsum, sizes)
    return min(
        record.measurement.median_s
        * (
            n_operations / total
            if (total := sum(record.measurement.operations.values()))
            else n_bytes / max(1, record.measurement.footprint_bytes)
        )
        / _share(here, record.environment.device)
        for record in candidate.records
    )


def _claim(candidate: Candidate, here: Device) -> float:
    """The speed-up that the records of a candidate let expect on this device."""
    claims = (
        record.measurement.speedup * _share(here, record.environment.device)
        for record in candidate.records
    )
    return max(claims, default=0.0)


def _share(here: Device, there: Device) -> float:
    """Share of a record's compute units and vector width that this device has."""
    units = here.compute_units / max(1, there.compute_units)
    if here.processor is None or there.processor is None:
        return min(1.0, units)
    vectors = here.processor.vector_bytes / there.processor.vector_bytes
    return min(1.0, units) * min(1.0, vectors)


def _with_best(
    one: NestSelection, outcome: _Outcome, rest: Sequence[Candidate]
) -> NestSelection:
    """The best first, this installation's own before others; then those not tried."""
    good = _ranked(outcome.good)
    untried = (*outcome.untried, *rest)
    found = _with_failures(one, outcome.failures)
    if good:
        best = good[0].verification
        others = tuple(
            (g.candidate.recipe.spec, g.verification.reason) for g in good[1:]
        )
        return replace(
            found,
            candidates=(*(g.candidate for g in good), *untried),
            judgement=best.reason,
            speedup=best.speedup,
            seen=others,
            is_settled=outcome.is_over or not untried,
        )
    if untried:
        why = TransformError(
            f"{len(untried)} more recipes were not tried: a retrieval verifies at most "
            f"{N_NEW} per einsum, in limited time; the next one continues"
        )
        found = _with_failures(found, [(untried[0], why)])
    return replace(found, candidates=(), is_settled=not untried)


def _ranked(good: Sequence[_Tried]) -> list[_Tried]:
    """The best first; of those tied for it, the one that was tried first."""
    # A tuning measures for longer than a verification.
    ranked = sorted(
        good, key=lambda g: (not g.verification.is_own, -g.verification.speedup)
    )
    if not ranked:
        return []
    best = ranked[0].verification
    first = next(
        one
        for one in good
        if one.verification.is_own == best.is_own
        and one.verification.speedup >= TIED * best.speedup
    )
    return [first, *(one for one in ranked if one is not first)]


def _with_failures(
    one: NestSelection, failures: Sequence[tuple[Candidate, Exception]]
) -> NestSelection:
    """Add failures; logs the first doubtful one, and how many were skipped."""
    found = one.with_failures((c.recipe.spec, error) for c, error in failures)
    new = found.failures[len(one.failures) :]
    for spec, why in [f for f in new if not f[1].startswith(NO_FASTER)][:1]:
        logger.warning(
            "skipped %d recipes; the first one: %.200s: %s",
            len(new),
            spec,
            why,
        )
    return found
