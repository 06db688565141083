"""Contractions of many operands, two at a time, by numpy's BLAS on the host.

For ``ij,jk,kl->il`` and the path ``1,2 0,1``, the host computes ``A @ (B @ C)``. Each
step is a ``library_contraction``, which copies the product of an earlier step if it
needs its axes in another order. Paths are in
:mod:`feinsum.transforms.library.pairwise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import loopy as lp

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, Workload
from feinsum.machine import TYPICAL, MachineModel
from feinsum.raising import LoopNest
from feinsum.records import ParameterValue, TransformSpec
from feinsum.targets.units import LibraryUnit
from feinsum.transforms.host.library_contraction import (
    LIBRARY_CONTRACTION,
    check_extents,
    describe_products,
)
from feinsum.transforms.host.matrix_product import Intermediate, LibraryProgram
from feinsum.transforms.library.pairwise import (
    PairwisePath,
    PathStep,
    count_nest_operations,
    find_good_paths,
    make_step_einsum,
)
from feinsum.transforms.library.steps import (
    BEST,
    find_misfit,
    list_recipes,
    predict_steps_s,
    split_nest,
)
from feinsum.transforms.matrix_roles import find_roles
from feinsum.transforms.registry import (
    NestSteps,
    Parameters,
    Space,
    Transform,
    register,
)

FAMILIES = (LIBRARY_CONTRACTION,)


def apply_library_path(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Replace the kernel with numpy's matrix products, two arrays at a time.

    Rewrite, for ``ij,jk,kl->il`` and the path ``1,2 0,1``::

        for i, l:  out[i,l] = sum((j,k), A[i,j]*B[j,k]*C[k,l])

        product[j,l] = B[j,k] @ C[k,l]                 # on the host
        out[i,l] = A[i,j] @ product[j,l]

    Products are in memory that the program keeps between calls, and each step is a
    ``library_contraction``.

    Parameters:
        path: the pair of positions of each step; the product is appended.
        steps: the recipe of each step, as in facts, or ``best`` for the cheapest ones.
    """
    kernel, einsum = t_unit[nest.kernel_name], nest.einsum
    if len(t_unit.entrypoints) != 1:
        raise TransformError("a library computes whole kernels; this one calls others")
    check_extents(kernel, nest)
    steps = _list_path_steps(einsum, parameters["path"])
    t_unit_of_steps, nests = split_nest(t_unit, nest, steps[:-1])
    intermediates = _list_intermediates(t_unit_of_steps[nest.kernel_name], nests)
    kernel_of_steps = _with_arguments(t_unit_of_steps[nest.kernel_name], intermediates)
    products = tuple(
        product
        for step, spec in zip(nests, _list_recipes(einsum, parameters), strict=True)
        for product in describe_products(kernel_of_steps, step, spec.parameters)
    )
    extents = {index: nest.extent(index) for index in einsum.indices}
    return LibraryUnit.of(t_unit, LibraryProgram(products, extents, intermediates))


def _list_intermediates(
    kernel: lp.LoopKernel, nests: Sequence[LoopNest]
) -> tuple[Intermediate, ...]:
    """Return the arrays written by all nests except the last one."""
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
    temporaries = dict(kernel.temporary_variables)
    arrays = [temporaries.pop(x.name) for x in intermediates]
    args = [lp.GlobalArg(x.name, x.dtype, shape=x.shape) for x in arrays]
    return kernel.copy(args=[*kernel.args, *args], temporary_variables=temporaries)


def _list_path_steps(
    einsum: BatchedEinsum, path: ParameterValue
) -> tuple[PathStep, ...]:
    return PairwisePath.parse(path, einsum.n_operands).steps(einsum)


@lru_cache(maxsize=256)
def _make_step_einsums(
    einsum: BatchedEinsum, path: ParameterValue
) -> tuple[BatchedEinsum, ...]:
    return tuple(
        make_step_einsum(einsum, step) for step in _list_path_steps(einsum, path)
    )


def _list_recipes(einsum: BatchedEinsum, parameters: Parameters) -> list[TransformSpec]:
    """Return the recipes of all steps; the cheapest are the same on all machines."""
    steps = _make_step_einsums(einsum, parameters["path"])
    return list_recipes(parameters["steps"], steps, FAMILIES, TYPICAL)


def _make_space(workload: Workload) -> Space | None:
    """Fit einsums for which products of pairs take fewer operations than one nest."""
    einsum = workload.einsum
    if einsum.n_operands < 3:
        return None

    def find_problem(parameters: Parameters) -> str | None:
        steps = _make_step_einsums(einsum, parameters["path"])
        if any(find_roles(step) is None for step in steps):
            return "a step is no product of matrices"
        return find_misfit(parameters["steps"], steps, FAMILIES)

    paths = [
        path
        for path in find_good_paths(einsum)
        if find_problem({"path": str(path), "steps": BEST}) is None
    ]
    if not paths or count_nest_operations(einsum) <= paths[0].n_operations(einsum):
        return None
    table = {"path": tuple(map(str, paths)), "steps": (BEST,)}
    return Space(table, find_problem, open=frozenset(table))


def _predict_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds of all steps in sequence."""
    steps = _make_step_einsums(einsum, parameters["path"])
    return predict_steps_s(_list_recipes(einsum, parameters), steps, machine)


def _list_steps(einsum: BatchedEinsum, parameters: Parameters) -> NestSteps:
    """Return the steps; all products but the result are in the program's memory."""
    steps = _make_step_einsums(einsum, parameters["path"])
    return NestSteps(steps, steps[:-1], lambda: _list_recipes(einsum, parameters))


LIBRARY_PATH = register(
    Transform(
        "library_path",
        1,
        "two operands at a time, by the BLAS of numpy, on the host",
        _make_space,
        apply_library_path,
        _predict_s,
        devices=frozenset({"cpu"}),
        steps=_list_steps,
    )
)
