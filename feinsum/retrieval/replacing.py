"""Whether a kernel with recipes takes the place of the one that the user gave.

A recipe is verified, and compared with others, on a kernel that is generated for the
einsum: at other sizes, without the user's layouts, functions and other instructions.
Here the whole kernel is timed beside the given one; see
:mod:`feinsum.retrieval.kernel_times`. The given one comes back only if it was timed,
and nothing was certain to be faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import loopy as lp

from feinsum.errors import FeinsumError, MeasurementError, TransformError
from feinsum.measure.judging import quick_sizes
from feinsum.measure.question import Question, Verdict
from feinsum.measure.reference import reference_of
from feinsum.measure.verification import tolerance_for
from feinsum.raising import RaisedKernel
from feinsum.records import OK
from feinsum.retrieval.installation import is_ours
from feinsum.retrieval.kernel_text import NoTextError, text_of
from feinsum.retrieval.kernel_times import KernelTimes, timed_kernels
from feinsum.retrieval.request import Request
from feinsum.retrieval.selection import (
    NO_FASTER_THAN_GENERATED,
    NestSelection,
)
from feinsum.retrieval.trust import MEMORY_BYTES, KernelCase, Trust
from feinsum.retrieval.verifiers import request_verdict
from feinsum.select import GAIN
from feinsum.targets.host import HostDevice
from feinsum.targets.layout import bind_sizes_of, entry_kernel

__all__ = ["Outcome", "Replacement", "can_time", "without_unproven"]

logger = logging.getLogger(__name__)

UNKNOWN_SIZE = 1000
"""Of a loop that belongs to no einsum."""

Build = Callable[[Sequence[NestSelection]], lp.TranslationUnit | None]


def can_time(request: Request) -> bool:
    """Whether given kernels are timed on the device of a request."""
    return isinstance(request.opened, HostDevice)


@dataclass(frozen=True)
class Outcome:
    """What was found about a kernel with recipes.

    Attributes:
        failures: why nests lose their first candidate, by their numbers.
        gain: what the user has of the recipes, in words.
    """

    failures: Mapping[int, Exception]
    gain: str = ""


@dataclass(frozen=True)
class Replacement:
    """A given kernel, which others may replace.

    Args:
        build: the unit in which some of the nests have their recipes, as the user gets
            it; None if there is none.
    """

    request: Request
    raised: RaisedKernel
    trust: Trust
    build: Build

    def recall(self, nests: Sequence[NestSelection]) -> Outcome | None:
        """What is known without building the kernel; None if nothing is."""
        verdict = self._case(nests).recall()
        return None if verdict is None else _outcome(verdict, nests)

    def judge(
        self, nests: Sequence[NestSelection], unit: lp.TranslationUnit
    ) -> Outcome:
        """Time a kernel with recipes beside the given one.

        If it is not faster, the recipes of different einsums are timed alone, and those
        that gain something remain.
        """
        verdict = self._case(nests).verdict(
            lambda limit_s: self._summary([unit], nests, limit_s)[0]
        )
        groups = _groups(nests)
        if verdict.is_ok or len(groups) == 1 or not _was_timed(verdict):
            return _outcome(verdict, nests)
        return self._blame(verdict, nests, groups)

    def _blame(
        self,
        verdict: Verdict,
        nests: Sequence[NestSelection],
        groups: Sequence[frozenset[int]],
    ) -> Outcome:
        """The nests whose recipes do not pay, where a kernel has several."""
        alone = [self._chosen_only(nests, group) for group in groups]
        units = [self.build(one) for one in alone]
        built = [k for k, unit in enumerate(units) if unit is not None]
        times: dict[int, KernelTimes] = {}
        if built:
            given = [unit for unit in units if unit is not None]
            try:
                found = self._times(given, nests, self.trust.limit_s)
                times = dict(zip(built, found, strict=True))
            except FeinsumError as error:
                logger.info("recipes are not timed alone: %s", error)
        paying = [k for k in times if times[k].is_faster]
        if len(paying) == len(groups):  # but not together: the best one remains
            paying = [max(paying, key=lambda k: times[k].ratios[0].median)]
        kept = frozenset[int]().union(*(groups[k] for k in paying))
        failures = {
            number: times[k].failure
            if k in times and not times[k].is_faster
            else _error(verdict)
            for k, group in enumerate(groups)
            for number in group - kept
        }
        return Outcome(failures)

    def _chosen_only(
        self, nests: Sequence[NestSelection], group: frozenset[int]
    ) -> list[NestSelection]:
        return [
            one if k in group else replace(one, is_separable=False)
            for k, one in enumerate(nests)
        ]

    def _summary(
        self,
        units: Sequence[lp.TranslationUnit],
        nests: Sequence[NestSelection],
        limit_s: float,
    ) -> tuple[Verdict, ...]:
        """A verdict on each of the kernels: the code ``ok`` if it is faster."""
        try:
            return tuple(map(_verdict, self._times(units, nests, limit_s)))
        except FeinsumError as error:
            why = Verdict(error.code, f"the given kernel was not timed: {error}")
        except Exception as error:  # of Loopy, of many kinds; no timing breaks a build
            logger.info("the given kernel was not timed", exc_info=True)
            reason = f"the given kernel was not timed: {type(error).__name__}: {error}"
            why = Verdict(MeasurementError.code, reason)
        return (why,) * len(units)

    def _times(
        self,
        units: Sequence[lp.TranslationUnit],
        nests: Sequence[NestSelection],
        limit_s: float,
    ) -> tuple[KernelTimes, ...]:
        given, opened = self._given, self.request.opened
        assert isinstance(opened, HostDevice)
        sizes = self._sizes
        exactness = max((_tolerance(one, sizes) for one in nests), default=0.0)
        timed = timed_kernels(given, units, opened, sizes, exactness=exactness)
        chosen = next(one for one in nests if one.chosen)
        assert chosen.chosen is not None
        spec, frame = chosen.chosen
        question = Question(frame, spec, opened.device.id, MEMORY_BYTES, sizes, limit_s)
        verdict = timed.request(
            lambda kernels: request_verdict(replace(question, kernels=kernels))
        )
        return timed.times(verdict)

    @property
    def _given(self) -> lp.TranslationUnit:
        """The given kernel, with the dtypes and sizes of given arguments."""
        is_open = bool(self.request.arguments)
        return self.raised.t_unit if is_open else self.request.t_unit

    @cached_property
    def _sizes(self) -> dict[str, int]:
        """Values of the integer scalars: as given, or near those of the einsums."""
        kernel = entry_kernel(self._given)
        scalars = {
            arg.name
            for arg in kernel.args
            if isinstance(arg, lp.ValueArg)
            and (arg.dtype is None or arg.dtype.numpy_dtype.kind in "iu")
        }
        loops = scalars & kernel.outer_params()
        sizes = dict.fromkeys(sorted(loops), UNKNOWN_SIZE)
        for one in self.raised.raised:
            quick = quick_sizes(one.einsum, one.generalized)
            sizes |= {name: n for name, n in quick.items() if name in scalars}
        return sizes | bind_sizes_of(kernel, self.request.arguments or {})

    def _case(self, nests: Sequence[NestSelection]) -> KernelCase:
        chosen = [one.chosen for one in nests]
        is_known = all(is_ours(recipe.spec) for recipe in chosen if recipe)
        recipes = "\n".join(f"{r.frame} {r.spec}" if r else "" for r in chosen)
        return self.trust.kernel_case(
            f"{self._text}\n{recipes}", is_ours=is_known and bool(self._text)
        )

    @cached_property
    def _text(self) -> str:
        """The text of the given kernel; empty if it has none."""
        try:
            return text_of((self._given, sorted(self._sizes.items())))
        except NoTextError as error:
            logger.info("that it is faster is not cached: %s", error)
            return ""


def without_unproven(nests: Sequence[NestSelection], why: str) -> dict[int, Exception]:
    """The nests whose recipes are not known to be faster than anything."""
    return {
        k: TransformError(f"{NO_FASTER_THAN_GENERATED}; {why}")
        for k, one in enumerate(nests)
        if one.chosen and one.speedup <= GAIN
    }


def _outcome(verdict: Verdict, nests: Sequence[NestSelection]) -> Outcome:
    if verdict.is_ok:
        when = f"timed on this machine at {verdict.found_at}"
        return Outcome({}, f"{verdict.message}, {when}")
    if not _was_timed(verdict):
        return Outcome(without_unproven(nests, verdict.message))
    return Outcome({k: _error(verdict) for k, one in enumerate(nests) if one.chosen})


def _was_timed(verdict: Verdict) -> bool:
    """Whether a kernel lost, rather than that it could not be timed."""
    return verdict.baseline_s > 0


def _error(verdict: Verdict) -> Exception:
    when = f"timed on this machine at {verdict.found_at}"
    return TransformError(f"{verdict.message}, {when}")


def _verdict(times: KernelTimes) -> Verdict:
    """A verdict that can be cached."""
    code, message = OK, str(times)
    if not times.is_faster:
        code, message = times.failure.code, str(times.failure)
    return Verdict(
        code,
        message,
        least_s=times.kernel_s,
        baseline_s=max(times.given_s, 1e-9),
    )


def _groups(nests: Sequence[NestSelection]) -> list[frozenset[int]]:
    """The numbers of nests with equal workloads and recipes."""
    groups: dict[object, set[int]] = {}
    for k, one in enumerate(nests):
        if one.chosen:
            groups.setdefault((one.nest.key, one.chosen), set()).add(k)
    return [frozenset(group) for group in groups.values()]


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
