"""Building the kernel to return, with the recipes that are trusted."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import loopy as lp

from feinsum.cache import default_cache
from feinsum.errors import BuildError, FeinsumError
from feinsum.raising import RaisedKernel
from feinsum.retrieval.applying import applied
from feinsum.retrieval.choice import (
    is_first_unknown,
    prepare_first,
    select_all_trusted,
)
from feinsum.retrieval.generating import delivered, generation_failures, with_shelf
from feinsum.retrieval.replacing import Outcome, Replacement
from feinsum.retrieval.request import Request
from feinsum.retrieval.selection import NestSelection
from feinsum.retrieval.trust import Trust
from feinsum.targets.quiet import quiet
from feinsum.targets.units import CodedUnit

__all__ = ["Transformed", "build_transformed"]

logger = logging.getLogger(__name__)

MOST_AHEAD = 32
"""Nests with new recipes with which a kernel is built before these are verified."""
N_TRIED = 3
"""Maximum recipes of a nest with which the kernel may have no code, or be slow."""


class Transformed(NamedTuple):
    """A kernel with the best recipes, as the user gets it.

    Attributes:
        unit: code can be generated for it. If no nest has a recipe, it is not used.
        gain: what the user has of the recipes, in words; empty if that was not timed.
    """

    unit: lp.TranslationUnit
    nests: tuple[NestSelection, ...]
    gain: str = ""


def build_transformed(
    request: Request,
    raised: RaisedKernel,
    nests: tuple[NestSelection, ...],
    trust: Trust,
    *,
    is_timed: bool,
) -> Transformed:
    """Apply the best applicable recipes, each verified before it is tried.

    Args:
        is_timed: whether the kernel also has to be faster than the given one.
    """
    n_left = [N_TRIED] * len(nests)
    place = Replacement(request, raised, trust, partial(_unit_with, request, raised))
    replacing = place if is_timed else None
    while True:
        nests, built = _select_and_build(request, raised, nests, trust, replacing)
        if not built.failures:
            return Transformed(built.unit, nests, built.gain)
        for k in built.failures:
            n_left[k] -= built.is_applied
        skip = _skip_slower if built.is_slow else _skip_first
        nests = tuple(
            skip(one, built.failures[k], is_last=not n_left[k])
            if k in built.failures
            else one
            for k, one in enumerate(nests)
        )


class _Built(NamedTuple):
    """A kernel with the recipes of its nests.

    Attributes:
        failures: why a recipe cannot be applied, makes no code, or gains nothing, by
            nest.
        is_applied: all of them could be applied.
        is_slow: the failures are recipes that gain nothing.
        gain: see :class:`Transformed`.
    """

    unit: lp.TranslationUnit
    failures: Mapping[int, Exception]
    is_applied: bool
    is_slow: bool = False
    gain: str = ""


def _select_and_build(
    request: Request,
    raised: RaisedKernel,
    nests: tuple[NestSelection, ...],
    trust: Trust,
    replacing: Replacement | None,
) -> tuple[tuple[NestSelection, ...], _Built]:
    """Judge the recipes, and build the kernel with those that are believed.

    Most first recipes are. So while other processes verify those that are new, the
    kernel is built with them here. Nothing is run for that: code is generated, of
    recipes that are in the space of a transform of ours. Times are taken when that is
    done; with very many, the processes would wait too long for it.
    """
    unknown = [one for one in nests if is_first_unknown(one, trust)]
    if not 0 < len(unknown) <= MOST_AHEAD:
        nests = select_all_trusted(nests, trust)
        return nests, _built_and_timed(request, raised, nests, replacing)
    prepare_first(unknown, trust)
    with trust.hold_timing() as timing_hold, ThreadPoolExecutor(1) as pool:
        guess = pool.submit(_built_ahead, request, raised, nests, timing_hold)
        judged = select_all_trusted(nests, trust)
    if [one.chosen for one in judged] == [one.chosen for one in nests]:
        return judged, _timed(guess.result(), judged, replacing)
    return judged, _built_and_timed(request, raised, judged, replacing)


def _built_ahead(
    request: Request,
    raised: RaisedKernel,
    nests: tuple[NestSelection, ...],
    timing_hold: ExitStack,
) -> _Built:
    """Built while others are judged.

    Args:
        timing_hold: closed at the end, when times may be taken.
    """
    with timing_hold:
        return _built(request, raised, nests)


def _built(
    request: Request, raised: RaisedKernel, nests: tuple[NestSelection, ...]
) -> _Built:
    made = applied(raised, nests)
    if made.failures or not any(nest.chosen for nest in nests):
        return _Built(made.unit, made.failures, is_applied=False)
    unit = with_shelf(delivered(made.unit, raised.t_unit.target))
    failures = generation_failures(raised, nests, made, unit)
    if not failures and (error := _build_failure(request, unit)):
        failures = {k: error for k, nest in enumerate(nests) if nest.chosen}
    return _Built(unit, failures, is_applied=True)


def _build_failure(request: Request, unit: lp.TranslationUnit) -> BuildError | None:
    """Why a unit that is run here does not compile.

    The compiled code is in the cache, where the first run finds it.
    """
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


def _built_and_timed(
    request: Request,
    raised: RaisedKernel,
    nests: tuple[NestSelection, ...],
    replacing: Replacement | None,
) -> _Built:
    """The kernel, unless it is known to be slower than the given one."""
    if replacing is not None and any(nest.chosen for nest in nests):
        known = replacing.recall(nests)
        if known is not None and known.failures:
            return _with_outcome(_Built(raised.t_unit, {}, is_applied=True), known)
    return _timed(_built(request, raised, nests), nests, replacing)


def _timed(
    built: _Built, nests: tuple[NestSelection, ...], replacing: Replacement | None
) -> _Built:
    """The kernel, timed beside the given one if it can be built."""
    is_built = built.is_applied and not built.failures
    if replacing is None or not is_built:
        return built
    return _with_outcome(built, replacing.judge(nests, built.unit))


def _with_outcome(built: _Built, outcome: Outcome) -> _Built:
    return built._replace(
        failures=outcome.failures, is_slow=bool(outcome.failures), gain=outcome.gain
    )


def _unit_with(
    request: Request, raised: RaisedKernel, nests: Sequence[NestSelection]
) -> lp.TranslationUnit | None:
    built = _built(request, raised, tuple(nests))
    return None if built.failures or not built.is_applied else built.unit


def _skip_slower(
    one: NestSelection, error: Exception, *, is_last: bool = False
) -> NestSelection:
    left = one.without_slower(error)
    return replace(left, candidates=()) if is_last else left


def _skip_first(
    one: NestSelection, error: Exception, *, is_last: bool = False
) -> NestSelection:
    left = one.without_first(error)
    logger.warning("recipe %.200s was skipped: %s", *left.failures[-1])
    return replace(left, candidates=()) if is_last else left
