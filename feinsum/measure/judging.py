"""Verify and time a recipe: generate, build and run its kernels.

The tuner takes seconds to measure for a record. Here the only question is whether a
recommended recipe pays off on this machine, which has to be answered in a fraction of a
second: on arrays of a few megabytes, with few runs::

    kernel with run-time extents   verify at 1, at odd sizes, at one long size
    kernel with literal extents    verify at these, if they are small
    the last of these              time at choose_quick_sizes(), against the baseline

Processes that verify at the same time share a lock; timing takes it alone.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from math import log2, prod
from typing import Any, Protocol

from constantdict import constantdict

from feinsum.errors import FeinsumError, TransformError
from feinsum.ir import BatchedEinsum, from_text, list_profile_names
from feinsum.measure import open_device
from feinsum.measure.cases import (
    Case,
    make_case,
    make_ragged_cases,
    make_ragged_unit,
    pose_case,
)
from feinsum.measure.kernel import BoundKernel, CompiledKernel, compile_kernel
from feinsum.measure.reference import (
    MANY_TIMES,
    count_footprint_bytes,
    count_operations,
    make_reference,
)
from feinsum.measure.sparse_cases import (
    make_ragged_sparse_cases,
    make_sparse_case,
)
from feinsum.measure.trial import Timeable, hold_lock, time_in_turns
from feinsum.measure.verdicts import Verdict, VerificationRequest
from feinsum.measure.verification import Verifiable, locate_wrong_results, verify
from feinsum.nests import get_sizes
from feinsum.records import OK, TransformSpec
from feinsum.records.capability import count_products
from feinsum.targets.host import HOST
from feinsum.targets.protocol import OpenDevice
from feinsum.transforms import apply_spec, check_spec, suits_device
from feinsum.transforms.nests import assume_sizes


class Racer(Timeable, Verifiable, Protocol):
    """A kernel that can be timed and verified."""


def prepare_fork(request: VerificationRequest) -> None:
    """Build what all forks share: the untransformed kernel of an einsum.

    Device drivers do not survive a fork; the host has none.
    """
    if request.device not in {device.id for device in HOST.devices()}:
        return
    # The kernels of a tree are built by each fork.
    einsum = from_text(request.frame)
    if einsum.sparse_position is not None:
        return
    timed = _choose_timed_einsum(einsum)
    sizes = _choose_timed_sizes(einsum, timed, request.sizes)
    lock = hold_lock(request.timing_lock, fcntl.LOCK_SH)
    with lock, suppress(FeinsumError):  # the fork reports the error
        build_baseline(timed, constantdict(sizes), open_device(request.device))


def judge_recipe(request: VerificationRequest, opened: OpenDevice) -> Verdict:
    """Compare a recipe with numpy, and time it against the untransformed kernel.

    It is compared at extents that no tile divides, at 1, and at those at which it is
    timed.

    Raises:
        TransformError, BuildError, MeasurementError, WrongResultError: what went wrong.
    """
    einsum, spec = from_text(request.frame), request.spec
    check_spec(spec, einsum)
    if not suits_device(spec, opened.device.kind):
        raise TransformError(f"{spec} is not for devices like {opened.device}")
    if einsum.sparse_position is not None:
        return _judge_sparse(request, einsum, opened)
    last: tuple[CompiledKernel, Case] | None = None
    with hold_lock(request.timing_lock, fcntl.LOCK_SH):
        for unit, cases in _generate_kernels(spec, einsum):
            compiled = compile_kernel(unit, opened)
            compiled.built.check_figures()
            for case in cases:
                _verify(compiled, case)
            last = compiled, cases[-1]
        assert last is not None
        compiled, case = last
        sizes = _choose_timed_sizes(einsum, case.einsum, request.sizes)
        kernel, baseline, tolerance = bind_pair(compiled, case.einsum, sizes, opened)
    return _time_recipe(request, kernel, baseline, sizes, tolerance)


def _judge_sparse(
    request: VerificationRequest, einsum: BatchedEinsum, opened: OpenDevice
) -> Verdict:
    """Judge a recipe for a sparse operand on ragged trees, and time it on another."""
    spec, timed = request.spec, choose_quick_sizes(einsum, request.sizes)
    with hold_lock(request.timing_lock, fcntl.LOCK_SH):
        for case in make_ragged_sparse_cases(einsum):
            with locate_wrong_results(f"for a tree of the sizes {dict(case.sizes)}"):
                kernel = case.kernel(spec, opened)
                verify(kernel, case.expected, tolerance=case.tolerance)
        case = make_sparse_case(einsum, timed)
        plain = case.untransformed(opened)
        kernel = case.kernel(spec, opened).sharing(plain)
    return _time_recipe(request, kernel, plain, timed, case.tolerance)


def _time_recipe(
    request: VerificationRequest,
    kernel: Racer,
    baseline: Racer,
    sizes: Mapping[str, int],
    tolerance: float,
) -> Verdict:
    """Compare a recipe with the untransformed kernel on its arrays, and time both.

    Args:
        request: the trial to perform.
        kernel: the recipe's kernel.
        baseline: the untransformed kernel.
        sizes: the values of the size parameters.
        tolerance: error allowed against the correct result; both kernels round.
    """
    with hold_lock(request.timing_lock, fcntl.LOCK_EX):
        # The first run gives the expected result, and shows whether the kernel is very
        # slow.
        baseline.poison()
        baseline_s = baseline.run()
        with locate_wrong_results(f"at the sizes {dict(sizes)}"):
            verify(kernel, baseline.read(), tolerance=2 * tolerance)
        mine_s, others_s = time_in_turns(kernel, baseline, baseline_s)
    return Verdict(OK, least_s=mine_s, baseline_s=others_s, sizes=sizes)


def _verify(compiled: CompiledKernel, case: Case) -> None:
    with locate_wrong_results(f"at the sizes {dict(case.sizes)}"):
        kernel = compiled.bind(case.arguments)
        verify(kernel, case.expected, tolerance=case.tolerance)


def _choose_timed_sizes(
    einsum: BatchedEinsum, timed: BatchedEinsum, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Choose the sizes of the einsum that is timed; it may have run-time extents."""
    if einsum.size_params:
        return choose_quick_sizes(timed, sizes)
    literal = {
        x.name: extent
        for x, extent in (
            (timed.extents[i], einsum.extents[i]) for i in timed.free_indices
        )
        if not isinstance(x, int) and isinstance(extent, int)
    }
    return choose_quick_sizes(timed, literal)


