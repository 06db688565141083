"""Three operands and more, multiplied two at a time along a contraction path.

For ``ij,jk,kl->il`` with 1,000 values of each index, one nest takes 2 * 10**12
multiplications, two products one after the other 2 * 10**9::

    A[i,j]   B[j,k]   C[k,l]           positions 0, 1 and 2
       |        +--------+
       |       product[j,l]            "1,2": B and C; the product goes to the end
       +-----------+
                out[i,l]               "0,1": A and the product

Steps that share an outer index of all products can be fused: for one value of it after
the other, all products are small enough for the caches.

Source: Pfeifer, Haegeman and Verstraete 2014 for orders of fewest operations; Smith and
Gray 2018 (opt_einsum), which searches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import loopy as lp

from feinsum.ir import BatchedEinsum, Extent, Workload
from feinsum.raising import LoopNest
from feinsum.records import ParameterValue, TransformSpec
from feinsum.transforms.cost import Machine, region_s
from feinsum.transforms.library.generic import GENERIC, GENERIC_ON_CPUS
from feinsum.transforms.library.packed.packed_contraction import PACKED_CONTRACTION
from feinsum.transforms.library.paths.nests import FusedNest, split_nest
from feinsum.transforms.library.paths.pairwise import (
    PairwisePath,
    PathStep,
    are_named,
    cheapest,
    cheapest_path,
    cost_of,
    good_paths,
    misfit,
    named,
    nest_operations,
    smallest_path,
    specs_of,
    step_einsum,
)
from feinsum.transforms.library.unroll_and_jam import UNROLL_AND_JAM
from feinsum.transforms.matrix_roles import find_packed_roles
from feinsum.transforms.primitives import begin
from feinsum.transforms.registry import (
    Parameters,
    Space,
    Table,
    Transform,
    configurations,
    find_transform,
    register,
)
from feinsum.transforms.roles import (
    has_real_dtype,
    number,
    text,
    typical,
    volume,
)

NO_INDEX = ""
"""The outer index where all products are in global memory."""
FEWER = 8
"""Least ratio of the operations of one nest to those of a path."""
MOST_FOR_NESTS = 6
"""Most operands for a search of nests: more take too long."""
FEWER_THAN_PACKED = 2
"""The same ratio for packed tiles, for einsums that are searched."""
FUSED_BYTES = 1 << 17
"""Of all arrays for one value of the outer index: they stay in the second cache."""
STAGED_BYTES = 1 << 24
"""Of products and results that leave all caches: fused steps are tried first."""
MIN_OUTER = 64
"""Values of an outer index that keep all cores at work."""
GROUP_POINTS = 1 << 15
"""Iterations of a work-group that make its start negligible."""
PACKING = ("lanes", "side", "depth")
"""The parameters of packed steps."""
STEP_FAMILIES = {
    "best": (PACKED_CONTRACTION, GENERIC_ON_CPUS, UNROLL_AND_JAM),
    "cheapest": (PACKED_CONTRACTION, GENERIC_ON_CPUS),
}
"""Steps that are chosen by their costs, and among which families: those that write
their loops anew. Facts name the recipes that were chosen."""


def contraction_path(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Multiply two arrays at a time, each product by its own recipe.

    Rewrite, for ``ij,jk,kl->il`` and the path ``1,2 0,1``::

        for i, l:  out[i,l] = sum((j,k), A[i,j]*B[j,k]*C[k,l])

        for j, l in parallel:  product[j,l] = sum(k, B[j,k]*C[k,l])
        (wait for all work-groups)
        for i, l in parallel:  out[i,l] = sum(j, A[i,j]*product[j,l])

    Products are in global memory, and each step is a device kernel by the recommended
    recipe of ``packed_contraction`` or ``generic``; see :func:`split_nest`. Steps whose
    product has the outer index run inside its loop, after all others, with products in
    private memory, or in global memory if an extent is known only at run time; see
    :class:`FusedNest`.

    Operand functions are evaluated in the step that reads them.

    Raises:
        InvalidParameterError: if the path is not one of the einsum.
        TransformError: if the kernel does more than this einsum.

    Parameters:
        path: the pair of positions of each step; the product is appended.
        fused: the outer index of fused steps; empty for none.
        steps: the family of all other steps: ``packed`` where it fits, ``streamed``,
            or, from version 2 on, the one with the lowest cost on a machine with
            vectors of ``lanes`` entries: ``cheapest`` of these two families, or
            ``best``, with ``unroll_and_jam``, too; or the recipe of each step, fused
            ones included, as in facts.
        lanes: entries of a vector of packed steps.
        side: maximum entries of a packed tile over the output indices of an operand.
        depth: maximum entries of a packed tile over the summed indices.
    """
    einsum = nest.einsum
    steps, outer = _steps(einsum, parameters), text(parameters, "fused")
    extents = {index: nest.extent(index) for index in einsum.indices}
    fused = _fused_steps(steps, outer)
    # Private arrays need sizes that are known when the kernel is built.
    if not _has_known_products(fused, outer, extents):
        fused = ()
    staged = [step for step in steps[:-1] if step not in fused]
    t_unit, nests = split_nest(t_unit, nest, staged)
    alone = [step for step in steps if step not in fused]
    recipes = _recipes(einsum, steps, parameters)
    for step_nest, step in zip(nests[:-1] if fused else nests, alone, strict=True):
        spec = recipes.get(step) or _recommended(step_nest.einsum, parameters)
        transform = find_transform(spec.name, spec.version)
        t_unit = transform.apply(t_unit, step_nest, spec.parameters)
    if fused:
        schedule = begin(t_unit, nests[-1])
        block = _block(einsum, fused, outer)
        t_unit = FusedNest(schedule, outer, block, fused).written().t_unit
    return lp.remove_unused_inames(t_unit, nest.loops)


