"""Trials of recipes on the kernels of their einsums, in a separate process.

The process applies a recipe to the kernel that is generated for its einsum, compares
the results with numpy, and times both in turns. So are recipes verified where the given
kernel cannot be timed: on GPUs, with very large arrays, for sparse operands. So are
those of user-defined transforms before they are applied to anything in this process.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import NamedTuple, Protocol

from feinsum.errors import TransformError
from feinsum.ir import from_text
from feinsum.measure.judging import quick_sizes
from feinsum.measure.own import is_own
from feinsum.measure.question import Question, Verdict
from feinsum.records import Environment, Level, Match, TuningRecord
from feinsum.retrieval.progress import shown_progress
from feinsum.retrieval.selection import NO_FASTER_THAN_GENERATED, Candidate
from feinsum.retrieval.verdicts import CachedVerdict
from feinsum.retrieval.verifiers import request_together, request_verdict
from feinsum.select import GAIN

logger = logging.getLogger(__name__)

VERIFY_VARIABLE = "FEINSUM_VERIFY"
"""Environment variable that is ``off`` where recipes cannot be run."""
OFF = "off"
LIMIT_S = 60.0
"""How long one trial may take."""
BUDGET_S = 120.0
"""How long all trials of one retrieval may take."""
SEARCH_S = 10.0
"""How long they may take once a recipe is found that may be used."""
MEMORY_BYTES = 4 * 2**30


def is_verification_on(verify: bool | None) -> bool:
    """The argument, or else the environment variable; on by default."""
    if verify is not None:
        return verify
    return os.environ.get(VERIFY_VARIABLE, "").strip().lower() != OFF


class Verification(NamedTuple):
    """What is known here about a recipe that may be used.

    Attributes:
        speedup: over the kernel that it was timed against.
        is_own: whether this installation recorded it.
        reason: why it may be used, in words.
        seconds: of the recipe alone; zero if it ran with others.
    """

    speedup: float
    is_own: bool
    reason: str
    seconds: float = 0.0


class Trials(Protocol):
    """Trials of the candidates of one nest."""

    @property
    def budget(self) -> Budget: ...

    @property
    def environment(self) -> Environment: ...

    def known(self, candidate: Candidate) -> Verification | None:
        """The result of an earlier trial.

        Raises:
            TransformError: if the candidate must not be used.
        """

    def verify(self, candidate: Candidate) -> Verification:
        """The result of an earlier trial, or else of one now.

        Raises:
            TransformError: if the candidate must not be used.
        """


@dataclass(eq=False)
class Budget:
    """The time that one retrieval spends on trials."""

    spent_s: float = 0.0

    @property
    def has_time(self) -> bool:
        return self.spent_s < BUDGET_S

    @property
    def has_time_for_better(self) -> bool:
        """The same once a recipe is found that may be used."""
        return self.spent_s < min(SEARCH_S, BUDGET_S)

    @property
    def limit_s(self) -> float:
        """How long the next trial may take."""
        return max(0.0, min(LIMIT_S, BUDGET_S - self.spent_s))

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the body."""
        began_s = monotonic()
        try:
            yield
        finally:
            self.spent_s += monotonic() - began_s