def _choose_timed_einsum(einsum: BatchedEinsum) -> BatchedEinsum:
    """Return the einsum that is timed, the last of :func:`_generate_kernels`."""
    variant, sizes = make_ragged_cases(einsum)
    return einsum if not sizes or _is_tried_as_it_is(einsum) else variant


def _generate_kernels(
    spec: TransformSpec, einsum: BatchedEinsum
) -> Iterator[tuple[Any, list[Case]]]:
    """Yield the kernels to run, and the cases of each; the last one is to be timed.

    Raises:
        TransformError: if the recipe cannot be applied.
    """
    variant, sizes = make_ragged_cases(einsum)
    ragged = [make_case(variant, s) for s in sizes]
    if ragged:
        yield make_ragged_unit(spec, ragged[0]), ragged
    if not ragged or _is_tried_as_it_is(einsum):
        case = make_case(einsum, {})
        yield apply_spec(spec, case.t_unit, case.nest), [case]


def _is_tried_as_it_is(einsum: BatchedEinsum) -> bool:
    """Return whether all extents are known, and small."""
    if einsum.size_params:
        return False
    n_operations = sum(count_operations(einsum, {}).values())
    return n_operations <= 2e8 and count_footprint_bytes(einsum, {}) <= 16e6


QUICK_BYTES = 1 << 25
"""Most bytes of all arrays."""

QUICK_OPERATIONS = 50_000_000
"""Most operations of the untransformed kernel, which does about 1e9 per second."""


