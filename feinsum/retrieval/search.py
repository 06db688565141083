"""The search for a recipe of one einsum: records order the trials, times decide.

Candidates are tried in the order of their records, until one is about as good here as
its record claims. The fastest of all that were tried is used. So a record that claims
too much costs one trial, but cannot displace a better recipe ::

    candidate            claimed   seen here
    packed(rows=4)          8.0       3.1      a claim that is not borne out: go on
    streamed(width=8)       5.0       4.8      borne out: the search ends; it is used
    generic()               2.0        -       not tried

A trial takes about a second, so a retrieval tries few candidates per einsum, in limited
time. Results are cached, so that the next retrieval continues with the other ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from time import monotonic
from typing import NamedTuple, Protocol

from feinsum.errors import TransformError
from feinsum.ir import from_text
from feinsum.measure.judging import choose_quick_sizes
from feinsum.measure.reference import count_footprint_bytes, count_operations
from feinsum.measure.verdicts import Verdict
from feinsum.records import Device
from feinsum.retrieval.result import NO_FASTER, Candidate, NestSelection
from feinsum.words import format_sizes

logger = logging.getLogger(__name__)

LIMIT_S = 60.0
"""Time limit of one trial."""
BUDGET_S = 120.0
"""Time limit of all trials of one retrieval."""
SEARCH_S = 10.0
"""Time limit of these trials once a usable recipe is found."""
N_NEW = 5
"""Maximum recipes of an einsum that one retrieval verifies and times."""
BORNE_OUT = 0.5
"""Share of a recorded speed-up that has to be measured here to end the search."""
TIED = 0.95
"""Share of the best speed-up above which candidates are tied. The first of these is
used, so that noise does not choose between them."""
AT_ONCE = 64
"""Candidates whose earlier results are read together."""
UNVERIFIED = "not verified on this machine: verification is off"


class VerifiedRecipe(NamedTuple):
    """The result of a recipe that may be used here.

    Attributes:
        speedup: speed-up over the kernel against which it was timed.
        is_own: whether this installation recorded it.
        reason: why it may be used, in words.
        seconds: time of the recipe alone; zero if it ran with other instructions.
    """

    speedup: float
    is_own: bool
    reason: str
    seconds: float = 0.0


@dataclass(eq=False)
class Budget:
    """The time that one retrieval spends on trials."""

    spent_s: float = 0.0

    @property
    def has_time(self) -> bool:
        return self.spent_s < BUDGET_S

    @property
    def has_time_for_better(self) -> bool:
        """Whether there is time for more trials once a usable recipe is found."""
        return self.spent_s < min(SEARCH_S, BUDGET_S)

    @property
    def limit_s(self) -> float:
        """Time limit of the next trial."""
        return max(0.0, min(LIMIT_S, BUDGET_S - self.spent_s))

    @contextmanager
    def count_time(self) -> Iterator[None]:
        """Count the time of the ``with`` block."""
        begin_s = monotonic()
        try:
            yield
        finally:
            self.spent_s += monotonic() - begin_s


class Trials(Protocol):
    """Trials of the candidates of one nest on a device."""

    @property
    def budget(self) -> Budget: ...

    @property
    def device(self) -> Device: ...

    def recall(self, candidate: Candidate) -> VerifiedRecipe | None:
        """Return the result of an earlier trial; None if there was none.

        Raises:
            TransformError: if the candidate must not be used.
        """

    def verify(self, candidate: Candidate) -> VerifiedRecipe:
        """Return the result of an earlier trial, or else of a new one.

        Raises:
            TransformError: if the candidate must not be used.
        """


def find_own_verification(candidate: Candidate) -> VerifiedRecipe | None:
    """Return this installation's measurement of a recipe, if there is one."""
    record = candidate.own_record
    if record is None:
        return None
    speedup = record.measurement.speedup
    reason = (
        f"measured by this installation at {record.recorded_at}: {speedup:.1f} times "
        "as fast as the kernel generated for the einsum"
        f"{format_at(record.measurement.sizes)}"
    )
    return VerifiedRecipe(speedup, True, reason)


def make_verification(
    verdict: Verdict, observation: str, candidate: Candidate
) -> VerifiedRecipe:
    """Build the verification of a candidate that was found to be right.

    Args:
        verdict: the result of the trial.
        observation: what the trial showed, in words.
        candidate: the candidate that was tried.
    """
    claim = candidate.claim
    claimed = "" if claim is None else f"; {claim:.2g} times were claimed"
    when = f"verified and timed on this machine at {verdict.found_at}"
    at_sizes = format_at(verdict.sizes)
    reason = f"{when}: {observation}{at_sizes}{claimed}"
    return VerifiedRecipe(verdict.speedup, False, reason)


