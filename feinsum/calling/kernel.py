"""The kernel of a call: generated, retrieved or predicted, built once, run often.

A predicted kernel is checked in this process, on the kernel that the call will run.
That is acceptable because the recipe is one of feinsum's own; starting a separate
process would take longer than everything else together. If it costs the process its GPU
all the same, :func:`note_fault` excludes the recipe in later processes.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.cache import get_default_cache
from feinsum.calling.einsum_call import (
    WIDE,
    StridedTerm,
    compute_c_steps,
    has_wide_sums,
)
from feinsum.calling.kernel_cache import RECORDED, LookupOptions
from feinsum.calling.structure import OUTPUT
from feinsum.codegen import (
    ContractionPath,
    Strides,
    find_contraction_path,
    generate_loopy,
)
from feinsum.errors import BuildError, DeviceLostError, FeinsumError
from feinsum.ir import BatchedEinsum, bind_shape, to_text
from feinsum.measure import (
    CompiledKernel,
    OpenDevice,
    compile_kernel,
    count_footprint_bytes,
)
from feinsum.measure.cases import check_samples, make_patterned, make_ragged_cases
from feinsum.measure.intermediates import (
    count_temporary_bytes,
    do_all_fit,
    get_intermediate_limit_bytes,
)
from feinsum.measure.reference import NEVER_LONG
from feinsum.predict import MEASURING, predict_recipes
from feinsum.raising import identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.result_memory import make_aligned
from feinsum.retrieval import retrieve
from feinsum.retrieval.identity import compute_fingerprint, is_ours
from feinsum.targets.protocol import Array
from feinsum.transforms import apply_spec
from feinsum.transforms.cost import Costed
from feinsum.tuning import measure_if_possible

logger = logging.getLogger(__name__)

N_TRIED = 3
"""Predictions that are tried before an untransformed kernel is used instead."""
DOUBT = 2.0
"""Maximum predicted slowdown at which a recipe may still be the fastest."""
CHECKED_BYTES = 1 << 27
"""Maximum bytes of arrays made for a check; larger einsums are checked on the operands
of the call."""


@dataclass(frozen=True)
class KernelProblem:
    """An einsum for which a kernel is built.

    Attributes:
        einsum: the einsum; for a predicted recipe the canonical one, to whose names
            recipes refer.
        sizes: values of its size parameters.
        strides: strides of the arrays that are not in C order.
        arrays: the operands of the call, by name; empty if they are not on the host.
        steps: values of the named strides, in entries.
    """

    einsum: BatchedEinsum
    sizes: Mapping[str, int]
    strides: Mapping[str, Strides] = constantdict()
    arrays: Mapping[str, Array] = constantdict()
    steps: Mapping[str, int] = constantdict()


@dataclass(frozen=True, eq=False)
class CallKernel:
    """A built kernel.

    Attributes:
        is_retrieved: whether a recorded recipe was applied.
        spec: the predicted recipe, if one was applied.
    """

    compiled: CompiledKernel
    is_retrieved: bool = False
    spec: TransformSpec | None = None

    @property
    def recipe(self) -> str:
        """The recipe, in words: only the kernel of a recorded one is kept."""
        if self.spec is not None:
            return str(self.spec)
        return RECORDED if self.is_retrieved else "untransformed"

    @property
    def t_unit(self) -> Any:
        """The translation unit that was built."""
        return self.compiled.t_unit


def build_recorded_kernel(
    problem: KernelProblem, opened: OpenDevice, options: LookupOptions
) -> CallKernel | None:
    """Return the kernel with the best recorded recipe; None if none works.

    With an effort that measures, the einsum is tuned unless it already was. Recipes
    that exceed the memory limit at these sizes are ignored.

    Raises:
        FeinsumError: with ``on_miss="raise"``, the reason why there is no recipe.
    """
    einsum, sizes = problem.einsum, problem.sizes
    if options.effort in MEASURING:
        measure_if_possible(
            einsum,
            sizes,
            options.effort,
            device=opened.device.id,
            database=options.database,
        )
    # the look-up raises this kernel, as it would raise a user's kernel
    plain = opened.prepare(generate_loopy(einsum, strides=problem.strides))
    unit = retrieve(
        plain,
        device=opened.device.id,
        database=options.database,
        policy=options.policy,
        on_miss=options.on_miss,
        effort="recorded",
    )
    if unit is plain:  # a miss
        return None
    # a recipe for other sizes may have too large intermediates here
    n_bytes = count_temporary_bytes(unit, sizes)
    if n_bytes and n_bytes > get_intermediate_limit_bytes(einsum, sizes):
        return None
    try:
        return CallKernel(_compile(unit, problem, opened), is_retrieved=True)
    except BuildError:
        # the caller requires a recorded recipe, and needs to know why it fails
        if options.on_miss == "raise":
            raise
        logger.exception("skipped the retrieved kernel")
        return None


def build_untransformed_kernel(
    problem: KernelProblem, opened: OpenDevice
) -> CallKernel:
    """Build a kernel without a recipe; more than two operands are contracted pairwise.

    The memory for their intermediates is limited; see
    :func:`feinsum.measure.intermediates.get_intermediate_limit_bytes`.

    Raises:
        MeasurementError: if the limit that is set is not a number.
        BuildError: if the kernel cannot be built.
    """
    path = find_untransformed_path(problem.einsum, problem.sizes)
    plain = generate_loopy(problem.einsum, path=path, strides=problem.strides)
    return CallKernel(_compile(opened.prepare(plain), problem, opened))


def find_untransformed_path(
    einsum: BatchedEinsum, sizes: Mapping[str, int]
) -> ContractionPath | None:
    """Return the contraction order without a recipe; None if one nest computes it all.

    Raises:
        MeasurementError: if the limit that is set is not a number.
    """
    limit = get_intermediate_limit_bytes(einsum, sizes)
    path = find_contraction_path(einsum, sizes, max_bytes=limit)
    return path if len(path) > 1 else None


def make_sizes_key(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Hashable:
    """Return a key of the sizes on which the kernel of an einsum depends.

    The key says whether sums are wide. It has the sizes themselves only if some
    intermediate that a kernel could have exceeds the memory limit.
    """
    # if all intermediates fit, one kernel serves all sizes
    has_room = do_all_fit(einsum, sizes)
    decisive = () if has_room else tuple(sorted(sizes.items()))
    return has_wide_sums(einsum, sizes), decisive


def _compile(t_unit: Any, problem: KernelProblem, opened: OpenDevice) -> CompiledKernel:
    """Build the kernel of an einsum; on the host, with wide sums if they are long."""
    einsum = problem.einsum
    if opened.reads_in_place and has_wide_sums(einsum, problem.sizes):
        wide = WIDE[np.result_type(*einsum.output_dtypes)]
        # sorted, so that equal calls generate equal code
        for name in sorted(t_unit.callables_table):
            kernel = getattr(t_unit.callables_table[name], "subkernel", None)
            if kernel is not None:
                t_unit = t_unit.with_kernel(_widen_variables(kernel, wide))
    return compile_kernel(t_unit, opened)


def _widen_variables(kernel: Any, wide: np.dtype[Any]) -> Any:
    """Widen the private variables of a kernel to which instructions add.

    A reduction that Loopy has not yet expanded to a loop gets wide terms instead, from
    which Loopy infers a wide variable.
    """
    from loopy import AddressSpace
    from loopy.types import NumpyType

    added = {
        name
        for instruction in kernel.instructions
        for name in instruction.assignee_var_names()
        if name in instruction.read_dependency_names()
    }
    variables = {
        name: variable.copy(dtype=NumpyType(WIDE[variable.dtype.numpy_dtype]))
        if name in added
        and variable.address_space == AddressSpace.PRIVATE
        and variable.dtype.numpy_dtype in WIDE
        else variable
        for name, variable in kernel.temporary_variables.items()
    }
    widen = _make_widening_mapper(wide)
    instructions = [
        instruction.with_transformed_expressions(widen)
        for instruction in kernel.instructions
    ]
    return kernel.copy(temporary_variables=variables, instructions=instructions)


def _make_widening_mapper(wide: np.dtype[Any]) -> Any:
    """Return a mapper of expressions that converts the terms of sums."""
    from loopy.library.reduction import SumReductionOperation
    from loopy.symbolic import IdentityMapper, Reduction, TypeCast

    class Mapper(IdentityMapper):  # type: ignore[misc]
        def map_reduction(self, expr: Any, *context: Any) -> Any:
            if not isinstance(expr.operation, SumReductionOperation):
                return expr
            term = TypeCast(wide, expr.expr)
            return Reduction(expr.operation, expr.inames, term, expr.allow_simultaneous)

    return Mapper()


def build_predicted_kernel(
    problem: KernelProblem,
    opened: OpenDevice,
    accept: Callable[[CallKernel], None] = lambda _kernel: None,
    candidates: Sequence[Costed] | None = None,
) -> tuple[CallKernel, list[TransformSpec]] | None:
    """Build the kernel that is expected to be the fastest among the correct ones.

    A kernel must also pass ``accept``, which raises a FeinsumError. By default all
    predictions are candidates.

    Returns:
        The kernel, with the next recipes, which may turn out to be faster; or None if
        no family has a prediction, or none of those tried works.

    Raises:
        DeviceLostError: if a candidate cost this process the device.
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
    problem: KernelProblem, opened: OpenDevice
) -> list[list[Costed]]:
    """Return the predictions by family, the fastest first."""
    families: dict[str, list[Costed]] = {}
    for prediction in _list_predictions(problem, opened):
        families.setdefault(prediction.spec.name, []).append(prediction)
    return [*families.values()]


