"""Trust is local: recipes measured by others are verified and timed here first.

The records of a recipe, and who made them, only determine which one is tried first. It
is verified in a separate process, and timed there beside the kernel generated for its
einsum, which tells whether it is as fast as its record claims. Whether it takes the
place of the user's own loops is decided by the given kernel; see
:mod:`feinsum.retrieval.replacing`. The outcome is cached on disk for this machine,
device, driver, software and version of feinsum's source, and for no other. Recipes that
this installation measured itself need no verification.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from itertools import islice
from time import monotonic
from typing import NamedTuple

from feinsum.cache import DiskCache, default_cache, locked
from feinsum.errors import (
    BuildError,
    DeviceLostError,
    InvalidParameterError,
    InvalidRecordError,
    MeasurementError,
    TransformError,
    TrialCrashError,
    TrialTimeoutError,
    UnknownTransformError,
    WrongResultError,
)
from feinsum.ir import from_text
from feinsum.measure.judging import quick_sizes
from feinsum.measure.own import is_own
from feinsum.measure.question import Question, Verdict
from feinsum.measure.trial import locked as held
from feinsum.memory import remembered
from feinsum.records import (
    OK,
    Environment,
    Level,
    Match,
    TuningRecord,
    from_json,
    to_json,
)
from feinsum.retrieval.installation import fingerprint, is_ours
from feinsum.retrieval.precompiling import Prepared, all_prepared, prepared
from feinsum.retrieval.progress import shown_progress
from feinsum.retrieval.selection import NO_FASTER_THAN_GENERATED, Candidate
from feinsum.retrieval.verifiers import request_together, request_verdict
from feinsum.select import GAIN

__all__ = [
    "MEMORY_BYTES",
    "OFF",
    "VERIFY_VARIABLE",
    "Judgement",
    "KernelCase",
    "Trust",
    "is_verification_on",
]

logger = logging.getLogger(__name__)

VERIFY_VARIABLE = "FEINSUM_VERIFY"
"""Environment variable that is ``off`` where recipes cannot be run."""

OFF = "off"
LIMIT_S = 60.0
"""How long one recipe may take."""
BUDGET_S = 120.0
"""How long all recipes of one retrieval may take."""
SEARCH_S = 10.0
"""How long they may take where a better one is looked for than one that is found."""
MEMORY_BYTES = 4 * 2**30
AT_ONCE = 16
"""Recipes that are asked about together."""

_PERMANENT = {
    OK,
    *(kind.code for kind in (BuildError, InvalidParameterError, TransformError,
                             UnknownTransformError, WrongResultError)),
}  # fmt: skip
_TRANSIENT = {
    kind.code
    for kind in (DeviceLostError, MeasurementError, TrialCrashError, TrialTimeoutError)
}
"""Failures that may be transient, such as a recipe that is slow on a busy machine;
they are remembered for a day."""
_DAY = timedelta(days=1)

_LOCK = "verification.lock"


class _Verdicts(dict[str, Verdict]):
    """The outcomes of verifications in this process."""


def is_verification_on(verify: bool | None) -> bool:
    """The argument, or else the environment variable; on by default."""
    if verify is not None:
        return verify
    return os.environ.get(VERIFY_VARIABLE, "").strip().lower() != OFF


class Judgement(NamedTuple):
    """The knowledge here about a usable recipe.

    Attributes:
        speedup: speed-up over the kernel generated for the einsum, as measured here.
        is_own: whether this installation recorded it.
        words: why it may be used.
    """

    speedup: float
    is_own: bool
    words: str


class _Case(NamedTuple):
    """The question about a recipe, and where the verdict is cached."""

    question: Question
    key: str
    cache: DiskCache | None

    def recall(self) -> Verdict | None:
        """The earlier verdict, if it still counts."""
        return _recalled(self.key, self.cache)

    def store(self, verdict: Verdict) -> None:
        _store(self.key, self.cache, verdict)


def _recalled(key: str, cache: DiskCache | None) -> Verdict | None:
    if verdict := remembered(_Verdicts).get(key):
        return verdict
    content = None if cache is None else cache.read(key)
    if content is None:
        return None
    try:
        verdict = from_json(Verdict, content)
        age = datetime.now(UTC) - datetime.fromisoformat(verdict.found_at)
    except (InvalidRecordError, TypeError, ValueError):
        return None
    if age > _DAY and _is_transient(verdict):
        return None
    remembered(_Verdicts)[key] = verdict
    return verdict


def _store(key: str, cache: DiskCache | None, verdict: Verdict) -> None:
    remembered(_Verdicts)[key] = verdict
    if cache is not None and verdict.code in _PERMANENT | _TRANSIENT:
        cache.write(key, to_json(verdict).encode())


class KernelCase(NamedTuple):
    """The verdict on a whole kernel: cached, or found out once."""

    trust: Trust
    key: str
    cache: DiskCache | None

    def recall(self) -> Verdict | None:
        """The earlier verdict, if it still counts."""
        return _recalled(self.key, self.cache)

    def verdict(self, ask: Callable[[float], Verdict]) -> Verdict:
        """The earlier verdict, or what a separate process finds within some seconds."""
        with _locked(self.cache):
            return self.recall() or self.trust.find_out(self.key, self.cache, ask)


class Trust:
    """Which recipes one retrieval may use on a machine.

    Args:
        is_on: whether recipes are verified and timed at all.
        is_final: whether a recipe has to be faster than the kernel generated for its
            einsum, because the given kernel cannot be timed on this device.
    """

    def __init__(
        self, environment: Environment, *, is_on: bool, is_final: bool = False
    ) -> None:
        self.environment = environment
        self.is_on = is_on
        self.is_final = is_final
        self._spent_s = 0.0
        self._sizes: dict[tuple[str, str], dict[str, int]] = {}
        self._prepared: dict[str, Prepared | Verdict | None] = {}
        self._timing_lock = ""

    @property
    def has_time(self) -> bool:
        """Whether there is time to verify another recipe."""
        return self._spent_s < BUDGET_S

    @property
    def limit_s(self) -> float:
        """How long the next question may take."""
        return max(0.0, min(LIMIT_S, BUDGET_S - self._spent_s))

    @property
    def has_time_for_better(self) -> bool:
        """The same where one is found that may be used."""
        return self._spent_s < min(SEARCH_S, BUDGET_S)

    def known(self, candidate: Candidate) -> Judgement | None:
        """The cached outcome for a recipe; None if there is none.

        Raises:
            TransformError: if the cached outcome is that it must not be used.
        """
        if own := self.own_judgement(candidate):
            return own
        verdict = self._case(candidate).recall()
        return None if verdict is None else self._judgement(verdict, candidate)

    def own_judgement(self, candidate: Candidate) -> Judgement | None:
        """This installation's measurement of a recipe, if any."""
        own = [r for r in candidate.records if self._is_measured_here(r, candidate)]
        if not own:
            return None
        return _judgement_of_own(max(own, key=lambda r: r.measurement.speedup))

    def verify(self, candidate: Candidate) -> Judgement:
        """Verify and time a recipe, or wait for others that are doing so.

        Raises:
            TransformError: if it must not be used.
        """
        case = self._case(candidate)
        with _locked(case.cache):  # other processes may ask the same: one finds it out
            verdict = case.recall() or self._verdict(case)
        return self._judgement(verdict, candidate)

    def _judgement(self, verdict: Verdict, candidate: Candidate) -> Judgement:
        """The judgement of a recipe by a verdict.

        Raises:
            TransformError: if it is wrong, or slow where that is final.
        """
        if not verdict.is_ok:
            raise TransformError(
                f"failed verification on this machine at {verdict.found_at} "
                f"({verdict.code}): {verdict.message}"
            )
        times = f"{verdict.least_s * 1e3:.3g} ms, {verdict.baseline_s * 1e3:.3g} ms"
        if self.is_final and verdict.speedup <= GAIN:
            raise TransformError(
                f"{NO_FASTER_THAN_GENERATED}: {times}, timed on this machine at "
                f"{verdict.found_at}"
            )
        gain = f"{verdict.speedup:.2g} times as fast as the kernel generated for its"
        seen = f"{gain} einsum ({times})"
        if verdict.sizes:
            seen += " at " + ", ".join(f"{n}={v}" for n, v in verdict.sizes.items())
        claim = candidate.claim
        said = "" if claim is None else f"; {claim:.2g} times were claimed"
        when = f"verified and timed on this machine at {verdict.found_at}"
        return Judgement(verdict.speedup, False, f"{when}: {seen}{said}")

    def kernel_case(self, text: str, *, is_ours: bool) -> KernelCase:
        """Where the verdict on a whole kernel is cached.

        Args:
            text: of all that it depends on, but this machine and its software.
            is_ours: whether the source of its recipes is known; else nothing outlives
                this process.
        """
        given = "\0".join(("kernel", text, self._fingerprint))
        key = hashlib.sha256(given.encode()).hexdigest()
        return KernelCase(self, key, default_cache() if is_ours else None)

    def prepare(self, candidates: Iterable[Candidate]) -> None:
        """Generate the kernels to verify, and compile them in the background."""
        cases = {case.key: case for case in map(self._case, candidates)}
        with shown_progress(len(cases), "generating recipes") as advance:
            self._prepare([*cases.values()], advance)

    def _prepare(self, cases: Sequence[_Case], advance: Callable[[], None]) -> None:
        new = [case for case in cases if case.key not in self._prepared]
        ready = all_prepared(case.question for case in new)
        for case, one in zip(new, ready, strict=True):
            self._prepared[case.key] = one
            advance()

    @contextmanager
    def hold_timing(self) -> Iterator[ExitStack]:
        """No timing starts until the given stack is closed."""
        with self._timing_in_turns() as lock, ExitStack() as timing_hold:
            timing_hold.enter_context(held(lock, fcntl.LOCK_SH))
            yield timing_hold

    @contextmanager
    def _timing_in_turns(self) -> Iterator[str]:
        """A file that is locked while times are taken."""
        if self._timing_lock:
            yield self._timing_lock
            return
        with tempfile.NamedTemporaryFile(prefix="feinsum-timing-") as lock:
            self._timing_lock = lock.name
            try:
                yield lock.name
            finally:
                self._timing_lock = ""

    def verify_together(self, candidates: Iterable[Candidate]) -> None:
        """Verify and time several recipes at once.

        Outcomes are cached. Identical recipes are tried once, and only while there is
        time.
        """
        unknown: dict[str, _Case] = {}
        for candidate in candidates:
            case = self._case(candidate)
            if not self.own_judgement(candidate) and case.recall() is None:
                unknown[case.key] = case
        if len(unknown) < 2:
            return
        cache = next((c.cache for c in unknown.values() if c.cache is not None), None)
        with (
            _locked(cache),
            shown_progress(len(unknown), "verifying recipes") as advance,
        ):
            for some in _batches(unknown.values()):
                if self.has_time:
                    self._verify_batch(some, advance)

    def _verify_batch(
        self, cases: Sequence[_Case], advance: Callable[[], None]
    ) -> None:
        began_s = monotonic()
        self._prepare(cases, lambda: None)
        for case in cases:
            if isinstance(one := self._prepared[case.key], Prepared):
                one.wait()  # compilers would disturb what is timed
        with self._timing_in_turns():
            requests = [partial(self._ask, case) for case in cases]
            for k, verdict in request_together(requests, advance):
                cases[k].store(verdict)
        self._spent_s += monotonic() - began_s

    def own(self, match: Match) -> frozenset[str]:
        """The ids of the records that this installation measured."""
        if match.level != Level.EXACT:
            return frozenset()
        return frozenset(r.id for r in match.ranking if is_own(r.id))

    def _is_measured_here(self, record: TuningRecord, candidate: Candidate) -> bool:
        """By this installation, this driver and this software."""
        return (
            candidate.match.level == Level.EXACT
            and record.environment.software == self.environment.software
            and is_own(record.id)
        )

    def _case(self, candidate: Candidate) -> _Case:
        question = self._question(candidate)
        cache = default_cache() if is_ours(question.spec) else None
        return _Case(question, self._key(question), cache)

    def _question(self, candidate: Candidate) -> Question:
        (spec, frame), sizes = candidate.recipe, dict(candidate.sizes)
        place = frame, repr(sorted(sizes.items()))
        if place not in self._sizes:
            self._sizes[place] = quick_sizes(from_text(frame), sizes)
        device = self.environment.device.id
        return Question(frame, spec, device, MEMORY_BYTES, self._sizes[place])

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.environment)

    def _key(self, question: Question) -> str:
        sizes = repr(sorted(question.sizes.items()))
        given = ("believed", question.frame, str(question.spec), sizes)
        text = "\0".join((*given, self._fingerprint))
        return hashlib.sha256(text.encode()).hexdigest()

    def _verdict(self, case: _Case) -> Verdict:
        began_s = monotonic()
        verdict = self._ask(case)
        self._spent_s += monotonic() - began_s
        case.store(verdict)
        return verdict

    def find_out(
        self, key: str, cache: DiskCache | None, ask: Callable[[float], Verdict]
    ) -> Verdict:
        """Ask about a whole kernel, and cache the verdict."""
        began_s = monotonic()
        verdict = ask(self.limit_s)
        self._spent_s += monotonic() - began_s
        _store(key, cache, verdict)
        return verdict

    def _ask(self, case: _Case) -> Verdict:
        question, key, _ = case
        logger.info("verifying %.200s on %s", question.spec, self.environment.device)
        limit_s = self.limit_s
        lock = self._timing_lock
        ready = self._prepared.pop(key) if key in self._prepared else prepared(question)
        if isinstance(ready, Prepared):
            return ready.ask(limit_s=limit_s, timing_lock=lock)
        return ready or request_verdict(
            replace(question, limit_s=limit_s, timing_lock=lock)
        )


def _locked(cache: DiskCache | None) -> AbstractContextManager[object]:
    """One process verifies at a time, where outcomes are shared."""
    return nullcontext() if cache is None else locked(cache.folder, _LOCK, LIMIT_S)


def _batches(cases: Iterable[_Case]) -> Iterator[Sequence[_Case]]:
    """A few at a time, so that the time can end between them."""
    rest = iter(cases)
    while some := [*islice(rest, AT_ONCE)]:
        yield some


def _judgement_of_own(record: TuningRecord) -> Judgement:
    speedup = record.measurement.speedup
    words = (
        f"measured by this installation at {record.recorded_at}: {speedup:.1f} times "
        "as fast as the kernel generated for the einsum"
    )
    return Judgement(speedup, True, words)


def _is_transient(verdict: Verdict) -> bool:
    if verdict.is_ok:
        return verdict.speedup <= 1
    return verdict.code in _TRANSIENT