def choose_quick_sizes(
    einsum: BatchedEinsum, near: Mapping[str, int]
) -> dict[str, int]:
    """Choose sizes for timing: near those of a kernel, or as large as allowed.

    They are powers of two, so that kernels of similar sizes share a verdict.

    >>> from feinsum.ir import array, einsum
    >>> matvec = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))
    >>> choose_quick_sizes(matvec, {"n": 1000}), choose_quick_sizes(matvec, {})
    ({'n': 1024}, {'n': 524288})
    """
    if einsum.sparse_position is not None:
        return _choose_sparse_sizes(einsum, near)
    sizes = {
        x.name: 1 << max(0, round(log2(near[x.name])))
        if near.get(x.name, 0) > 0
        else 1 << 20
        for x in einsum.size_params
    }
    # The longest one is halved, so that short extents keep their lengths.
    while _is_long(einsum, sizes) and any(size > 1 for size in sizes.values()):
        longest = max(sizes, key=lambda name: sizes[name])
        sizes[longest] //= 2
    return sizes


def _choose_sparse_sizes(
    einsum: BatchedEinsum, near: Mapping[str, int]
) -> dict[str, int]:
    """Choose a profile near that of a kernel, scaled down by a power of two.

    They are powers of two, as far as a tree can have such a profile.
    """
    sizes = {
        name: 1 << max(0, round(log2(n)))
        for name, n in assume_sizes(einsum, near).items()
    }
    while _is_large(einsum, sizes) and max(sizes.values()) > 1:
        sizes = {name: max(1, n // 2) for name, n in sizes.items()}
    position = einsum.sparse_position or 0
    shape = [get_sizes(einsum, sizes).extents[i] for i in einsum.inputs[position]]
    above = 1
    for name, extent in zip(list_profile_names(einsum), shape, strict=True):
        # No level has fewer nodes than the one above, or more than its slots.
        least = 1 if above == 1 else above
        above = sizes[name] = min(max(sizes[name], least), above * extent)
    return sizes


def _is_large(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    n_operations = count_products(einsum, einsum.indices, sizes) * einsum.n_operands
    n_bytes = count_footprint_bytes(einsum, sizes)
    return n_bytes > QUICK_BYTES or n_operations > QUICK_OPERATIONS


def bind_pair(
    compiled: CompiledKernel,
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    opened: OpenDevice,
) -> tuple[BoundKernel, BoundKernel, float]:
    """Bind a recipe and the untransformed kernel to the same arrays.

    Args:
        compiled: the kernel with the recipe.
        einsum: what it computes, with sizes as parameters.
        sizes: their values.
        opened: the device to run on.

    Returns:
        The recipe, the untransformed kernel, and the tolerance of results.

    Raises:
        BuildError: if the untransformed kernel cannot be built.
    """
    case = pose_case(einsum, sizes)
    plain = build_baseline(einsum, constantdict(sizes), opened)
    baseline = plain.bind(case.arguments)
    kernel = compiled.bind(case.arguments).sharing(baseline)
    return kernel, baseline, case.tolerance


@lru_cache(maxsize=4)
def build_baseline(
    einsum: BatchedEinsum, sizes: Mapping[str, int], opened: OpenDevice
) -> CompiledKernel:
    """Build the untransformed kernel, once for all recipes of an einsum.

    Raises:
        BuildError, MeasurementError: if it cannot be built.
    """
    posed = pose_case(einsum, sizes)
    baseline = make_reference(einsum).baseline(sizes)
    return compile_kernel(baseline or posed.t_unit, opened)


def _is_long(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    if count_footprint_bytes(einsum, sizes) > QUICK_BYTES:
        return True
    n_points = prod(einsum.extents_at(sizes).values())
    if n_points * einsum.n_operands * einsum.batch_size <= QUICK_OPERATIONS:
        return False
    n_least = sum(count_operations(einsum, sizes).values())
    # a nest with more operations is replaced by pairwise steps
    return MANY_TIMES * n_least > QUICK_OPERATIONS or not n_least