def build_checked_kernel(
    spec: TransformSpec, problem: KernelProblem, opened: OpenDevice
) -> CallKernel:
    """Build the kernel with a recipe, and check its results.

    Raises:
        FeinsumError: if it cannot be built, or is wrong.
    """
    einsum = problem.einsum
    plain = opened.prepare(generate_loopy(einsum, strides=problem.strides))
    # recipes refer to the names of the canonical einsum, as raising finds them
    t_unit, nest = identify_as_einsum(plain, einsum, long_extent=NEVER_LONG)
    unit = apply_spec(spec, t_unit, nest)
    kernel = CallKernel(_compile(unit, problem, opened), spec=spec)
    _check(kernel, problem)
    return kernel


def _list_predictions(problem: KernelProblem, opened: OpenDevice) -> list[Costed]:
    """Return the predictions of compiled kernels: a library is what they compete with.

    The list is empty if the cost function of a family fails.
    """
    try:
        predicted = predict_recipes(problem.einsum, problem.sizes, opened.device)
        return [
            prediction for prediction in predicted if not prediction.spec.is_on_host
        ]
    except Exception:  # families of users may raise anything
        logger.exception("nothing is predicted for %s", problem.einsum.subscripts)
        return []


def _check(kernel: CallKernel, problem: KernelProblem) -> None:
    """Run a kernel; raise a WrongResultError if samples differ from numpy's."""
    einsum = problem.einsum
    for sizes, arrays, steps in _list_cases(problem):
        steps = {**steps}
        out = _lay_out_array(
            bind_shape(einsum.output_shape, sizes),
            problem.strides.get(OUTPUT),
            partial(make_aligned, dtype=einsum.output_dtypes[0]),
            steps,
        )
        caller = kernel.compiled.built.caller([*arrays], {**sizes, **steps})
        check_samples(einsum, sizes, arrays, caller([*arrays.values()], out))


