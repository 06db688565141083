"""Verifying and timing a recipe: generating, building and running its kernels."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from constantdict import constantdict

from feinsum.errors import FeinsumError, TransformError, WrongResultError
from feinsum.ir import BatchedEinsum, from_text
from feinsum.measure import (
    CompiledKernel,
    OpenDevice,
    compile_kernel,
    einsum_operations,
    footprint_bytes,
    open_device,
    verify,
)
from feinsum.measure.cases import Case, make_case, ragged_cases, ragged_unit
from feinsum.measure.kernels_in_turns import locked
from feinsum.measure.question import Question, Verdict
from feinsum.measure.race import in_turns
from feinsum.measure.sparse_cases import (
    SparseCase,
    make_sparse_case,
    ragged_sparse_cases,
)
from feinsum.measure.speedup import built_baseline, quick_sizes, race_of
from feinsum.records import OK, TransformSpec
from feinsum.targets.host import HOST
from feinsum.transforms import apply_spec, check_spec, suits_device

__all__ = ["judge_recipe", "prepare"]

LITERAL_BYTES = 16_000_000
LITERAL_OPERATIONS = 200_000_000
"""An einsum of literal extents is tried at these as well, if it is no larger."""


def prepare(question: Question) -> None:
    """Build what all forks share: the untransformed kernel of an einsum.

    Device drivers do not survive a fork; the host has none.
    """
    if question.device not in {device.id for device in HOST.devices()}:
        return
    einsum = from_text(question.frame)
    if einsum.sparse_position is not None:
        return
    timed = _timed_einsum(einsum)
    sizes = _timed_sizes(einsum, timed, question.sizes)
    lock = locked(question.timing_lock, fcntl.LOCK_SH)
    with lock, suppress(FeinsumError):  # the fork says what is wrong
        built_baseline(timed, constantdict(sizes), open_device(question.device))


def judge_recipe(question: Question, opened: OpenDevice) -> Verdict:
    """Compare a recipe with numpy, and time it against the untransformed kernel.

    It is compared at extents that no tile divides, at 1, and at those at which it is
    timed.

    Raises:
        TransformError, BuildError, MeasurementError, WrongResultError: what went wrong.
    """
    einsum, spec = from_text(question.frame), question.spec
    check_spec(spec, einsum)
    if not suits_device(spec, opened.device.kind):
        raise TransformError(f"{spec} is not for devices like {opened.device}")
    if einsum.sparse_position is not None:
        return _judge_sparse(question, einsum, opened)
    last: tuple[CompiledKernel, Case] | None = None
    with locked(question.timing_lock, fcntl.LOCK_SH):
        for unit, cases in _kernels_to_try(spec, einsum):
            compiled = compile_kernel(unit, opened)
            compiled.built.check_figures()
            for case in cases:
                _verify(compiled, case)
            last = compiled, cases[-1]
        assert last is not None
        sizes = _timed_sizes(einsum, last[1].einsum, question.sizes)
        race = race_of(*last, sizes, opened)
    with locked(question.timing_lock, fcntl.LOCK_EX):
        mine_s, others_s = race.run()
    return Verdict(OK, least_s=mine_s, baseline_s=others_s, sizes=sizes)


def _judge_sparse(
    question: Question, einsum: BatchedEinsum, opened: OpenDevice
) -> Verdict:
    """A recipe for a sparse operand, on ragged trees, and on one that is timed."""
    spec, timed = question.spec, quick_sizes(einsum, question.sizes)
    with locked(question.timing_lock, fcntl.LOCK_SH):
        for case in ragged_sparse_cases(einsum):
            _verify_tree(case, spec, opened)
        case = make_sparse_case(einsum, timed)
        plain = case.untransformed(opened)
        kernel = case.kernel(spec, opened).sharing(plain)
    with locked(question.timing_lock, fcntl.LOCK_EX):
        plain.poison()
        baseline_s = plain.run()
        # the untransformed kernel rounds, too
        verify(kernel, plain.read(), tolerance=2 * case.tolerance)
        mine_s, others_s = in_turns(kernel, plain, baseline_s)
    return Verdict(OK, least_s=mine_s, baseline_s=others_s, sizes=timed)


def _verify_tree(case: SparseCase, spec: TransformSpec, opened: OpenDevice) -> None:
    try:
        verify(case.kernel(spec, opened), case.expected, tolerance=case.tolerance)
    except WrongResultError as error:
        where = f"for a tree of the sizes {dict(case.sizes)}"
        raise WrongResultError(f"{where}: {error}") from None


def _verify(compiled: CompiledKernel, case: Case) -> None:
    try:
        kernel = compiled.bind(case.arguments)
        verify(kernel, case.expected, tolerance=case.tolerance)
    except WrongResultError as error:
        where = f"at the sizes {dict(case.sizes)}"
        raise WrongResultError(f"{where}: {error}") from None


def _timed_sizes(
    einsum: BatchedEinsum, timed: BatchedEinsum, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Sizes of the einsum that is timed, which may be one with run-time extents."""
    if einsum.size_params:
        return quick_sizes(timed, sizes)
    literal = {
        x.name: extent
        for x, extent in (
            (timed.extents[i], einsum.extents[i]) for i in timed.free_indices
        )
        if not isinstance(x, int) and isinstance(extent, int)
    }
    return quick_sizes(timed, literal)


def _timed_einsum(einsum: BatchedEinsum) -> BatchedEinsum:
    """The einsum that is timed: that of the last of :func:`_kernels_to_try`."""
    variant, sizes = ragged_cases(einsum)
    return einsum if not sizes or _is_tried_as_it_is(einsum) else variant


def _kernels_to_try(
    spec: TransformSpec, einsum: BatchedEinsum
) -> Iterator[tuple[Any, list[Case]]]:
    """The kernels to run, and the cases of each; the last one is to be timed.

    Raises:
        TransformError: if the recipe cannot be applied.
    """
    variant, sizes = ragged_cases(einsum)
    ragged = [make_case(variant, s) for s in sizes]
    if ragged:
        yield ragged_unit(spec, ragged[0]), ragged
    if not ragged or _is_tried_as_it_is(einsum):
        case = make_case(einsum, {})
        yield apply_spec(spec, case.t_unit, case.nest), [case]


def _is_tried_as_it_is(einsum: BatchedEinsum) -> bool:
    """Whether all extents are known, and small."""
    if einsum.size_params:
        return False
    n_operations = sum(einsum_operations(einsum, {}).values())
    is_short = n_operations <= LITERAL_OPERATIONS
    return is_short and footprint_bytes(einsum, {}) <= LITERAL_BYTES
