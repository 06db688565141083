"""Kernels for calls without a recorded recipe: predicted, built and checked here.

A candidate is checked in this process, on the kernel that the call will run. That is
acceptable because the recipe is one of feinsum's own; starting a separate process would
take longer than everything else together. If it costs the process its GPU all the same,
:func:`note_fault` excludes the recipe in later processes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from feinsum.cache import get_default_cache
from feinsum.calling.einsum_call import StridedTerm, compute_c_steps
from feinsum.calling.kernel import CallKernel, with_wide_sums
from feinsum.calling.structure import OUTPUT
from feinsum.codegen import Strides, generate_loopy
from feinsum.errors import DeviceLostError, FeinsumError
from feinsum.ir import BatchedEinsum, bind_shape, to_text
from feinsum.measure import OpenDevice, compile_kernel, count_footprint_bytes
from feinsum.measure.cases import check_samples, make_patterned, make_ragged_cases
from feinsum.measure.reference import NEVER_LONG
from feinsum.predict import predict_recipes
from feinsum.raising import identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.result_memory import make_aligned
from feinsum.retrieval.identity import compute_fingerprint, is_ours
from feinsum.targets.protocol import Array
from feinsum.transforms import apply_spec
from feinsum.transforms.cost import Costed

logger = logging.getLogger(__name__)

N_TRIED = 3
"""Predictions that are tried before an untransformed kernel is used instead."""
DOUBT = 2.0
"""Maximum predicted slowdown at which a recipe may still be the fastest."""
CHECKED_BYTES = 1 << 27
"""Maximum bytes of arrays made for a check; larger einsums are checked on the operands
of the call."""


@dataclass(frozen=True)
class UnrecordedCall:
    """A call without a record.

    Attributes:
        einsum: the canonical einsum, to whose names recipes refer.
        sizes: values of its size parameters.
        strides: strides of the arrays that are not in C order.
        arrays: the operands of the call, by name; empty if they are not on the host.
        steps: values of the named strides, in entries.
    """

    einsum: BatchedEinsum
    sizes: Mapping[str, int]
    strides: Mapping[str, Strides]
    arrays: Mapping[str, Array]
    steps: Mapping[str, int]


def build_predicted_kernel(
    problem: UnrecordedCall,
    opened: OpenDevice,
    accept: Callable[[CallKernel], None] = lambda _kernel: None,
    candidates: Sequence[Costed] | None = None,
) -> tuple[CallKernel, list[TransformSpec]] | None:
    """Build the kernel that is expected to be the fastest among the correct ones.

    Args:
        problem: the call, for which no fact is recorded.
        opened: the device that runs the kernel.
        accept: raises a FeinsumError for a kernel that must not be used.
        candidates: the predictions to consider; None for all.

    Returns:
        The kernel, with the next recipes, which may turn out to be faster; or None if
        no family has a prediction, or none of those tried works.

    Raises:
        DeviceLostError: if a candidate cost this process the device; see
            :mod:`feinsum.calling.predicted`.
    """
    if candidates is None:
        candidates = _list_predictions(problem, opened)
    # each failure costs a build: after a few, a plain kernel is the better choice
    for k, candidate in enumerate(candidates[:N_TRIED]):
        try:
            kernel = build_checked_kernel(candidate.spec, problem, opened)
            accept(kernel)
        except DeviceLostError:
            note_fault(problem.einsum, candidate.spec, opened)
            raise
        except FeinsumError as error:
            logger.warning("skipped the predicted recipe %s: %s", candidate.spec, error)
        except Exception:  # no recipe may break a call
            logger.exception("skipped the predicted recipe %s", candidate.spec)
        else:
            # predictions may be wrong by this factor
            close_rivals = (
                x for x in candidates[k + 1 :] if x.seconds <= DOUBT * candidate.seconds
            )
            return kernel, [x.spec for x in close_rivals]
    return None


def list_predicted_families(
    problem: UnrecordedCall, opened: OpenDevice
) -> list[list[Costed]]:
    """Return the predictions by family, the fastest first."""
    families: dict[str, list[Costed]] = {}
    for prediction in _list_predictions(problem, opened):
        families.setdefault(prediction.spec.name, []).append(prediction)
    return [*families.values()]


def build_checked_kernel(
    spec: TransformSpec, problem: UnrecordedCall, opened: OpenDevice
) -> CallKernel:
    """Build the kernel with a recipe, and check its results.

    Raises:
        FeinsumError: if it cannot be built, or is wrong.
    """
    kernel = _build_kernel(spec, problem, opened)
    _check(kernel, problem)
    return kernel


def _list_predictions(problem: UnrecordedCall, opened: OpenDevice) -> list[Costed]:
    """Return all predictions; an empty list if the cost function of a family fails."""
    try:
        return predict_recipes(problem.einsum, problem.sizes, opened.device)
    except Exception:  # families of users may raise anything
        logger.exception("nothing is predicted for %s", problem.einsum.subscripts)
        return []


def _build_kernel(
    spec: TransformSpec, problem: UnrecordedCall, opened: OpenDevice
) -> CallKernel:
    einsum = problem.einsum
    plain = opened.prepare(generate_loopy(einsum, strides=problem.strides))
    # recipes refer to the names of the canonical einsum, as raising finds them
    t_unit, nest = identify_as_einsum(plain, einsum, long_extent=NEVER_LONG)
    unit = apply_spec(spec, t_unit, nest)
    if opened.reads_in_place:
        unit = with_wide_sums(unit, einsum, problem.sizes)
    return CallKernel(compile_kernel(unit, opened), spec=spec)


def _check(kernel: CallKernel, problem: UnrecordedCall) -> None:
    """Run a kernel, and compare samples of its results with numpy.

    Raises:
        WrongResultError: if an entry is wrong.
    """
    einsum = problem.einsum
    for sizes, arrays, steps in _list_cases(problem):
        steps = {**steps}
        out = _lay_out_array(
            bind_shape(einsum.output_shape, sizes),
            problem.strides.get(OUTPUT),
            lambda n: make_aligned((n,), einsum.output_dtypes[0]),
            steps,
        )
        caller = kernel.compiled.built.caller([*arrays], {**sizes, **steps})
        check_samples(einsum, sizes, arrays, caller([*arrays.values()], out))


def _list_cases(
    problem: UnrecordedCall,
) -> Iterator[tuple[Mapping[str, int], Mapping[str, Array], Mapping[str, int]]]:
    """Yield sizes, operands and values of strides for the checks.

    Size parameters get values that no tile divides, to check the rest loops.
    """
    einsum = problem.einsum
    tried = make_ragged_cases(einsum)[1] if einsum.size_params else [{}]
    # making arrays of that size once more would take longer than the call
    if not einsum.size_params and problem.arrays and _is_large(einsum):
        yield problem.sizes, problem.arrays, problem.steps
        return
    for sizes in tried:
        steps: dict[str, int] = {}
        arrays = {
            operand.name: _lay_out_array(
                bind_shape(operand.shape, sizes),
                problem.strides.get(operand.name),
                partial(_make_patterned, operand.dtype, seed),
                steps,
            )
            for seed, operand in enumerate(einsum.operands)
        }
        yield sizes, arrays, steps


def _is_large(einsum: BatchedEinsum) -> bool:
    return count_footprint_bytes(einsum, {}) > CHECKED_BYTES


def _make_patterned(dtype: np.dtype[Any], seed: int, size: int) -> Array:
    return make_patterned((size,), dtype, seed)


def _lay_out_array(
    shape: tuple[int, ...],
    strides: Strides | None,
    make: Callable[[int], Array],
    steps: dict[str, int],
) -> Array:
    """Make an array with given strides, choosing values for those that have names.

    Args:
        shape: shape of the array.
        strides: strides in entries; None for C order.
        make: allocates a flat array with the given number of entries.
        steps: receives the chosen values, by name.
    """
    axis_strides = [None] * len(shape) if strides is None else [*strides]
    # an axis of unit step is innermost, the others as in C order
    order = sorted(range(len(shape)), key=lambda axis: (axis_strides[axis] != 1, -axis))
    chosen, step = [0] * len(shape), 1
    for axis in order:
        stride = axis_strides[axis]
        chosen[axis] = stride if isinstance(stride, int) else step
        step = max(step, chosen[axis] * shape[axis])
        if isinstance(stride, str):
            steps[stride] = chosen[axis]
    return view_as(make(step), StridedTerm((), shape, tuple(chosen)))


def view_as(array: Array, strided: StridedTerm) -> Array:
    """View the same memory with other axes."""
    strides = tuple(step * array.itemsize for step in strided.steps)
    if array.shape == strided.extents and array.strides == strides:
        return array
    if array.flags.c_contiguous and strided.steps == compute_c_steps(strided.extents):
        return array.reshape(strided.extents)
    return np.lib.stride_tricks.as_strided(array, strided.extents, strides)


def note_fault(einsum: BatchedEinsum, spec: TransformSpec, opened: OpenDevice) -> None:
    """Record in the cache that a recipe crashed the device, so that it is not retried.

    Nothing is recorded about transforms of users, whose source may change.
    """
    cache = get_default_cache()
    if cache is not None and is_ours(spec):
        cache.write(_make_key(einsum, spec, opened), str(spec).encode())


def is_faulty(einsum: BatchedEinsum, spec: TransformSpec, opened: OpenDevice) -> bool:
    """Return whether the recipe has cost a process of this machine its GPU."""
    cache = get_default_cache()
    return cache is not None and cache.read(_make_key(einsum, spec, opened)) is not None


def _make_key(einsum: BatchedEinsum, spec: TransformSpec, opened: OpenDevice) -> str:
    device = compute_fingerprint(opened.environment({}))
    text = "\0".join(("fault", to_text(einsum), str(spec), device))
    return hashlib.sha256(text.encode()).hexdigest()
