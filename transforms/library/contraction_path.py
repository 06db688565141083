"""Three operands and more, multiplied two at a time along a contraction path.

For ``ij,jk,kl->il`` with 1,000 values of each index, one nest takes 2 * 10**12
multiplications, two consecutive products 2 * 10**9. The order of products is in
:mod:`feinsum.transforms.library.pairwise`.

Each step is a device kernel of its own, whose product is in global memory::

    for j, l:  product[j,l] = sum(k, B[j,k]*C[k,l])
    (wait for all work-groups)
    for i, l:  out[i,l] = sum(j, A[i,j]*product[j,l])

Steps that ran one after the other for each value of an outer index, with products in
private memory, were never faster by more than a tenth.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product

import loopy as lp

from feinsum.ir import BatchedEinsum, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.library.generic import GENERIC
from feinsum.transforms.library.packed.packed_contraction import PACKED_CONTRACTION
from feinsum.transforms.library.pairwise import (
    PairwisePath,
    PathStep,
    count_nest_operations,
    find_good_paths,
    find_smallest_path,
    make_step_einsum,
)
from feinsum.transforms.library.steps import (
    BEST,
    apply_recipes,
    find_misfit,
    list_recipes,
    predict_steps_s,
    split_nest,
)
from feinsum.transforms.matrix_roles import find_packed_roles
from feinsum.transforms.registry import (
    NestSteps,
    Parameters,
    Space,
    Table,
    Transform,
    list_choices,
    register,
)
from feinsum.transforms.roles import get_number, has_blas_dtype

FAMILIES = (PACKED_CONTRACTION, GENERIC)
"""Families for steps: those that write new loops."""

LANES = {4: (8, 4, 16), 8: (4, 8), 16: (2, 4)}
"""Entries of the vectors to choose steps for, by the bytes of an entry."""


def apply_contraction_path(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Multiply two arrays at a time, each product by its own recipe.

    Rewrite, for ``ij,jk,kl->il`` and the path ``1,2 0,1``::

        for i, l:  out[i,l] = sum((j,k), A[i,j]*B[j,k]*C[k,l])

        for j, l in parallel:  product[j,l] = sum(k, B[j,k]*C[k,l])
        (wait for all work-groups)
        for i, l in parallel:  out[i,l] = sum(j, A[i,j]*product[j,l])

    Operand functions are evaluated in the step that reads them.

    Raises:
        InvalidParameterError: if the path is not one of the einsum.
        TransformError: if the kernel does more than this einsum.

    Parameters:
        path: the pair of positions of each step; the product is appended.
        steps: the recipe of each step, as in facts; or ``best`` for the cheapest
            recipes of ``packed_contraction`` or ``generic`` on a machine with vectors
            of ``lanes`` entries.
        lanes: entries of a vector.
    """
    path = _parse_path(nest.einsum, parameters)
    t_unit, nests = split_nest(t_unit, nest, path[:-1])
    recipes = _list_steps(nest.einsum, parameters).recipes()
    t_unit = apply_recipes(t_unit, nests, recipes)
    return lp.remove_unused_inames(t_unit, nest.loops)


def _parse_path(einsum: BatchedEinsum, parameters: Parameters) -> tuple[PathStep, ...]:
    return PairwisePath.parse(parameters["path"], einsum.n_operands).steps(einsum)


def _list_steps(einsum: BatchedEinsum, parameters: Parameters) -> NestSteps:
    """Return the steps, and their recipes, chosen for the same machine everywhere."""
    einsums = [
        make_step_einsum(einsum, step) for step in _parse_path(einsum, parameters)
    ]
    itemsize = einsum.operands[0].dtype.itemsize
    machine = MachineModel(vector_bytes=get_number(parameters, "lanes") * itemsize)
    recipes = partial(list_recipes, parameters["steps"], einsums, FAMILIES, machine)
    return NestSteps(einsums, recipes)


def _make_space(workload: Workload) -> Space | None:
    """Fit einsums for which a path takes far fewer operations than one nest.

    For operands with diagonals, it need not take fewer: it is best to extract diagonals
    before products.
    """
    einsum = workload.einsum
    paths = find_good_paths(einsum) if has_blas_dtype(einsum) else ()
    if not paths:
        return None
    has_diagonal = any(len(set(term)) < len(term) for term in einsum.inputs)
    fewer = 0 if has_diagonal else cpu.FEWER_OPERATIONS
    if count_nest_operations(einsum) < fewer * max(paths[0].n_operations(einsum), 1):
        return None
    table: Table = {
        "path": tuple(map(str, paths)),
        "steps": (BEST,),
        "lanes": LANES[einsum.operands[0].dtype.itemsize],
    }

    def list_candidates() -> Iterator[Parameters]:
        # the path of the smallest products may take far more operations, but memory may
        # have no room for any other one
        paths = dict.fromkeys((*table["path"], str(find_smallest_path(einsum))))
        return list_choices({**table, "path": tuple(paths)})

    def find_problem(parameters: Parameters) -> str | None:
        einsums = _list_steps(einsum, parameters).einsums
        return find_misfit(parameters["steps"], einsums, FAMILIES)

    # ``path`` is open: which paths are offered depends on extents and on opt_einsum
    return Space(
        table,
        find_problem,
        list_candidates,
        open=frozenset({"path", "steps"}),
        is_searched=_is_searched(einsum),
    )


@lru_cache(maxsize=256)
def _is_searched(einsum: BatchedEinsum) -> bool:
    """Return whether packed tiles, too, take far more operations than a path."""
    space = PACKED_CONTRACTION.space(Workload(einsum)) or {"vector": (), "register": ()}
    pairs = product(space["vector"], space["register"])
    roles = [find_packed_roles(einsum, str(v), str(r)) for v, r in pairs]
    packed = [einsum.batch_size * x.n_operations(einsum) for x in roles if x]
    least = find_good_paths(einsum)[0].n_operations(einsum)
    return all(n >= cpu.FEWER_THAN_PACKED * least for n in packed)


CONTRACTION_PATH = register(
    Transform(
        "contraction_path",
        4,
        "two operands at a time, each step by the recipe that costs the least",
        _make_space,
        apply_contraction_path,
        partial(predict_steps_s, _list_steps),
        steps=_list_steps,
    )
)
