"""The fastest form of a loop over cells: each form is compiled and timed here.

The given loop, the loop whose callee has recipes, and batches of cells are called in
turns, in a separate process, on random arrays. Forms with different results are
dropped. A form is used only if it is clearly faster than the given loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import loopy as lp

from feinsum.errors import FeinsumError, MeasurementError
from feinsum.measure.question import Question
from feinsum.memory import remembered
from feinsum.records import FramedSpec, TransformSpec
from feinsum.retrieval.cell_batches import WIDTHS, batched
from feinsum.retrieval.choice import TIED
from feinsum.retrieval.kernel_text import NoTextError, text_of
from feinsum.retrieval.kernel_times import KernelTimes, timed_kernels
from feinsum.retrieval.replacing import without_unproven
from feinsum.retrieval.request import Request
from feinsum.retrieval.result import Retrieval
from feinsum.retrieval.trust import LIMIT_S, MEMORY_BYTES
from feinsum.retrieval.verifiers import request_verdict
from feinsum.targets.host import HostDevice

__all__ = ["CALLED", "GIVEN", "fastest_form", "fastest_of"]

logger = logging.getLogger(__name__)

N_CELLS = 1003
"""Cells of the timed loop; no batch size divides it."""
CELLS = FramedSpec(TransformSpec("cells", 1, {}), "")
"""What a loop over cells is asked about as, where its callee has no recipe."""
GIVEN, CALLED = 0, 1
"""Values in place of the width of a batch."""


def fastest_form(
    request: Request, found: Retrieval, *, has_batches: bool = True
) -> Retrieval:
    """The retrieval of a loop over cells, with batches of cells if these are faster.

    Args:
        found: the retrieval for the callee; the given unit is returned if nothing is
            faster than it.
        has_batches: whether cells may be computed together, if the request allows it.
    """
    given = request.t_unit
    try:
        may_join = has_batches and request.may_try_forms
        forms = _forms(given, found, has_batches=may_join)
        times = _times(request, found, forms)
    except Exception as error:  # no form may break a build
        is_odd = not isinstance(error, FeinsumError)
        logger.info("a loop over cells is not timed: %s", error, exc_info=is_odd)
        return _proven(given, found, error)
    return fastest_of(found, forms, times)


def fastest_of(
    found: Retrieval,
    forms: Mapping[int, lp.TranslationUnit],
    times: Mapping[int, KernelTimes],
) -> Retrieval:
    """The fastest form, if it is clearly faster than the given one.

    Args:
        forms: forms by batch width.
        times: of all but the given one. Of those tied as fastest, the first is taken.
    """
    gains = {k: t.ratios[0].median for k, t in times.items() if t.is_faster}
    if not gains:
        return _as_given(found, forms, times)
    best = next(k for k, g in gains.items() if g >= TIED * max(gains.values()))
    if best == CALLED:
        return replace(found, gain=f"{times[best]}, timed on this machine")
    words = f"timed on this machine: {times[best]}"
    return replace(found, t_unit=forms[best], nests=(), batch=best, batch_words=words)


def _as_given(
    found: Retrieval,
    forms: Mapping[int, lp.TranslationUnit],
    times: Mapping[int, KernelTimes],
) -> Retrieval:
    """Without the recipes of the kernel that is called, if these do not pay."""
    if CALLED not in times:
        return found
    why = times[CALLED].failure
    nests = tuple(one.without_all(why) for one in found.nests)
    return replace(found, t_unit=forms[GIVEN], nests=nests)


def _proven(given: lp.TranslationUnit, found: Retrieval, why: Exception) -> Retrieval:
    """What was found, if a recipe in it is known to be fast."""
    failures = without_unproven(found.nests, f"the loop over cells: {why}")
    chosen = [k for k, one in enumerate(found.nests) if one.chosen]
    if not chosen or set(failures) != set(chosen):
        return found
    nests = tuple(
        one.without_all(failures[k]) if k in failures else one
        for k, one in enumerate(found.nests)
    )
    return replace(found, t_unit=given, nests=nests)


def _forms(
    given: lp.TranslationUnit, found: Retrieval, *, has_batches: bool
) -> dict[int, lp.TranslationUnit]:
    """The units by the width of their batches."""
    forms = {GIVEN: given}
    if found.applied:
        forms[CALLED] = found.t_unit
    for width in WIDTHS if has_batches else ():
        try:
            forms[width] = batched(given, width)
        except Exception as error:  # noqa: BLE001  (no form may break a build)
            logger.info("no batches of %d cells: %s", width, error)
    if len(forms) == 1:
        raise MeasurementError("there is no other form")
    return forms


class _Known(dict[str, dict[int, KernelTimes]]):
    """The times of earlier questions of this process."""


def _times(
    request: Request, found: Retrieval, forms: Mapping[int, lp.TranslationUnit]
) -> dict[int, KernelTimes]:
    """The times of all forms but the given one.

    Raises:
        FeinsumError: if they cannot be timed, with the reason.
    """
    known = remembered(_Known)
    try:
        applied = tuple(map(str, found.applied))
        key = text_of((request.t_unit, applied, tuple(forms)))
    except NoTextError:
        key = ""
    if key and key in known:
        return known[key]
    given, *others = forms.values()
    opened = request.opened
    if not isinstance(opened, HostDevice):
        raise MeasurementError(f"kernels for {opened.device} are not timed")
    sizes = _sizes(given.default_entrypoint)
    timed = timed_kernels(given, others, opened, sizes, n_unknown=N_CELLS)
    chosen = next((one.chosen for one in found.nests if one.chosen), None)
    spec, frame = chosen or CELLS
    question = Question(frame, spec, opened.device.id, MEMORY_BYTES, sizes, LIMIT_S)
    verdict = timed.request(
        lambda kernels: request_verdict(replace(question, kernels=kernels))
    )
    names = [name for name in forms if name != GIVEN]
    times = dict(zip(names, timed.times(verdict), strict=True))
    if key:
        known[key] = times
    return times


def _sizes(kernel: lp.LoopKernel) -> dict[str, int]:
    """The values of scalars: a loop over some cells.

    Raises:
        MeasurementError: if a scalar is no size.
    """
    scalars = [arg for arg in kernel.args if isinstance(arg, lp.ValueArg)]
    if any(arg.dtype.numpy_dtype.kind not in "iu" for arg in scalars):
        raise MeasurementError("a scalar argument is no size")
    sizes = {arg.name: N_CELLS for arg in scalars}
    if len(scalars) == 2:
        sizes[scalars[0].name] = 0  # where cells begin
    return sizes
