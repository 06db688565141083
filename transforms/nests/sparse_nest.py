"""Nests over one sparse operand: the choice of nests, and of their form.

A nest determines the order in which pairs of operands are multiplied, and how the loops
of these steps are fused; a form determines how the loops run. For MTTKRP,
``ijk,ja,ka->ia`` with T in a compressed tree (CSF), the factorized nest sums the fibers
of T before it multiplies by B: once for each j instead of once for each entry::

    i --+-- j --+-- k          for i, j:    sums[a] = sum(k, T[i,j,k]*C[k,a])
        |       +-- k                       out[i,a] += sums[a]*B[j,a]
        +-- j --+-- k

Source: Kanakagiri and Solomonik 2024 (SpTTN).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import loopy as lp

from feinsum.errors import InvalidEinsumError, TransformError
from feinsum.ir import BatchedEinsum, SizeParam, Workload, get_nodes, list_profile_names
from feinsum.machine import TYPICAL
from feinsum.nests import (
    EstimatedTime,
    IndependentLoops,
    Lexicographic,
    Nest,
    NestForm,
    Network,
    Operations,
    Sizes,
    build_network,
    build_unfactorized,
    find_best_nest,
    find_best_orders,
    find_lane_indices,
    format_nest,
    get_sizes,
    group_by_depth,
    parse_nest,
)
from feinsum.nests.form import is_apart
from feinsum.nests.networks import MAX_OPERANDS
from feinsum.raising import LoopNest
from feinsum.records import ParameterValue
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.nests.given_arrays import replace_loops
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import RUN_TIME_EXTENT, get_typical_extent

NO_THREADS, CHUNKS, COPIES = "none", "chunks", "copies"


class NestRecipe(NamedTuple):
    """A nest, and the form of its kernel."""

    nest: Nest
    form: NestForm


def parse_recipe(einsum: BatchedEinsum, parameters: Parameters) -> NestRecipe:
    """Return the nest and form that the parameters of a recipe describe.

    Args:
        einsum: the canonical einsum to whose names the parameters refer.
        parameters: all parameters.

    Raises:
        TransformError: if there is no such nest, or it does not support the form.
    """
    threads = parameters["threads"]
    try:
        nest = parse_nest(build_network(einsum), str(parameters["nest"]))
        form = NestForm(
            str(parameters["lane"]),
            _require_int(parameters["lanes"]),
            is_chunked=threads != NO_THREADS,
            has_copies=threads == COPIES,
            tile=_require_int(parameters["tile"]),
        )
        form.check(nest)
    except InvalidEinsumError as error:
        raise TransformError(f"sparse_nest: {error}") from error
    return NestRecipe(nest, form)


def apply(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Replace the loops over a tree by those of a nest, in a form.

    Rewrite (MTTKRP, lanes=4, threads='chunks')::

        for i, j, k, a:  out[i,a] += T[i,j,k] * B[j,a] * C[k,a]

        for chunk in parallel
          for i in nodes of the chunk
            for j in children of i
              sums[a] = 0                      # vectors, in registers
              for k in children of j
                for a by 4: sums[a] += T[i,j,k] * C[k,a]
              for a by 4: total[a] += sums[a] * B[j,a]
            for a by 4: out[i,a] += total[a]

    Parameters:
        nest: pairs of operands and the order of loops of each product, as
            :func:`feinsum.nests.format_nest` writes them.
        lane: the dense index that is vectorized; empty for none.
        lanes: entries of a vector.
        threads: ``none``; ``chunks`` of the root's nodes; or ``copies``: chunks that
            each have a copy of the result, eight in a kernel, added up at the end.
        tile: entries of the lanes' index in a tile; 0 for all.
    """
    if nest.tree is None:
        raise TransformError(
            f"kernel {nest.kernel_name!r} reads dense arrays; sparse_nest needs a tree"
        )
    recipe = parse_recipe(nest.einsum, parameters)
    return replace_loops(t_unit, nest, recipe.nest, recipe.form)


def _require_int(value: ParameterValue) -> int:
    if type(value) is not int:
        raise TransformError(f"sparse_nest: {value!r} is not an integer")
    return value


def find_nests(network: Network, sizes: Sizes, item_bytes: int = 8) -> tuple[Nest, ...]:
    """Return the nests that are worth a trial, starting with the estimated fastest one.

    Then come the best nests of other paths, the best by the paper's cost, and the
    unfactorized one.
    """
    extents = tuple(sizes.extents.items())
    return _find_nests(network, sizes.nodes, extents, item_bytes)


@lru_cache(maxsize=64)
def _find_nests(
    network: Network,
    nodes: tuple[int, ...],
    extents: tuple[tuple[str, int], ...],
    item_bytes: int,
) -> tuple[Nest, ...]:
    sizes = Sizes(dict(extents), nodes)
    return tuple(dict.fromkeys(_list_candidates(network, sizes, item_bytes)))


