"""Kernels for calls without a record: predicted, built and checked here.

A candidate is checked in this process, on the kernel that the call will run. It is one
of feinsum's own recipes, and starting a separate process would take longer than
everything else together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from feinsum.calling.accumulators import with_wide_sums
from feinsum.calling.faults import note_fault
from feinsum.calling.kernel import OUTPUT, CallKernel
from feinsum.calling.reading.strided import StridedTerm, c_steps
from feinsum.codegen import Strides, generate_loopy
from feinsum.errors import DeviceLostError, FeinsumError
from feinsum.ir import BatchedEinsum, shape_at
from feinsum.measure import OpenDevice, compile_kernel, footprint_bytes
from feinsum.measure.cases import check_samples, patterned, ragged_cases
from feinsum.measure.reference import NEVER_LONG
from feinsum.predict import predictions
from feinsum.raising import identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.result_memory import aligned_empty
from feinsum.targets.protocol import Array
from feinsum.transforms import apply_spec
from feinsum.transforms.ranking import Costed

logger = logging.getLogger(__name__)

N_TRIED = 3
"""Predictions that are tried before an untransformed kernel takes their place."""
DOUBT = 2.0
"""Largest predicted slowdown at which a recipe may be the fastest after all."""
CHECKED_BYTES = 1 << 27
"""Most bytes of arrays made for a check; larger einsums are checked on those given."""


@dataclass(frozen=True)
class Problem:
    """A call without a record.

    Attributes:
        einsum: the canonical einsum, to whose names recipes refer.
        sizes: values of its size parameters.
        strides: of arrays that are not in C order.
        given: the operands of the call, by name; none if they are not on the
            host.
        steps: values of the named strides.
    """

    einsum: BatchedEinsum
    sizes: Mapping[str, int]
    strides: Mapping[str, Strides]
    given: Mapping[str, Array]
    steps: Mapping[str, int]


def predicted_kernel(
    problem: Problem,
    opened: OpenDevice,
    accept: Callable[[CallKernel], None] = lambda _kernel: None,
    found: Sequence[Costed] | None = None,
) -> tuple[CallKernel, list[TransformSpec]] | None:
    """The kernel expected to be the fastest among the correct ones.

    Args:
        accept: raises a FeinsumError for a kernel that is not to be taken.
        found: the predictions; None for all.

    Returns:
        The kernel, with the next recipes that may turn out to be faster; or None if no
        family has a prediction, or none of those tried works.

    Raises:
        DeviceLostError: if one of them cost this process the device; see
            :mod:`feinsum.calling.faults`.
    """
    if found is None:
        found = _predictions(problem, opened)
    for k, one in enumerate(found[:N_TRIED]):
        try:
            kernel = checked_kernel(one.spec, problem, opened)
            accept(kernel)
        except DeviceLostError:
            note_fault(problem.einsum, one.spec, opened)
            raise
        except FeinsumError as error:
            logger.warning("skipped the predicted recipe %s: %s", one.spec, error)
        except Exception:  # no recipe may break a call
            logger.exception("skipped the predicted recipe %s", one.spec)
        else:
            near = (x for x in found[k + 1 :] if x.seconds <= DOUBT * one.seconds)
            return kernel, [x.spec for x in near]
    return None


def predicted_families(problem: Problem, opened: OpenDevice) -> list[list[Costed]]:
    """The predictions by family, the fastest first."""
    found: dict[str, list[Costed]] = {}
    for one in _predictions(problem, opened):
        found.setdefault(one.spec.name, []).append(one)
    return [*found.values()]


def checked_kernel(
    spec: TransformSpec, problem: Problem, opened: OpenDevice
) -> CallKernel:
    """The kernel with a recipe, if it is correct.

    Raises:
        FeinsumError: if it cannot be built, or is wrong.
    """
    kernel = _built(spec, problem, opened)
    _check(kernel, problem)
    return kernel


def _predictions(problem: Problem, opened: OpenDevice) -> list[Costed]:
    """Nothing if a family fails to say what it costs."""
    try:
        return predictions(problem.einsum, problem.sizes, opened.device)
    except Exception:  # families may be those of users
        logger.exception("nothing is predicted for %s", problem.einsum.subscripts)
        return []


def _built(spec: TransformSpec, problem: Problem, opened: OpenDevice) -> CallKernel:
    einsum = problem.einsum
    plain = opened.prepare(generate_loopy(einsum, strides=problem.strides))
    t_unit, nest = identify_as_einsum(plain, einsum, long_extent=NEVER_LONG)
    unit = apply_spec(spec, t_unit, nest)
    if opened.reads_in_place:
        unit = with_wide_sums(unit, einsum, problem.sizes)
    return CallKernel(compile_kernel(unit, opened), spec=spec)


def _check(kernel: CallKernel, problem: Problem) -> None:
    """Run a kernel, and compare entries of the results with numpy.

    Raises:
        WrongResultError: if one is wrong.
    """
    einsum = problem.einsum
    for sizes, arrays, steps in _cases(problem):
        steps = {**steps}
        out = _laid_out(
            shape_at(einsum.output_shape, sizes),
            problem.strides.get(OUTPUT),
            lambda n: aligned_empty((n,), einsum.output_dtypes[0]),
            steps,
        )
        caller = kernel.compiled.built.caller([*arrays], {**sizes, **steps})
        check_samples(einsum, sizes, arrays, caller([*arrays.values()], out))


def _cases(
    problem: Problem,
) -> Iterator[tuple[Mapping[str, int], Mapping[str, Array], Mapping[str, int]]]:
    """Sizes, operands and values of strides.

    Extents that are known at run time are tried where no tile divides them.
    """
    einsum = problem.einsum
    tried = ragged_cases(einsum)[1] if einsum.size_params else [{}]
    if not einsum.size_params and problem.given and _is_large(einsum):
        yield problem.sizes, problem.given, problem.steps
        return
    for sizes in tried:
        steps: dict[str, int] = {}
        arrays = {
            operand.name: _laid_out(
                shape_at(operand.shape, sizes),
                problem.strides.get(operand.name),
                partial(_patterned, operand.dtype, seed),
                steps,
            )
            for seed, operand in enumerate(einsum.operands)
        }
        yield sizes, arrays, steps


def _is_large(einsum: BatchedEinsum) -> bool:
    return footprint_bytes(einsum, {}) > CHECKED_BYTES


def _patterned(dtype: np.dtype[Any], seed: int, size: int) -> Array:
    return patterned((size,), dtype, seed)


def _laid_out(
    shape: tuple[int, ...],
    strides: Strides | None,
    make: Callable[[int], Array],
    steps: dict[str, int],
) -> Array:
    """An array whose entries lie as strides say; values of those with names are chosen.

    Args:
        steps: gets these values.
    """
    wanted = [None] * len(shape) if strides is None else [*strides]
    order = sorted(range(len(shape)), key=lambda axis: (wanted[axis] != 1, -axis))
    chosen, step = [0] * len(shape), 1
    for axis in order:
        named = wanted[axis]
        chosen[axis] = named if isinstance(named, int) else step
        step = max(step, chosen[axis] * shape[axis])
        if isinstance(named, str):
            steps[named] = chosen[axis]
    return view_as(make(step), StridedTerm((), shape, tuple(chosen)))


def view_as(array: Array, strided: StridedTerm) -> Array:
    """The same memory with other axes."""
    strides = tuple(step * array.itemsize for step in strided.steps)
    if array.shape == strided.extents and array.strides == strides:
        return array
    if array.flags.c_contiguous and strided.steps == c_steps(strided.extents):
        return array.reshape(strided.extents)
    return np.lib.stride_tricks.as_strided(array, strided.extents, strides)
