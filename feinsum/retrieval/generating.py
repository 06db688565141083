"""Code generation for retrieved kernels, whose failures must not reach the user.

Settings of the user, such as an array layout or an assumption, can make Loopy refuse a
kernel that a recipe wrote. The user's build must not be the one to find out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

import loopy as lp
import numpy as np
from loopy.target import TargetBase

from feinsum.cache import default_cache
from feinsum.errors import TransformError
from feinsum.raising import RaisedKernel
from feinsum.retrieval.applying import Applied, applied
from feinsum.retrieval.sampling import sample
from feinsum.retrieval.selection import NestSelection
from feinsum.targets.devices import target_of
from feinsum.targets.quiet import quicker, quiet, uncached
from feinsum.targets.units import CodedUnit, HeldCode, LibraryUnit
from feinsum.words import first_lines


def generation_failures(
    raised: RaisedKernel,
    nests: Sequence[NestSelection],
    made: Applied,
    unit: lp.TranslationUnit,
) -> Mapping[int, Exception]:
    """The nests whose recipes make code generation fail, and why.

    For identical nests, code is generated once, since there may be many. Arguments that
    get their dtypes in a call have some others here.

    Args:
        unit: the result, as the user gets it.
    """
    target, some = raised.t_unit.target, sample(raised, nests, made)
    error = refusal(_typed(unit if some is made.unit else delivered(some, target)))
    if error is not None and some is not made.unit:
        error = refusal(_typed(unit))  # what a sample lacks is no fault of it
    if error is None:
        return {}
    chosen = [k for k, one in enumerate(nests) if one.chosen]
    if len(chosen) == 1:
        return {chosen[0]: error}
    alone = {
        k: refusal(_typed(delivered(_with_one(raised, nests, k), target)))
        for k in chosen
    }
    found = {k: reason for k, reason in alone.items() if reason is not None}
    return found or dict.fromkeys(chosen, error)


def _typed(unit: lp.TranslationUnit) -> lp.TranslationUnit:
    """A unit whose arguments all have dtypes; itself if they have."""
    for name in () if isinstance(unit, LibraryUnit) else unit.entrypoints:
        kernel = unit[name]
        dtypes = {
            arg.name: kernel.index_dtype if isinstance(arg, lp.ValueArg) else np.float64
            for arg in kernel.args
            if arg.dtype is None
        }
        if dtypes:
            args = [
                arg.copy(dtype=dtypes[arg.name]) if arg.name in dtypes else arg
                for arg in kernel.args
            ]
            unit = unit.with_kernel(kernel.copy(args=args))
    return unit


def _with_one(
    raised: RaisedKernel, nests: Sequence[NestSelection], k: int
) -> lp.TranslationUnit:
    """The kernel in which one nest has its recipe."""
    alone = [
        one if k == j else replace(one, is_separable=False)
        for j, one in enumerate(nests)
    ]
    return applied(raised, alone).unit


def delivered(unit: lp.TranslationUnit, target: TargetBase) -> lp.TranslationUnit:
    """A unit as the user gets it, for the target of the given kernel."""
    return target_of(target).delivered(unit, target)


def in_caller(
    given: lp.TranslationUnit, unit: lp.TranslationUnit
) -> lp.TranslationUnit:
    """The given unit with the transformed kernel as its callee, if it calls that.

    Args:
        unit: the transformed unit, delivered; its entry points are the given ones if
            there is no caller.

    Raises:
        TransformError: if no code can be generated for it.
    """
    if unit.entrypoints == given.entrypoints:
        return unit
    (name,), (caller,) = unit.entrypoints, given.entrypoints
    kernel = unit[name]
    around = given[caller].copy(index_dtype=kernel.index_dtype)
    joined = given.with_kernel(kernel).with_kernel(around).copy(target=unit.target)
    error = refusal(joined)
    if error is not None and refusal(given) is None:
        raise TransformError(f"kernel {name!r} does not fit its caller: {error}")
    return joined


def with_shelf(unit: lp.TranslationUnit) -> lp.TranslationUnit:
    """A unit that stores its code once generated, for its executor to use.

    Running the unit then does not wait for Loopy a second time.
    """
    target = target_of(unit.target)
    is_run_here = target.is_in_process and target.runs_programs(unit.target)
    is_plain = not isinstance(unit, LibraryUnit) and len(unit.entrypoints) == 1
    return CodedUnit.of(unit, HeldCode()) if is_run_here and is_plain else unit


def refusal(unit: lp.TranslationUnit) -> Exception | None:
    """Why Loopy cannot generate code; None if it can. Nothing is printed."""
    if isinstance(unit, LibraryUnit):
        return None
    try:
        generated(unit)
    except TransformError as error:
        return error
    return None


def generated(unit: lp.TranslationUnit) -> str:
    """The code that Loopy generates. Nothing is printed.

    Raises:
        TransformError: if there is none.
    """
    try:
        is_cached_here = default_cache() is not None
        with (
            quiet(Warning),
            uncached() if is_cached_here else nullcontext(),
            quicker(),
        ):
            if isinstance(unit, CodedUnit):
                return str(unit.executor().generated().source)
            return str(lp.generate_code_v2(unit).device_code())
    except Exception as error:  # Loopy raises errors of many kinds
        raise TransformError(
            f"no code can be generated: {type(error).__name__}: {first_lines(error)}"
        ) from error