class EinsumTrials:
    """Trials on kernels that are generated for einsums.

    Args:
        is_final: whether a recipe has to be faster than that kernel, because it is not
            timed against another one.
    """

    def __init__(
        self,
        environment: Environment,
        budget: Budget | None = None,
        *,
        is_final: bool = True,
    ) -> None:
        self.environment = environment
        self.budget = budget or Budget()
        self.is_final = is_final

    def known(self, candidate: Candidate) -> Verification | None:
        """See :meth:`Trials.known`."""
        if own := own_verification(candidate, self.environment):
            return own
        verdict = self._cached(candidate).recall()
        return None if verdict is None else self._verification(verdict, candidate)

    def verify(self, candidate: Candidate) -> Verification:
        """See :meth:`Trials.verify`."""
        if known := self.known(candidate):
            return known
        place = self._cached(candidate)
        with place.locked():  # another process may be verifying it
            if (verdict := place.recall()) is None:
                with self.budget.spending():
                    verdict = self._request(candidate)
                place.store(verdict)
        return self._verification(verdict, candidate)

    def verify_together(self, candidates: Iterable[Candidate]) -> None:
        """Verify several at once, each in a process of its own; results are cached."""
        new: dict[CachedVerdict, Candidate] = {}
        for candidate in candidates:
            is_known = own_verification(candidate, self.environment) is not None
            place = self._cached(candidate)
            if not is_known and place.recall() is None:
                new[place] = candidate
        if len(new) < 2 or not self.budget.has_time:
            return
        places = [*new]
        with (
            self.budget.spending(),
            places[0].locked(),
            tempfile.NamedTemporaryFile(prefix="feinsum-timing-") as timing_lock,
            shown_progress(len(new), "verifying recipes") as advance,
        ):
            requests = [
                partial(self._request, c, timing_lock.name) for c in new.values()
            ]
            for k, verdict in request_together(requests, advance):
                places[k].store(verdict)

    def _request(self, candidate: Candidate, timing_lock: str = "") -> Verdict:
        question = self._question(candidate)
        logger.info("verifying %.200s on %s", question.spec, self.environment.device)
        limit_s = self.budget.limit_s
        return request_verdict(
            replace(question, limit_s=limit_s, timing_lock=timing_lock)
        )

    def _question(self, candidate: Candidate) -> Question:
        (spec, frame), sizes = candidate.recipe, dict(candidate.sizes)
        quick = quick_sizes(from_text(frame), sizes)
        return Question(frame, spec, self.environment.device.id, MEMORY_BYTES, quick)

    def _cached(self, candidate: Candidate) -> CachedVerdict:
        spec, frame = candidate.recipe
        sizes = quick_sizes(from_text(frame), dict(candidate.sizes))
        parts = "einsum", frame, str(spec), repr(sorted(sizes.items()))
        return CachedVerdict.of(parts, self.environment, [spec])

    def _verification(self, verdict: Verdict, candidate: Candidate) -> Verification:
        """The verification by a verdict.

        Raises:
            TransformError: if the recipe is wrong, or slow where that is final.
        """
        check_verdict(verdict)
        times = f"{verdict.least_s * 1e3:.3g} ms, {verdict.baseline_s * 1e3:.3g} ms"
        if self.is_final and verdict.speedup <= GAIN:
            raise TransformError(
                f"{NO_FASTER_THAN_GENERATED}: {times}, timed on this machine at "
                f"{verdict.found_at}"
            )
        seen = (
            f"{verdict.speedup:.2g} times as fast as the kernel generated for its "
            f"einsum ({times})"
        )
        if verdict.sizes:
            seen += " at " + ", ".join(f"{n}={v}" for n, v in verdict.sizes.items())
        return verified(verdict, seen, candidate)


def check_verdict(verdict: Verdict) -> None:
    """Raise the reason why a recipe failed.

    Raises:
        TransformError: if it did.
    """
    if not verdict.is_ok:
        raise TransformError(
            f"failed verification on this machine at {verdict.found_at} "
            f"({verdict.code}): {verdict.message}"
        )


def verified(verdict: Verdict, seen: str, candidate: Candidate) -> Verification:
    """The verification of a candidate that was found to be right."""
    claim = candidate.claim
    claimed = "" if claim is None else f"; {claim:.2g} times were claimed"
    when = f"verified and timed on this machine at {verdict.found_at}"
    return Verification(verdict.speedup, False, f"{when}: {seen}{claimed}")


def own_verification(
    candidate: Candidate, environment: Environment
) -> Verification | None:
    """The measurement of a recipe by this installation, driver and software, if any."""
    own = [r for r in candidate.records if _is_own(r, candidate, environment)]
    if not own:
        return None
    record = max(own, key=lambda r: r.measurement.speedup)
    speedup = record.measurement.speedup
    reason = (
        f"measured by this installation at {record.recorded_at}: {speedup:.1f} times "
        "as fast as the kernel generated for the einsum"
    )
    return Verification(speedup, True, reason)


def _is_own(
    record: TuningRecord, candidate: Candidate, environment: Environment
) -> bool:
    return (
        candidate.match.level == Level.EXACT
        and record.environment.software == environment.software
        and is_own(record.id)
    )


def own_ids(match: Match) -> frozenset[str]:
    """The ids of the records that this installation measured."""
    if match.level != Level.EXACT:
        return frozenset()
    return frozenset(r.id for r in match.ranking if is_own(r.id))
