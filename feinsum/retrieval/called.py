"""Retrieval for the kernel that a loop over cells calls, instead of for the caller.

PyOP2 and others wrap a one-cell kernel in a loop that gathers its inputs and scatters
its outputs. The einsums are in the callee; the caller is unchanged.
"""

from __future__ import annotations

from dataclasses import replace

import loopy as lp

from feinsum.errors import FeinsumError, TransformError
from feinsum.raising import called_kernels
from feinsum.retrieval.generating import refusal
from feinsum.retrieval.request import Request
from feinsum.retrieval.result import Retrieval
from feinsum.targets.devices import target_of

__all__ = ["called_request", "in_its_place"]


def called_request(request: Request) -> Request | None:
    """The request for the one kernel that a kernel calls; None if it calls none.

    It is for a plain function: a called kernel has no threads of its own.
    """
    unit = request.t_unit
    if not isinstance(unit, lp.TranslationUnit) or not _is_plain_function(unit):
        return None
    if len(unit.entrypoints) != 1:
        return None
    (name,) = unit.entrypoints
    called = called_kernels(unit, name)
    if request.kernel_name not in (None, name) or len(called) != 1:
        return None
    inner = unit.copy(entrypoints=frozenset(called))
    return replace(request, t_unit=inner, kernel_name=None, arguments=None)


def _is_plain_function(unit: lp.TranslationUnit) -> bool:
    if not isinstance(unit.target, lp.CTarget):
        return False
    try:
        return not target_of(unit.target).runs_programs(unit.target)
    except FeinsumError:
        return False


def in_its_place(request: Request, found: Retrieval) -> Retrieval:
    """The given unit, with the retrieved kernel as the callee.

    Raises:
        TransformError: if no code can be generated for it.
    """
    if not found.applied:
        return replace(found, t_unit=request.t_unit)
    (name,), (caller,) = found.t_unit.entrypoints, request.t_unit.entrypoints
    kernel = found.t_unit[name]
    around = request.t_unit[caller].copy(index_dtype=kernel.index_dtype)
    unit = request.t_unit.with_kernel(kernel).with_kernel(around)
    unit = unit.copy(target=found.t_unit.target)
    error = refusal(unit)
    if error is not None and refusal(request.t_unit) is None:
        raise TransformError(f"kernel {name!r} does not fit its caller: {error}")
    return replace(found, t_unit=unit)