def _list_cases(
    problem: KernelProblem,
) -> Iterator[tuple[Mapping[str, int], Mapping[str, Array], Mapping[str, int]]]:
    """Yield sizes, operands and values of strides for the checks.

    Size parameters get values that no tile divides, to check the rest loops.
    """
    einsum = problem.einsum
    tried = make_ragged_cases(einsum)[1] if einsum.size_params else [{}]
    # making arrays of that size once more would take longer than the call
    is_fixed = not einsum.size_params and problem.arrays
    if is_fixed and count_footprint_bytes(einsum, {}) > CHECKED_BYTES:
        yield problem.sizes, problem.arrays, problem.steps
        return
    for sizes in tried:
        steps: dict[str, int] = {}
        arrays = {
            operand.name: _lay_out_array(
                bind_shape(operand.shape, sizes),
                problem.strides.get(operand.name),
                partial(make_patterned, dtype=operand.dtype, seed=seed),
                steps,
            )
            for seed, operand in enumerate(einsum.operands)
        }
        yield sizes, arrays, steps


def _lay_out_array(
    shape: tuple[int, ...],
    strides: Strides | None,
    make: Callable[[tuple[int, ...]], Array],
    steps: dict[str, int],
) -> Array:
    """Make an array with given strides; choose and note values of those with names."""
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
    return view_as(make((step,)), StridedTerm((), shape, tuple(chosen)))


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