def _steps(einsum: BatchedEinsum, parameters: Parameters) -> tuple[PathStep, ...]:
    """Return the steps of a path, with steps for diagonals if costs choose recipes."""
    path = PairwisePath.parse(parameters["path"], einsum.n_operands)
    steps = parameters["steps"]
    takes_diagonals = are_named(steps) or steps in STEP_FAMILIES
    return path.steps(einsum, takes_diagonals=takes_diagonals)


def _fused_steps(steps: Sequence[PathStep], outer: str) -> tuple[PathStep, ...]:
    """Return the steps whose products have the outer index, if two or more."""
    fused = tuple(step for step in steps if outer in step.output)
    return fused if len(fused) > 1 else ()


def _has_known_products(
    fused: Sequence[PathStep], outer: str, extents: Mapping[str, Extent]
) -> bool:
    inner = {i for step in fused for i in step.output} - {outer}
    return all(isinstance(extents[index], int) for index in inner)


def _fused_bytes(einsum: BatchedEinsum, fused: Sequence[PathStep], outer: str) -> int:
    """Return the bytes that all steps access for one value of the outer index."""
    terms = [term for step in fused for term in (*step.inputs, step.output)]
    inner = [tuple(i for i in term if i != outer) for term in terms]
    n_entries = sum(volume(einsum, term) for term in inner)
    return n_entries * einsum.batch_size * einsum.operands[0].dtype.itemsize


