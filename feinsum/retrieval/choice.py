"""Which candidate a nest gets: claims order candidates, local timings decide.

Candidates are tried in the order of their records, until one is about as good here as
its record claims. The best of all candidates timed here is used. So a record that
claims too much costs one trial and displaces nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import NamedTuple

from feinsum.errors import TransformError
from feinsum.records import Device
from feinsum.retrieval.installation import is_ours
from feinsum.retrieval.selection import NO_FASTER, Candidate, NestSelection
from feinsum.retrieval.trust import Judgement, Trust

__all__ = [
    "N_NEW",
    "is_first_unknown",
    "prepare_first",
    "select_all_trusted",
    "select_trusted",
]

logger = logging.getLogger(__name__)

N_NEW = 5
"""Recipes of an einsum that one retrieval verifies and times."""
BORNE_OUT = 0.5
"""The part of a recorded speed-up that is seen here where a record can be believed."""
TIED = 0.95
"""The part of the best speed-up from which candidates are equally good. The first of
these is used, so that noise does not choose between them."""
OFF_WORDS = "not verified on this machine: verification is off"
AT_ONCE = 64
"""Candidates that are looked at together."""


class _Judged(NamedTuple):
    """A usable candidate, and the knowledge about it here."""

    candidate: Candidate
    judgement: Judgement


@dataclass
class _Trials:
    """The outcome of the candidates of a nest.

    Attributes:
        good: those that may be used.
        untried: those for which there was no time.
        failures: those that may not, and why.
    """

    good: list[_Judged] = field(default_factory=list)
    untried: list[Candidate] = field(default_factory=list)
    failures: list[tuple[Candidate, Exception]] = field(default_factory=list)
    n_new: int = 0
    is_over: bool = False


def select_all_trusted(
    nests: Sequence[NestSelection], trust: Trust
) -> tuple[NestSelection, ...]:
    """The nests with their best candidates first; new ones are tried together."""
    if trust.is_on:
        trust.verify_together(chain.from_iterable(map(_first_candidate, nests)))
    return tuple(select_trusted(one, trust) for one in nests)


def _first_candidate(one: NestSelection) -> list[Candidate]:
    """The candidate that is tried first."""
    if not one.chosen or one.judgement:
        return []
    candidate = one.candidates[0]
    try:
        candidate.check()
    except Exception:  # noqa: BLE001  (that it does not fit is told where it is tried)
        return []
    return [candidate]


def select_trusted(one: NestSelection, trust: Trust) -> NestSelection:
    """The nest, with the candidate that is best here moved to the front."""
    if not one.chosen or one.judgement:
        return one
    one = replace(one, own=trust.own(one.match))
    if not trust.is_on:
        return _first_that_fits(one, trust)
    trials, rest = _Trials(), iter(one.candidates)
    while not trials.is_over and (some := [*_some(rest)]):
        _try(some, trust, trials)
    return _with_best(one, trials, [*rest])


def is_first_unknown(one: NestSelection, trust: Trust) -> bool:
    """Whether the first candidate is one of ours whose speed here is unknown."""
    if not one.chosen or one.judgement or not trust.is_on:
        return False
    first = one.candidates[0]
    try:
        first.check()
        is_known = trust.known(first) is not None
    except Exception:  # noqa: BLE001  (said where candidates are tried)
        return False
    return not is_known and is_ours(first.recipe.spec)


def prepare_first(nests: Iterable[NestSelection], trust: Trust) -> None:
    """Prepare the verification of the first candidates."""
    trust.prepare(one.candidates[0] for one in nests)


def _some(candidates: Iterator[Candidate]) -> Iterable[Candidate]:
    return islice(candidates, AT_ONCE)


def _first_that_fits(one: NestSelection, trust: Trust) -> NestSelection:
    """Without verification nothing but the form of a recipe is looked at."""
    failures: list[tuple[Candidate, Exception]] = []
    for k, candidate in enumerate(one.candidates):
        try:
            candidate.check()
        except Exception as error:  # noqa: BLE001  (no recipe may break a build)
            failures.append((candidate, error))
        else:
            own = trust.own_judgement(candidate)
            words = own.words if own else OFF_WORDS
            left = one.candidates[k:]
            return replace(
                _with_failures(one, failures), candidates=left, judgement=words
            )
    return replace(_with_failures(one, failures), candidates=())


def _try(some: Sequence[Candidate], trust: Trust, trials: _Trials) -> None:
    """Examine candidates in order; cached outcomes of all of them count."""
    known = [*_known(some, trust, trials)]
    for k, (candidate, judgement) in enumerate(known):
        has_time = trust.has_time_for_better if trials.good else trust.has_time
        if judgement is None and not (trials.n_new < N_NEW and has_time):
            trials.untried.append(candidate)
            continue
        if judgement is None:
            trials.n_new += 1
            try:
                judgement = trust.verify(candidate)
            except Exception as error:  # noqa: BLE001  (no recipe may break a build)
                trials.failures.append((candidate, error))
                continue
        trials.good.append(_Judged(candidate, judgement))
        if _confirms_claim(candidate, judgement, trust):
            trials.is_over = True
            left = known[k + 1 :]
            trials.good += [_Judged(c, j) for c, j in left if j is not None]
            trials.untried += [c for c, j in left if j is None]
            return


def _known(
    some: Iterable[Candidate], trust: Trust, trials: _Trials
) -> Iterator[tuple[Candidate, Judgement | None]]:
    """The potentially useful candidates, with their cached outcomes."""
    for candidate in some:
        try:
            candidate.check()
            yield candidate, trust.known(candidate)
        except Exception as error:  # noqa: BLE001  (no recipe may break a build)
            trials.failures.append((candidate, error))


def _confirms_claim(candidate: Candidate, seen: Judgement, trust: Trust) -> bool:
    """Whether it is about as fast here as its records claim.

    A prediction claims to be faster than the kernel generated for the einsum.
    """
    here = trust.environment.device
    claims = (
        record.measurement.speedup * _share(here, record.environment.device)
        for record in candidate.records
    )
    claim = BORNE_OUT * max(claims, default=0.0)
    return seen.is_own or seen.speedup >= max(1.0, claim)


def _share(here: Device, there: Device) -> float:
    """Share of a record's compute units and vector width that this device has."""
    units = here.compute_units / max(1, there.compute_units)
    if here.processor is None or there.processor is None:
        return min(1.0, units)
    vectors = here.processor.vector_bytes / there.processor.vector_bytes
    return min(1.0, units) * min(1.0, vectors)