def _list_candidates(network: Network, sizes: Sizes, item_bytes: int) -> Iterator[Nest]:
    costs = [
        EstimatedTime(network, sizes, item_bytes=item_bytes, n_threads=n)
        # a nest without a loop around everything can be best for one thread only
        for n in (2, 1)
    ]
    for cost in costs:
        if best := find_best_nest(network, cost):
            yield best.nest
    best_of_paths = [
        best
        for path in next(group_by_depth(network))[: 8 * cpu.MAX_PATHS]
        if (best := find_best_orders(network, path, costs[0]))
    ]
    best_of_paths.sort(key=attrgetter("cost"))
    yield from (
        x.nest
        for x in best_of_paths[: cpu.MAX_PATHS]
        if x.cost <= cpu.POOR_NEST * best_of_paths[0].cost
    )
    papers = Lexicographic(IndependentLoops(network), Operations(network, sizes))
    if best := find_best_nest(network, papers):
        yield best.nest
    yield build_unfactorized(network)


def assume_sizes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes, with typical values for unknown ones."""
    values = {x.name: sizes.get(x.name, RUN_TIME_EXTENT) for x in einsum.size_params}
    names = list_profile_names(einsum)
    nodes = get_nodes(einsum, sizes)
    if not nodes:
        term = einsum.inputs[einsum.sparse_position or 0]
        level_nodes: list[int] = []
        max_nodes = 1
        for index in term:
            extent = einsum.extents[index]
            n = int(values[extent.name]) if isinstance(extent, SizeParam) else extent
            max_nodes *= n
            # a level has a typical fiber for each node above, but at most all positions
            above = level_nodes[-1] if level_nodes else n
            level_nodes.append(
                max(1, min(max_nodes, above * (cpu.USUAL_FIBER if level_nodes else 1)))
            )
        nodes = tuple(level_nodes)
    return {**values, **dict(zip(names, nodes, strict=True))}


def _is_supported(einsum: BatchedEinsum) -> bool:
    return (
        einsum.sparse_position is not None
        and einsum.batch_size <= cpu.MAX_SPARSE_ROWS
        and einsum.n_operands <= MAX_OPERANDS
        and einsum.output_dtypes[0].kind in "fc"
    )


def space(workload: Workload) -> Space | None:
    """Fit one sparse operand among dense ones, with no index twice in a term."""
    einsum = workload.einsum
    if not _is_supported(einsum):
        return None
    try:
        network = build_network(einsum)
    except InvalidEinsumError:
        return None
    itemsize = einsum.output_dtypes[0].itemsize
    typical_sizes = get_sizes(einsum, assume_sizes(einsum, workload.sizes))
    nests = find_nests(network, typical_sizes, itemsize)
    lanes = {lane for nest in nests for lane in find_lane_indices(nest)}
    ordered = sorted(lanes, key=lambda i: (-typical_sizes.extents[i], i))
    is_real = einsum.output_dtypes[0].kind == "f"
    usual = TYPICAL.vector_bytes // itemsize
    table: Table = {
        "nest": tuple(map(format_nest, nests)),
        "lane": (*ordered, "") if is_real else ("",),
        "lanes": tuple(sorted((1, 2, 4, 8, 16), key=lambda n: n != usual))
        if is_real
        else (1,),
        "threads": (CHUNKS if is_apart(network) else COPIES, NO_THREADS),
        "tile": (0, 16, 32, 64, 128) if is_real else (0,),
    }
    # A recipe recorded at other sizes may have another nest, and another index of
    # lanes; the constraint refuses combinations that do not fit.
    return Space(
        table, partial(_find_problem, einsum), open=frozenset({"nest", "lane"})
    )


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    lane, lanes = str(parameters["lane"]), _require_int(parameters["lanes"])
    tile = _require_int(parameters["tile"])
    if lane and lane not in einsum.indices:
        return f"{lane!r} is no index of the einsum"
    if (lane == "") != (lanes == 1):
        return "lanes and their index go together"
    if tile and (
        not lane or tile % lanes or tile >= get_typical_extent(einsum.extents[lane])
    ):
        return f"{lane!r} has no tiles of {tile}"
    if lane and lanes >= 2 * get_typical_extent(einsum.extents[lane]):
        return f"{lane!r} is shorter than {lanes} lanes"
    try:
        parse_recipe(einsum, parameters)
    except TransformError as error:
        return str(error)
    return None


def get_parameters(nest: Nest, form: NestForm) -> dict[str, Any]:
    """Return the parameters of the recipe with this nest and form."""
    threads = COPIES if form.has_copies else CHUNKS if form.is_chunked else NO_THREADS
    return {
        "nest": format_nest(nest),
        "lane": form.lane,
        "lanes": form.lanes,
        "threads": threads,
        "tile": form.tile,
    }


SPARSE_NEST = register(
    Transform(
        "sparse_nest",
        2,
        "the loops of one sparse operand among dense ones, in vectors and by threads",
        space,
        apply,
        devices=frozenset({"cpu"}),
        is_sparse=True,
    )
)
