"""Contractions of many operands, two at a time, by numpy's BLAS on the host.

For ``ij,jk,kl->il`` and the path ``1,2 0,1``, the host computes ``A @ (B @ C)``. Each
step is a ``library_contraction``, which may need axes in another order than that in
which the step before left them; see :mod:`feinsum.transforms.library.paths.pairwise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import loopy as lp

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.raising import LoopNest
from feinsum.records import ParameterValue, TransformSpec
from feinsum.targets.units import LibraryUnit
from feinsum.transforms.cost import Machine
from feinsum.transforms.host.library_contraction import (
    LIBRARY_CONTRACTION,
    check_extents,
    products_of,
)
from feinsum.transforms.host.matrix_product import Intermediate, LibraryProgram
from feinsum.transforms.library.paths.nests import split_nest
from feinsum.transforms.library.paths.pairwise import (
    PairwisePath,
    PathStep,
    are_named,
    cheapest,
    cost_of,
    good_paths,
    misfit,
    named,
    nest_operations,
    specs_of,
    step_einsum,
)
from feinsum.transforms.matrix_roles import find_roles
from feinsum.transforms.registry import Parameters, Space, Transform, register
from feinsum.transforms.roles import volume

CHEAPEST = "cheapest"
"""Each product by the recipe of ``library_contraction`` that costs the least."""
FAMILIES = (LIBRARY_CONTRACTION,)


def library_path(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Replace the kernel with numpy's matrix products, two arrays at a time.

    Rewrite, for ``ij,jk,kl->il`` and the path ``1,2 0,1``::

        for i, l:  out[i,l] = sum((j,k), A[i,j]*B[j,k]*C[k,l])

        product[j,l] = B[j,k] @ C[k,l]                 # on the host
        out[i,l] = A[i,j] @ product[j,l]

    Products are kept in the memory of the program, and each step is a
    ``library_contraction``.

    Parameters:
        path: the pair of positions of each step; the product is appended.
        steps: ``cheapest``, or the recipe of each step, as in facts.
    """
    kernel, einsum = t_unit[nest.kernel_name], nest.einsum
    if len(t_unit.entrypoints) != 1:
        raise TransformError("a library computes whole kernels; this one calls others")
    check_extents(kernel, nest)
    steps = _steps(einsum, parameters["path"])
    t_unit_of_steps, nests = split_nest(t_unit, nest, steps[:-1])
    intermediates = _intermediates(t_unit_of_steps[nest.kernel_name], nests)
    whole = _with_arguments(t_unit_of_steps[nest.kernel_name], intermediates)
    products = tuple(
        product
        for step, spec in zip(nests, _recipes(einsum, parameters), strict=True)
        for product in products_of(whole, step, spec.parameters)
    )
    extents = {index: nest.extent(index) for index in einsum.indices}
    return LibraryUnit.of(t_unit, LibraryProgram(products, extents, intermediates))


def _intermediates(
    kernel: lp.LoopKernel, nests: Sequence[LoopNest]
) -> tuple[Intermediate, ...]:
    """Return the arrays that all nests but the last one write."""
    return tuple(
        Intermediate(
            name, nest.einsum.output, kernel.temporary_variables[name].dtype.numpy_dtype
        )
        for nest in nests[:-1]
        for name in nest.outputs
    )


def _with_arguments(
    kernel: lp.LoopKernel, intermediates: Sequence[Intermediate]
) -> lp.LoopKernel:
    """Turn intermediates into arguments, which numpy can read and write."""
    left = dict(kernel.temporary_variables)
    arrays = [left.pop(x.name) for x in intermediates]
    args = [lp.GlobalArg(x.name, x.dtype, shape=x.shape) for x in arrays]
    return kernel.copy(args=[*kernel.args, *args], temporary_variables=left)


def _steps(einsum: BatchedEinsum, path: ParameterValue) -> tuple[PathStep, ...]:
    return PairwisePath.parse(path, einsum.n_operands).steps(einsum)


@lru_cache(maxsize=256)
def _step_einsums(
    einsum: BatchedEinsum, path: ParameterValue
) -> tuple[BatchedEinsum, ...]:
    return tuple(step_einsum(einsum, step) for step in _steps(einsum, path))


def _recipes(einsum: BatchedEinsum, parameters: Parameters) -> list[TransformSpec]:
    """Return the recipes of all steps; the cheapest are the same on all machines."""
    way = parameters["steps"]
    if are_named(way):
        return specs_of(way)
    steps = _step_einsums(einsum, parameters["path"])
    return [cheapest(step, FAMILIES, Machine()) for step in steps]


def _with_named_steps(einsum: BatchedEinsum, parameters: Parameters) -> Parameters:
    """Name the recipes of all steps, so that other costs change nothing."""
    return {**parameters, "steps": named(_recipes(einsum, parameters))}


def _space(workload: Workload) -> Space | None:
    """Fit einsums for which such products take fewer operations than one nest."""
    einsum = workload.einsum
    if einsum.n_operands < 3:
        return None
    paths = [path for path in good_paths(einsum) if _suits_library(einsum, path)]
    if not paths or nest_operations(einsum) <= paths[0].n_operations(einsum):
        return None
    return Space(
        {"path": tuple(map(str, paths)), "steps": (CHEAPEST,)},
        partial(_find_problem, einsum),
        proposes_all=True,
        admits=partial(_admits, einsum),
    )


def _suits_library(einsum: BatchedEinsum, path: PairwisePath) -> bool:
    return all(
        find_roles(step) is not None for step in _step_einsums(einsum, str(path))
    )


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    way = parameters["steps"]
    steps = _step_einsums(einsum, parameters["path"])
    if are_named(way):
        return misfit(way, steps, FAMILIES)
    if any(find_roles(step) is None for step in steps):
        return "a step is no product of matrices"
    return None


def _admits(einsum: BatchedEinsum, name: str, value: ParameterValue) -> bool:
    """Admit any path, and any recipes of its steps: the constraint checks them."""
    if name == "steps":
        return are_named(value)
    return bool(PairwisePath.parse(value, einsum.n_operands))


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Estimate the seconds of all steps in sequence."""
    steps = _step_einsums(einsum, parameters["path"])
    specs = _recipes(einsum, parameters)
    return sum(
        cost_of(spec, step, machine) for spec, step in zip(specs, steps, strict=True)
    )


def _intermediate_bytes(einsum: BatchedEinsum, parameters: Parameters) -> int:
    """Return the bytes of all products but the results."""
    n_entries = sum(
        step.n_products * volume(einsum, step.output)
        for step in _steps(einsum, parameters["path"])[:-1]
    )
    return n_entries * einsum.operands[0].dtype.itemsize


LIBRARY_PATH = register(
    Transform(
        "library_path",
        1,
        "two operands at a time, by the BLAS of numpy, on the host",
        _space,
        library_path,
        _cost,
        devices=frozenset({"cpu"}),
        intermediate_bytes=_intermediate_bytes,
        in_full=_with_named_steps,
    )
)
