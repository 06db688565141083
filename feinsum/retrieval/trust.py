"""Trust in recipes: what was not measured here is verified here, once, before use.

A recipe is verified in a process of its own, with limits of time and memory. What was
found is remembered on disk for this device, driver, software and source of feinsum,
and for no other.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from time import monotonic

from feinsum.cache import DiskCache, default_cache, locked
from feinsum.errors import (
    BuildError,
    InvalidParameterError,
    InvalidRecordError,
    TransformError,
    TrialCrashError,
    TrialTimeoutError,
    UnknownTransformError,
    WrongResultError,
)
from feinsum.measure.verifier import Question, Verdict
from feinsum.memory import remembered
from feinsum.processes import child_environment, run_to_end
from feinsum.records import (
    OK,
    Environment,
    FramedSpec,
    Level,
    Match,
    from_json,
    to_json,
)
from feinsum.retrieval.installation import is_ours, surroundings
from feinsum.retrieval.selection import Candidate

__all__ = ["OFF", "VERIFY_VARIABLE", "Trust", "is_verification_on"]

logger = logging.getLogger(__name__)

VERIFY_VARIABLE = "FEINSUM_VERIFY"
"""Environment variable that is ``off`` where recipes cannot be run."""

OFF = "off"
LIMIT_S = 120.0
"""How long the verification of one recipe may take."""
BUDGET_S = 240.0
"""How long all verifications of one retrieval may take."""
MEMORY_BYTES = 4 * 2**30

COMMAND = (sys.executable, "-W", "ignore", "-m", "feinsum.measure.verifier")

_LASTING = {
    OK,
    *(kind.code for kind in (BuildError, InvalidParameterError, TransformError,
                             UnknownTransformError, WrongResultError)),
}  # fmt: skip
_PASSING = {TrialCrashError.code, TrialTimeoutError.code}
"""What may have been the fault of the hour; it is remembered for a day."""
_DAY = timedelta(days=1)

_LOCK = "verification.lock"


class _Verdicts(dict[str, Verdict]):
    """What verifications of this process found."""


def is_verification_on(verify: bool | None) -> bool:
    """What the argument says; without one, what the variable says: on by default."""
    if verify is not None:
        return verify
    return os.environ.get(VERIFY_VARIABLE, "").strip().lower() != OFF


class Trust:
    """Which recipes one retrieval may use on a machine.

    Args:
        is_on: whether recipes are verified at all.
    """

    def __init__(self, environment: Environment, *, is_on: bool) -> None:
        self.environment = environment
        self.is_on = is_on
        self._left_s = BUDGET_S

    def judge(self, candidate: Candidate) -> str:
        """Why a recipe may be used.

        Raises:
            TransformError: if it may not be.
        """
        recipe, match = candidate
        if self._is_measured_here(recipe, match):
            return "verified where it was measured, which is here"
        if not self.is_on:
            return "not verified on this machine: verification is off"
        verdict = self._verdict(recipe)
        if not verdict.is_ok:
            raise TransformError(
                f"verified on this machine at {verdict.found_at}, it failed "
                f"({verdict.code}): {verdict.message}"
            )
        return f"verified on this machine at {verdict.found_at}"

    def _is_measured_here(self, recipe: FramedSpec, match: Match) -> bool:
        """By this driver and this software: then the tuner verified it here."""
        return match.level == Level.EXACT and any(
            record.environment.software == self.environment.software
            for record in match.ranking
            if record.recipe == recipe
        )

    def _verdict(self, recipe: FramedSpec) -> Verdict:
        key = _key(recipe, self.environment)
        cache = default_cache() if is_ours(recipe.spec) else None
        known = _recall(cache, key)
        if known is not None:
            return known
        alone = nullcontext() if cache is None else locked(cache.folder, _LOCK, LIMIT_S)
        with alone:  # other processes may ask the same: one of them finds it out
            known = _recall(cache, key)
            return known or self._find_out(recipe, key, cache)

    def _find_out(
        self, recipe: FramedSpec, key: str, cache: DiskCache | None
    ) -> Verdict:
        if self._left_s <= 0:
            return Verdict(
                TrialTimeoutError.code,
                f"verifying others took all of the {BUDGET_S:g} s of this retrieval",
            )
        logger.info("verifying %s on %s", recipe.spec, self.environment.device)
        question = Question(
            recipe.frame, recipe.spec, self.environment.device.id, MEMORY_BYTES
        )
        began_s = monotonic()
        verdict = _asked(question, min(LIMIT_S, self._left_s))
        self._left_s -= monotonic() - began_s
        remembered(_Verdicts)[key] = verdict
        if cache is not None and verdict.code in _LASTING | _PASSING:
            cache.write(key, to_json(verdict).encode())
        return verdict


def _key(recipe: FramedSpec, environment: Environment) -> str:
    given = ("verification", recipe.frame, str(recipe.spec), surroundings(environment))
    return hashlib.sha256("\0".join(given).encode()).hexdigest()


def _recall(cache: DiskCache | None, key: str) -> Verdict | None:
    """What an earlier verification found, if that still counts."""
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
    return None if verdict.code in _PASSING and age > _DAY else verdict


def _asked(question: Question, limit_s: float) -> Verdict:
    """The answer of a process of its own; how it ended, if it gives none."""
    with tempfile.TemporaryDirectory(
        prefix="feinsum-verify-", ignore_cleanup_errors=True
    ) as folder:
        env = child_environment(folder)
        try:
            ended = run_to_end(COMMAND, to_json(question), limit_s=limit_s, env=env)
        except OSError as error:
            why = f"no process can be started: {error.strerror}"
            return Verdict(TrialCrashError.code, why)
    if ended.code is None:
        why = f"no answer within {limit_s:g} s; it was stopped"
        return Verdict(TrialTimeoutError.code, why)
    try:
        return from_json(Verdict, ended.said)
    except InvalidRecordError:
        return Verdict(TrialCrashError.code, f"its process ended with {ended}")