def _with_best(
    one: NestSelection, trials: _Trials, rest: Sequence[Candidate]
) -> NestSelection:
    """The best first, this installation's own before others; then those not tried."""
    good = _ranked(trials.good)
    left = tuple(seen.candidate for seen in good)
    untried = (*trials.untried, *rest)
    found = _with_failures(one, trials.failures)
    if good:
        others = tuple((s.candidate.recipe.spec, s.judgement.words) for s in good[1:])
        return replace(
            found,
            candidates=(*left, *untried),
            judgement=good[0].judgement.words,
            speedup=good[0].judgement.speedup,
            seen=others,
            is_settled=trials.is_over or not untried,
        )
    if untried:
        why = TransformError(
            f"{len(untried)} more recipes were not tried: a retrieval verifies at most "
            f"{N_NEW} per einsum, in limited time; the next one continues"
        )
        found = _with_failures(found, [(untried[0], why)])
    return replace(found, candidates=(), is_settled=not untried)


def _ranked(good: Sequence[_Judged]) -> list[_Judged]:
    """The best first; of those tied for it, the one that was tried first."""
    # A tuning measures at the sizes in use, a verification at small ones.
    ranked = sorted(good, key=lambda s: (not s.judgement.is_own, -s.judgement.speedup))
    if not ranked:
        return []
    best = ranked[0].judgement
    first = next(
        one
        for one in good
        if one.judgement.is_own == best.is_own
        and one.judgement.speedup >= TIED * best.speedup
    )
    return [first, *(one for one in ranked if one is not first)]


def _with_failures(
    one: NestSelection, failures: Sequence[tuple[Candidate, Exception]]
) -> NestSelection:
    """Add failures; logs the first doubtful one, and how many were passed over."""
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