def format_at(sizes: Mapping[str, int]) -> str:
    """Format the sizes of a measurement for the end of a phrase; empty for none."""
    return f" at {format_sizes(sizes)}" if sizes else ""


def check_verdict(verdict: Verdict) -> None:
    """Raise an error with the reason if a recipe failed.

    Raises:
        TransformError: if the verdict is a failure.
    """
    if not verdict.is_ok:
        raise TransformError(
            f"failed verification on this machine at {verdict.found_at} "
            f"({verdict.code}): {verdict.message}"
        )


class _Usable(NamedTuple):
    """A candidate that may be used."""

    candidate: Candidate
    verification: VerifiedRecipe


@dataclass
class _Outcome:
    """The outcome of the candidates of a nest.

    Attributes:
        usable: candidates that may be used, in the order in which they were tried.
        untried: candidates for which there was no time.
        failures: candidates that may not be used, and why.
        n_new: number of candidates tried now.
        is_over: whether one was about as good as its record claims.
    """

    usable: list[_Usable] = field(default_factory=list)
    untried: list[Candidate] = field(default_factory=list)
    failures: list[tuple[Candidate, Exception]] = field(default_factory=list)
    n_new: int = 0
    is_over: bool = False


def select_best(nest: NestSelection, trials: Trials) -> NestSelection:
    """Move the candidate that is best on this machine to the front of the nest."""
    if not nest.chosen or nest.judgement:
        return nest
    outcome, remaining = _Outcome(), iter(nest.candidates)
    # in batches: reading earlier results of hundreds takes longer than one trial
    while not outcome.is_over and (batch := [*islice(remaining, AT_ONCE)]):
        _try_batch(batch, trials, outcome)
    return _with_best(nest, outcome, [*remaining])


def recall_trials(nest: NestSelection, trials: Trials) -> NestSelection:
    """Order the candidates by earlier trials alone, without those that failed."""
    outcome = _Outcome()
    recalled = [*_recall_all(nest.candidates, trials, outcome)]
    usable = [_Usable(c, v) for c, v in recalled if v is not None]
    best = [x.candidate for x in _rank_usable(usable)] if usable else []
    untried = (c for c, verification in recalled if verification is None)
    selection = nest.with_failures((c.recipe.spec, e) for c, e in outcome.failures)
    return replace(selection, candidates=(*best, *untried))


def select_first_valid(nest: NestSelection) -> NestSelection:
    """Move the first candidate that is in the space of its transform to the front.

    Without verification, nothing else about a recipe is known.
    """
    if not nest.chosen:
        return nest
    failures: list[tuple[Candidate, Exception]] = []
    for k, candidate in enumerate(nest.candidates):
        try:
            candidate.check()
        except Exception as error:  # noqa: BLE001  (no recipe may break a build)
            failures.append((candidate, error))
            continue
        measured = find_own_verification(candidate)
        return replace(
            _with_failures(nest, failures),
            candidates=nest.candidates[k:],
            judgement=measured.reason if measured else UNVERIFIED,
        )
    return replace(_with_failures(nest, failures), candidates=())


def _try_batch(batch: Sequence[Candidate], trials: Trials, outcome: _Outcome) -> None:
    """Try candidates in order, using their earlier results, until the search ends."""
    recalled = [*_recall_all(batch, trials, outcome)]
    for k, (candidate, verification) in enumerate(recalled):
        if verification is None:
            budget = trials.budget
            has_time = budget.has_time_for_better if outcome.usable else budget.has_time
            if outcome.n_new >= N_NEW or not has_time:
                outcome.untried.append(candidate)
                continue
            outcome.n_new += 1
            try:
                verification = trials.verify(candidate)
            except Exception as error:  # noqa: BLE001  (no recipe may break a build)
                outcome.failures.append((candidate, error))
                continue
        outcome.usable.append(_Usable(candidate, verification))
        if _is_good_enough(candidate, verification, batch, trials.device):
            outcome.is_over = True
            # results of earlier retrievals cost nothing, and may be even faster
            later = recalled[k + 1 :]
            outcome.usable += [_Usable(c, v) for c, v in later if v is not None]
            outcome.untried += [c for c, v in later if v is None]
            return


def _recall_all(
    batch: Iterable[Candidate], trials: Trials, outcome: _Outcome
) -> Iterator[tuple[Candidate, VerifiedRecipe | None]]:
    """Yield the candidates that are not known to fail, with their earlier results."""
    for candidate in batch:
        try:
            candidate.check()
            yield candidate, trials.recall(candidate)
        except Exception as error:  # noqa: BLE001  (no recipe may break a build)
            outcome.failures.append((candidate, error))