def _block(einsum: BatchedEinsum, fused: Sequence[PathStep], outer: str) -> int:
    """Return how many values of the outer index are enough work for a group."""
    n_points = sum(
        volume(einsum, tuple(i for i in step.joint if i != outer)) for step in fused
    )
    most = typical(einsum.extents[outer]) // MIN_OUTER
    return max(1, min(GROUP_POINTS // max(n_points, 1), most))


def _recipes(
    einsum: BatchedEinsum, steps: Sequence[PathStep], parameters: Parameters
) -> dict[PathStep, TransformSpec]:
    """Return the recipes of all steps, if these are named or chosen by cost."""
    way = parameters["steps"]
    if are_named(way):
        return dict(zip(steps, specs_of(way), strict=True))
    if way not in STEP_FAMILIES:
        return {}
    machine = _machine(einsum, number(parameters, "lanes"))
    families = STEP_FAMILIES[str(way)]
    return {s: cheapest(step_einsum(einsum, s), families, machine) for s in steps}


def _recommended(einsum: BatchedEinsum, parameters: Parameters) -> TransformSpec:
    """Return the recommended recipe of the family of a step, within limits."""
    space = PACKED_CONTRACTION.offered(einsum)
    # the first tile within the limits, or else a nest of plain loops
    if parameters["steps"] == "packed" and space is not None:
        side, depth = number(parameters, "side"), number(parameters, "depth")
        limits = {"width": side, "height": side, "depth": depth}
        table = {**space, "lanes": (number(parameters, "lanes"),)}
        for name, limit in limits.items():
            table[name] = tuple(
                n for n in space[name] if isinstance(n, int) and n <= limit
            )
        recommended = replace(space, table=table).recommended()
        if recommended is not None:
            return PACKED_CONTRACTION.spec(recommended)
    return next(configurations(GENERIC, einsum))


def _machine(einsum: BatchedEinsum, lanes: int) -> Machine:
    """Return a machine with vectors of that length, the same one everywhere."""
    vector_bytes = lanes * einsum.operands[0].dtype.itemsize
    return Machine(vector_bytes=vector_bytes)


def _cost(einsum: BatchedEinsum, parameters: Parameters, machine: Machine) -> float:
    """Estimate the seconds of all steps; fused products stay in the second cache."""
    steps, outer = _steps(einsum, parameters), text(parameters, "fused")
    fused = _fused_steps(steps, outer)
    lanes = number(parameters, "lanes")
    total = 0.0
    if fused:
        n_points = sum(volume(einsum, step.joint) for step in fused)
        cycles = 2 * einsum.batch_size * n_points / min(lanes, 4)
        n_bytes = _fused_bytes(einsum, fused, outer) * volume(einsum, (outer,))
        total += region_s(machine, cycles, n_bytes)
    recipes = _recipes(einsum, steps, parameters)
    for step in steps:
        if step not in fused:
            sized_step = step_einsum(einsum, step)
            spec = recipes.get(step) or _recommended(sized_step, parameters)
            total += cost_of(spec, sized_step, machine)
    return total


def _with_named_steps(einsum: BatchedEinsum, parameters: Parameters) -> Parameters:
    """Name the recipes of all steps, so that other costs change nothing."""
    recipes = _recipes(einsum, _steps(einsum, parameters), parameters)
    space = _space(Workload(einsum))
    if not recipes or space is None:
        return parameters
    unused = {name: space[name][0] for name in PACKING[1:]}
    return {**parameters, **unused, "steps": named([*recipes.values()])}


def _intermediate_bytes(einsum: BatchedEinsum, parameters: Parameters) -> int:
    """Return the bytes of all products in global memory."""
    steps, outer = _steps(einsum, parameters), text(parameters, "fused")
    fused = _fused_steps(steps, outer)
    n_entries = sum(
        step.n_products * volume(einsum, step.output)
        for step in steps[:-1]
        if step not in fused
    )
    return n_entries * einsum.operands[0].dtype.itemsize


def _space(workload: Workload) -> Space | None:
    """Fit einsums for which a path takes far fewer operations than one nest.

    With diagonals it may take as many: they are best taken out before they are
    multiplied.
    """
    einsum = workload.einsum
    paths = good_paths(einsum) if has_real_dtype(einsum) else ()
    if not paths:
        return None
    has_diagonal = any(len(set(term)) < len(term) for term in einsum.inputs)
    fewer = 0 if has_diagonal else FEWER
    if nest_operations(einsum) < fewer * max(paths[0].n_operations(einsum), 1):
        return None
    is_double = einsum.operands[0].dtype.itemsize == 8
    table = {
        "path": tuple(map(str, paths)),
        "fused": _outer_indices(einsum, paths),
        "steps": (*STEP_FAMILIES, "packed", "streamed"),
        "lanes": (4, 8) if is_double else (8, 4, 16),
        "side": (1536, 384, 96),
        "depth": (384, 128),
    }
    first = {name: values[0] for name, values in table.items()}
    find_problem = partial(_find_problem, einsum, first)
    return Space(
        table,
        find_problem,
        starts=partial(_starts, workload, table, find_problem),
        proposals=partial(_proposals, einsum, table),
        admits=partial(_admits, einsum),
        is_searched=partial(_is_searched, einsum),
    )


def _proposals(einsum: BatchedEinsum, table: Table) -> Iterator[Parameters]:
    """Propose every path, with the cheapest steps or with fused ones.

    So is the path of the smallest products, though it may take far more operations:
    memory may have room for no other one.
    """
    first = {name: values[0] for name, values in table.items()}
    paths = dict.fromkeys((*table["path"], str(smallest_path(einsum))))
    for path, fused, lanes in product(paths, table["fused"], table["lanes"]):
        yield {**first, "path": path, "fused": fused, "lanes": lanes}


def _starts(
    workload: Workload,
    table: Table,
    find_problem: Callable[[Parameters], str | None],
) -> tuple[Parameters, ...]:
    """Start with the offered path whose nest is estimated to be the fastest.

    If that nest is one loop around all products, and they are small, they are fused.
    """
    einsum = workload.einsum
    if einsum.n_operands > MOST_FOR_NESTS:
        return ()
    paths = [PairwisePath.parse(text, einsum.n_operands) for text in table["path"]]
    extents = {i: typical(x) for i, x in workload.sized.extents.items()}
    fastest = cheapest_path(einsum, [path.pairs for path in paths], extents)
    if fastest is None:
        return ()
    number, outer = fastest
    first = {name: values[0] for name, values in table.items()}
    staged = {**first, "path": table["path"][number], "fused": NO_INDEX}
    fused = {**staged, "fused": outer if outer in table["fused"] else NO_INDEX}
    possible = [p for p in (fused, staged) if find_problem(p) is None]
    # a search begins with the recommended configuration anyway
    return tuple(p for p in possible[:1] if p != first)


def _outer_indices(
    einsum: BatchedEinsum, paths: Sequence[PairwisePath]
) -> tuple[str, ...]:
    """Return the outer indices of small products; first those that save memory."""
    indices = [
        index
        for index in einsum.output
        if any(_can_fuse(einsum, path.steps(einsum), index) for path in paths)
    ]
    itemsize = einsum.operands[0].dtype.itemsize
    # products that leave the caches are written and read from memory
    is_large = paths[0].n_written(einsum) * itemsize > STAGED_BYTES
    return (*indices, NO_INDEX) if is_large else (NO_INDEX, *indices)


def _can_fuse(einsum: BatchedEinsum, steps: Sequence[PathStep], outer: str) -> bool:
    fused = _fused_steps(steps, outer)
    return (
        bool(fused)
        and typical(einsum.extents[outer]) >= MIN_OUTER
        and _has_known_products(fused, outer, einsum.extents)
        and _fused_bytes(einsum, fused, outer) <= FUSED_BYTES
    )


def _find_problem(
    einsum: BatchedEinsum, first: Parameters, parameters: Parameters
) -> str | None:
    steps, outer = _steps(einsum, parameters), text(parameters, "fused")
    fused = _fused_steps(steps, outer)
    if outer != NO_INDEX and not _can_fuse(einsum, steps, outer):
        return f"the path has no small products for a value of {outer!r}"
    way = parameters["steps"]
    if are_named(way):
        einsums = [step_einsum(einsum, step) for step in steps]
        return misfit(way, einsums, STEP_FAMILIES["best"])
    if len(fused) == len(steps) and way not in (*STEP_FAMILIES, "packed"):
        return "all steps are fused"
    # A parameter that changes nothing has its first value only: otherwise a search
    # would try one recipe several times.
    by_cost = dict.fromkeys(STEP_FAMILIES, PACKING[:1])
    used = {"packed": PACKING, **by_cost}.get(str(way), ())
    used = used if len(fused) < len(steps) else ()
    if any(parameters[n] != first[n] for n in PACKING if n not in used):
        return "no step is packed"
    return None


def _is_searched(einsum: BatchedEinsum) -> bool:
    """Tell whether packed tiles take far more operations, too."""
    space = PACKED_CONTRACTION.space(Workload(einsum)) or {"vector": (), "register": ()}
    roles = [
        find_packed_roles(einsum, str(vector), str(register_index))
        for vector in space["vector"]
        for register_index in space["register"]
    ]
    packed = [einsum.batch_size * x.n_operations(einsum) for x in roles if x]
    return all(
        cost >= FEWER_THAN_PACKED * path.n_operations(einsum)
        for cost in packed
        for path in good_paths(einsum)[:1]
    )


def _admits(einsum: BatchedEinsum, name: str, value: ParameterValue) -> bool:
    """Admit any path: which ones are offered depends on extents and opt_einsum.

    And any recipes of its steps, which only the constraint knows.
    """
    if name == "steps":
        return are_named(value)
    return name == "path" and bool(PairwisePath.parse(value, einsum.n_operands))


CONTRACTION_PATH = register(
    Transform(
        "contraction_path",
        2,
        "two operands at a time, each step by the recipe that costs the least",
        _space,
        contraction_path,
        _cost,
        intermediate_bytes=_intermediate_bytes,
        in_full=_with_named_steps,
    )
)
