"""Trials of recipes on the kernels of their einsums, in a separate process.

The process generates the kernel of an einsum, applies the recipe to it, compares the
results with numpy, and times both kernels in turns. That verifies recipes where the
given kernel cannot be timed: on GPUs, with very large arrays, for sparse operands. It
also comes first for user-defined transforms, before this process applies them to
anything.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from functools import partial

from feinsum.errors import TransformError
from feinsum.extras import show_progress
from feinsum.ir import from_text
from feinsum.measure.judging import choose_quick_sizes
from feinsum.measure.verdicts import Verdict, VerificationRequest
from feinsum.records import Device, Environment
from feinsum.retrieval.generating import Transformed, Variants, build_selected
from feinsum.retrieval.result import NO_FASTER_THAN_GENERATED, Candidate
from feinsum.retrieval.search import (
    Budget,
    VerifiedRecipe,
    check_verdict,
    find_own_verification,
    make_verification,
    select_best,
)
from feinsum.retrieval.verifiers import (
    CachedVerdict,
    request_together,
    request_verdict,
)
from feinsum.select import GAIN

logger = logging.getLogger(__name__)

MEMORY_BYTES = 4 * 2**30
"""Memory of the process of a trial."""


def choose_by_einsums(variants: Variants, environment: Environment) -> Transformed:
    """Build the kernel with the recipes that are fastest in their einsums' kernels."""
    trials = EinsumTrials(environment)
    # together, since each process first has to load Loopy
    trials.verify_together(
        nest.candidates[0] for nest in variants.nests if nest.is_first_usable
    )
    return build_selected(variants, lambda nest: select_best(nest, trials))


class EinsumTrials:
    """Trials on kernels that are generated for einsums.

    Args:
        environment: the device and the software.
        budget: the time for trials; by default a new one.
        is_final: whether a recipe has to be faster than the generated kernel, because
            no later trial times it against the given one.
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

    @property
    def device(self) -> Device:
        return self.environment.device

    def recall(self, candidate: Candidate) -> VerifiedRecipe | None:
        """See :meth:`Trials.recall`."""
        if verification := find_own_verification(candidate):
            return verification
        verdict = self._get_cached(candidate).recall()
        return None if verdict is None else self._make_verification(verdict, candidate)

    def verify(self, candidate: Candidate) -> VerifiedRecipe:
        """See :meth:`Trials.verify`."""
        if verification := find_own_verification(candidate):
            return verification

        def find() -> Verdict:
            with self.budget.count_time():
                return self._request(candidate)

        verdict = self._get_cached(candidate).recall_or(find)
        return self._make_verification(verdict, candidate)

    def verify_together(self, candidates: Iterable[Candidate]) -> None:
        """Verify several at once, each in a separate process; results are cached."""
        uncached: dict[CachedVerdict, Candidate] = {}
        for candidate in candidates:
            cached = self._get_cached(candidate)
            if candidate.own_record is None and cached.recall() is None:
                uncached[cached] = candidate
        if len(uncached) < 2 or not self.budget.has_time:
            return
        entries = [*uncached]
        with (
            self.budget.count_time(),
            entries[0].locked(),
            tempfile.NamedTemporaryFile(prefix="feinsum-timing-") as timing_lock,
            show_progress(len(uncached), "verifying recipes") as advance,
        ):
            requests = [
                partial(self._request, c, timing_lock.name) for c in uncached.values()
            ]
            for k, verdict in request_together(requests, advance):
                entries[k].store(verdict)

    def _request(self, candidate: Candidate, timing_lock: str = "") -> Verdict:
        spec, frame = candidate.recipe
        logger.info("verifying %.200s on %s", spec, self.device)
        return request_verdict(
            VerificationRequest(
                frame,
                spec,
                self.device.id,
                MEMORY_BYTES,
                _choose_sizes(candidate),
                self.budget.limit_s,
                timing_lock=timing_lock,
            )
        )

    def _get_cached(self, candidate: Candidate) -> CachedVerdict:
        spec, frame = candidate.recipe
        texts = (
            "einsum",
            frame,
            str(spec),
            repr(sorted(_choose_sizes(candidate).items())),
        )
        return CachedVerdict.of(texts, self.environment, is_kept=candidate.is_builtin)

    def _make_verification(
        self, verdict: Verdict, candidate: Candidate
    ) -> VerifiedRecipe:
        """Turn a verdict into a verification.

        Raises:
            TransformError: if the recipe is wrong; also if it is no faster, if this
                trial is final.
        """
        check_verdict(verdict)
        times = f"{verdict.least_s * 1e3:.3g} ms, {verdict.baseline_s * 1e3:.3g} ms"
        # a recipe that gains nothing over Loopy's plain kernel only lengthens builds
        if self.is_final and verdict.speedup <= GAIN:
            raise TransformError(
                f"{NO_FASTER_THAN_GENERATED}: {times}, timed on this machine at "
                f"{verdict.found_at}"
            )
        observation = (
            f"{verdict.speedup:.2g} times as fast as the kernel generated for its "
            f"einsum ({times})"
        )
        return make_verification(verdict, observation, candidate)


def _choose_sizes(candidate: Candidate) -> dict[str, int]:
    """Choose the sizes at which a recipe is timed: near the kernel's, but small."""
    return choose_quick_sizes(from_text(candidate.recipe.frame), dict(candidate.sizes))
