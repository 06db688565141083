"""Building the kernel to return, with the recipes that are trusted."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
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
from feinsum.retrieval.request import Request
from feinsum.retrieval.selection import NestSelection
from feinsum.retrieval.trust import Trust
from feinsum.targets.units import CodedUnit

__all__ = ["build_transformed"]

logger = logging.getLogger(__name__)

MOST_AHEAD = 32
"""Nests with new recipes with which a kernel is built before these are verified."""
N_GENERATED = 3
"""Maximum recipes of a nest that may fail to generate code."""


def build_transformed(
    request: Request,
    raised: RaisedKernel,
    nests: tuple[NestSelection, ...],
    trust: Trust,
) -> tuple[lp.TranslationUnit, tuple[NestSelection, ...]]:
    """Apply the best applicable recipes, each verified before it is tried.

    Returns:
        The unit as the user gets it, for which code can be generated. If no recipe is
        left, it is not used.
    """
    n_left = [N_GENERATED] * len(nests)
    while True:
        nests, built = _select_and_build(request, raised, nests, trust)
        if not built.failures:
            return built.unit, nests
        for k in built.failures:
            n_left[k] -= built.is_applied
        nests = tuple(
            _skip_first(one, built.failures[k], is_last=not n_left[k])
            if k in built.failures
            else one
            for k, one in enumerate(nests)
        )


class _Built(NamedTuple):
    """A kernel with the recipes of its nests.

    Attributes:
        failures: why a recipe cannot be applied, or makes no code, by nest.
        is_applied: all of them could be applied.
    """

    unit: lp.TranslationUnit
    failures: Mapping[int, Exception]
    is_applied: bool


def _select_and_build(
    request: Request,
    raised: RaisedKernel,
    nests: tuple[NestSelection, ...],
    trust: Trust,
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
        return nests, _built(request, raised, nests)
    prepare_first(unknown, trust)
    with trust.hold_timing() as timing_hold, ThreadPoolExecutor(1) as pool:
        guess = pool.submit(_built_ahead, request, raised, nests, timing_hold)
        judged = select_all_trusted(nests, trust)
    if [one.chosen for one in judged] == [one.chosen for one in nests]:
        return judged, guess.result()
    return judged, _built(request, raised, judged)


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Loopy's, as when code is generated
            request.opened.build(unit)
    except BuildError as error:
        return error
    except FeinsumError:  # there is no compiler, as the first run will say
        return None
    return None


def _skip_first(
    one: NestSelection, error: Exception, *, is_last: bool = False
) -> NestSelection:
    left = one.without_first(error)
    logger.warning("recipe %.200s was skipped: %s", *left.failures[-1])
    return replace(left, candidates=()) if is_last else left
