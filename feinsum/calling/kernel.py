"""The kernel of a call: generated, retrieved, built once, run often."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from feinsum.calling.einsum_call import WIDE, has_wide_sums
from feinsum.calling.kernel_cache import RECORDED, LookupOptions
from feinsum.codegen import (
    ContractionPath,
    Strides,
    find_contraction_path,
    generate_loopy,
)
from feinsum.errors import BuildError
from feinsum.ir import BatchedEinsum
from feinsum.measure import CompiledKernel, OpenDevice, compile_kernel
from feinsum.measure.intermediates import (
    count_temporary_bytes,
    do_all_fit,
    get_intermediate_limit_bytes,
)
from feinsum.predict import MEASURING
from feinsum.records import TransformSpec
from feinsum.retrieval import retrieve
from feinsum.tuning import measure_if_possible

logger = logging.getLogger(__name__)


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
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    strides: Mapping[str, Strides],
    opened: OpenDevice,
    options: LookupOptions,
) -> CallKernel | None:
    """Return the kernel with the best recorded recipe; None if none works.

    With an effort that measures, the einsum is tuned unless it already was. Recipes
    that exceed the memory limit at these sizes are ignored.

    Args:
        einsum: the einsum, with size parameters.
        sizes: values of its size parameters.
        strides: strides of arrays that are not in C order.
        opened: the device that runs the kernel.
        options: how recipes are looked up.

    Raises:
        FeinsumError: with ``on_miss="raise"``, the reason why there is no recipe.
    """
    if options.effort in MEASURING:
        measure_if_possible(
            einsum,
            sizes,
            options.effort,
            device=opened.device.id,
            database=options.database,
        )
    # the look-up raises this kernel, as it would raise a user's kernel
    plain = opened.prepare(generate_loopy(einsum, strides=strides))
    unit = retrieve(
        plain,
        device=opened.device.id,
        database=options.database,
        policy=options.policy,
        on_miss=options.on_miss,
        effort="recorded",
    )
    # a miss; or a recipe for other sizes, whose intermediates are too large here
    if unit is plain or not fits_memory(unit, einsum, sizes):
        return None
    if opened.reads_in_place:
        unit = with_wide_sums(unit, einsum, sizes)
    try:
        return CallKernel(compile_kernel(unit, opened), is_retrieved=True)
    except BuildError:
        # the caller requires a recorded recipe, and needs to know why it fails
        if options.on_miss == "raise":
            raise
        logger.exception("skipped the retrieved kernel")
        return None


def build_untransformed_kernel(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    strides: Mapping[str, Strides],
    opened: OpenDevice,
) -> CallKernel:
    """Build a kernel without a recipe; more than two operands are contracted pairwise.

    The memory for their intermediates is limited; see
    :func:`feinsum.measure.intermediates.get_intermediate_limit_bytes`.

    Raises:
        MeasurementError: if the limit that is set is not a number.
        BuildError: if the kernel cannot be built.
    """
    path = find_untransformed_path(einsum, sizes)
    plain = generate_loopy(einsum, path=path, strides=strides)
    unit = opened.prepare(plain)
    if opened.reads_in_place:
        unit = with_wide_sums(unit, einsum, sizes)
    return CallKernel(compile_kernel(unit, opened))


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


def fits_memory(t_unit: Any, einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    """Return whether the temporaries of a kernel fit into the memory limit."""
    n_bytes = count_temporary_bytes(t_unit, sizes)
    return not n_bytes or n_bytes <= get_intermediate_limit_bytes(einsum, sizes)


def make_sizes_key(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Hashable:
    """Return a key of the sizes on which the kernel of an einsum depends.

    The key says whether sums are wide. It has the sizes themselves only if some
    intermediate that a kernel could have exceeds the memory limit.
    """
    # if all intermediates fit, one kernel serves all sizes
    has_room = do_all_fit(einsum, sizes)
    decisive = () if has_room else tuple(sorted(sizes.items()))
    return has_wide_sums(einsum, sizes), decisive


def with_wide_sums(t_unit: Any, einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Any:
    """Make the private sums of a unit wide, if those of its einsum are long.

    Args:
        t_unit: kernel of the einsum.
        einsum: the einsum that it computes.
        sizes: values of the size parameters.
    """
    if not has_wide_sums(einsum, sizes):
        return t_unit
    wide = WIDE[np.result_type(*einsum.output_dtypes)]
    # sorted, so that equal calls generate equal code
    for name in sorted(t_unit.callables_table):
        kernel = getattr(t_unit.callables_table[name], "subkernel", None)
        if kernel is not None:
            t_unit = t_unit.with_kernel(_widen_variables(kernel, wide))
    return t_unit


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