def _is_good_enough(
    candidate: Candidate,
    verification: VerifiedRecipe,
    batch: Sequence[Candidate],
    device: Device,
) -> bool:
    """Return whether a candidate is about as good here as its records claim.

    A prediction must be faster than the kernel against which it was timed.
    """
    if verification.is_own:
        return True
    if verification.speedup >= max(
        1.0, BORNE_OUT * estimate_claimed_speedup(candidate, device)
    ):
        return True
    # Recorded speed-ups are over a generated kernel, and the given one may be faster.
    # So a time near the shortest that any record claims ends the search, too. The time
    # in this candidate's own record is no criterion: it may be long.
    claims = (_estimate_claimed_s(c, device) for c in batch if c.records)
    return 0 < verification.seconds <= min(claims, default=0.0) / BORNE_OUT


def estimate_claimed_speedup(candidate: Candidate, device: Device) -> float:
    """Estimate a candidate's speed-up on a device from its records."""
    claims = (
        record.measurement.speedup * _compute_share(device, record.environment.device)
        for record in candidate.records
    )
    return max(claims, default=0.0)


def _estimate_claimed_s(candidate: Candidate, device: Device) -> float:
    """Estimate a candidate's time for this kernel from its records."""
    einsum, sizes = from_text(candidate.recipe.frame), dict(candidate.sizes)
    sizes = {**choose_quick_sizes(einsum, sizes), **sizes}
    n_operations = sum(count_operations(einsum, sizes).values())
    n_bytes = count_footprint_bytes(einsum, sizes)

    def scale_s(record_s: float, n_recorded: int, recorded_bytes: int) -> float:
        # the record may be for other sizes; without operations, only bytes count
        if n_recorded:
            return record_s * n_operations / n_recorded
        return record_s * n_bytes / max(1, recorded_bytes)

    return min(
        scale_s(
            record.measurement.median_s,
            sum(record.measurement.operations.values()),
            record.measurement.footprint_bytes,
        )
        / _compute_share(device, record.environment.device)
        for record in candidate.records
    )


def _compute_share(device: Device, recorded: Device) -> float:
    """Return the share of a record's compute units and vector width a device has."""
    # a speed-up on 64 cores does not carry over to 2 cores
    units = device.compute_units / max(1, recorded.compute_units)
    if device.processor is None or recorded.processor is None:
        return min(1.0, units)
    vectors = device.processor.vector_bytes / recorded.processor.vector_bytes
    return min(1.0, units) * min(1.0, vectors)


def _with_best(
    nest: NestSelection, outcome: _Outcome, not_reached: Sequence[Candidate]
) -> NestSelection:
    """Order the candidates: usable ones by speed, then those not tried."""
    untried = (*outcome.untried, *not_reached)
    selection = _with_failures(nest, outcome.failures)
    if outcome.usable:
        best, *slower = _rank_usable(outcome.usable)
        return replace(
            selection,
            candidates=(best.candidate, *(x.candidate for x in slower), *untried),
            judgement=best.verification.reason,
            speedup=best.verification.speedup,
            seen=tuple(
                (x.candidate.recipe.spec, x.verification.reason) for x in slower
            ),
            is_settled=outcome.is_over or not untried,
        )
    if untried:
        reason = TransformError(
            f"{len(untried)} more recipes were not tried: a retrieval verifies at most "
            f"{N_NEW} per einsum, in limited time; the next one continues"
        )
        selection = _with_failures(selection, [(untried[0], reason)])
    return replace(selection, candidates=(), is_settled=not untried)


def _rank_usable(usable: Sequence[_Usable]) -> list[_Usable]:
    """Rank usable candidates, starting with the first tried of those tied for best."""
    # Own records come first: tuning measures for longer than verification.
    ranked = sorted(
        usable, key=lambda x: (not x.verification.is_own, -x.verification.speedup)
    )
    best = ranked[0].verification
    first = next(
        x
        for x in usable
        if x.verification.is_own == best.is_own
        and x.verification.speedup >= TIED * best.speedup
    )
    return [first, *(x for x in ranked if x is not first)]


def _with_failures(
    nest: NestSelection, failures: Sequence[tuple[Candidate, Exception]]
) -> NestSelection:
    """Add failures; log their number, and the first that is not just a slow recipe."""
    selection = nest.with_failures((c.recipe.spec, error) for c, error in failures)
    new_failures = selection.failures[len(nest.failures) :]
    doubtful = [
        (spec, reason)
        for spec, reason in new_failures
        if not reason.startswith(NO_FASTER)
    ]
    for spec, reason in doubtful[:1]:
        message = "skipped %d recipes; the first one: %.200s: %s"
        logger.warning(message, len(new_failures), spec, reason)
    return selection
