"""Three operands and more, multiplied two at a time along a contraction path.

For ``ij,jk,kl->il`` with 1,000 values of each index, one nest takes 2 * 10**12
multiplications, two consecutive products 2 * 10**9. The order of products is in
:mod:`feinsum.transforms.library.pairwise`.

A product reaches the step that reads it in one of two ways. A staged product is in
global memory, written by a separate device kernel. Fused steps run one after the other
for each value of an outer index, with products in private memory::

    staged                              fused, for the outer index b
    for b, j, l:  product[b,j,l] = ...  for b:
    (wait)                                for j, l:  product[j,l] = ...
    for b, i, l:  out[b,i,l] = ...        for i, l:  out[b,i,l] = ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from typing import TypeAlias

import loopy as lp
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum, Extent, IndexList, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.records import TransformSpec
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.cost import estimate_region_s
from feinsum.transforms.library.generic import GENERIC_ON_CPUS
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
from feinsum.transforms.library.unroll_and_jam import UNROLL_AND_JAM
from feinsum.transforms.matrix_roles import find_packed_roles
from feinsum.transforms.primitives import NestWriter, Schedule, begin
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.registry import (
    NestSteps,
    Parameters,
    Space,
    Table,
    Transform,
    register,
)
from feinsum.transforms.roles import (
    count_index_tuples,
    get_number,
    get_text,
    get_typical_extent,
    has_real_dtype,
)

NO_INDEX = ""
"""The value of the parameter ``fused`` if all products are in global memory."""
FAMILIES = (PACKED_CONTRACTION, GENERIC_ON_CPUS, UNROLL_AND_JAM)
"""Families for steps: those that write new loops."""


def apply_contraction_path(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Multiply two arrays at a time, each product by its own recipe.

    Rewrite, for ``ij,jk,kl->il`` and the path ``1,2 0,1``::

        for i, l:  out[i,l] = sum((j,k), A[i,j]*B[j,k]*C[k,l])

        for j, l in parallel:  product[j,l] = sum(k, B[j,k]*C[k,l])
        (wait for all work-groups)
        for i, l in parallel:  out[i,l] = sum(j, A[i,j]*product[j,l])

    Products are in global memory, and each step is a device kernel. Steps whose product
    has the outer index run inside a loop over it, after all other steps, with products
    in private memory; see :class:`FusedNest`. If an extent of a product is known only
    at run time, these products, too, are in global memory. Operand functions are
    evaluated in the step that reads them.

    Raises:
        InvalidParameterError: if the path is not one of the einsum.
        TransformError: if the kernel does more than this einsum.

    Parameters:
        path: the pair of positions of each step; the product is appended.
        fused: the outer index of fused steps; empty for none.
        steps: the recipe of each step, fused ones included, as in facts; or ``best``
            for the cheapest recipes of ``packed_contraction``, ``generic`` or
            ``unroll_and_jam`` on a machine with vectors of ``lanes`` entries.
        lanes: entries of a vector.
    """
    path = _Path.of(nest.einsum, parameters)
    extents = {index: nest.extent(index) for index in nest.einsum.indices}
    # private arrays need extents that are known when the kernel is built
    fused = path.fused if _has_known_products(path.fused, path.outer, extents) else ()
    staged = [step for step in path.steps[:-1] if step not in fused]
    t_unit, nests = split_nest(t_unit, nest, staged)
    recipes = dict(zip(path.steps, path.recipes, strict=True))
    alone = [recipes[step] for step in path.steps if step not in fused]
    t_unit = apply_recipes(t_unit, nests[:-1] if fused else nests, alone)
    if fused:
        schedule = begin(t_unit, nests[-1])
        block = _choose_block(nest.einsum, fused, path.outer)
        t_unit = FusedNest(schedule, path.outer, block, fused).written().t_unit
    return lp.remove_unused_inames(t_unit, nest.loops)


@dataclass(frozen=True)
class _Path:
    """The steps that parameters describe.

    Attributes:
        fused: the steps inside the loop over the outer index; none, or at least two.
    """

    einsum: BatchedEinsum
    parameters: Parameters
    steps: tuple[PathStep, ...]
    fused: tuple[PathStep, ...]

    @classmethod
    def of(cls, einsum: BatchedEinsum, parameters: Parameters) -> _Path:
        path = PairwisePath.parse(parameters["path"], einsum.n_operands)
        steps = path.steps(einsum)
        return cls(
            einsum, parameters, steps, _find_fused_steps(steps, parameters["fused"])
        )

    @property
    def outer(self) -> str:
        return get_text(self.parameters, "fused")

    @cached_property
    def einsums(self) -> list[BatchedEinsum]:
        return [make_step_einsum(self.einsum, step) for step in self.steps]

    @cached_property
    def recipes(self) -> list[TransformSpec]:
        """The recipes of all steps, chosen for the same machine everywhere."""
        lanes = get_number(self.parameters, "lanes")
        itemsize = self.einsum.operands[0].dtype.itemsize
        machine = MachineModel(vector_bytes=lanes * itemsize)
        return list_recipes(self.parameters["steps"], self.einsums, FAMILIES, machine)


def _find_fused_steps(steps: Sequence[PathStep], outer: object) -> tuple[PathStep, ...]:
    """Return the steps whose products have the outer index, if at least two have."""
    fused = tuple(step for step in steps if outer in step.output)
    return fused if len(fused) > 1 else ()


def _has_known_products(
    fused: Sequence[PathStep], outer: str, extents: Mapping[str, Extent]
) -> bool:
    inner = {i for step in fused for i in step.output} - {outer}
    return all(isinstance(extents[index], int) for index in inner)


def _count_fused_bytes(
    einsum: BatchedEinsum, fused: Sequence[PathStep], outer: str
) -> int:
    """Return the bytes that all steps access for one value of the outer index."""
    terms = [term for step in fused for term in (*step.inputs, step.output)]
    inner = [tuple(i for i in term if i != outer) for term in terms]
    n_entries = sum(count_index_tuples(einsum, term) for term in inner)
    return n_entries * einsum.batch_size * einsum.operands[0].dtype.itemsize


def _choose_block(einsum: BatchedEinsum, fused: Sequence[PathStep], outer: str) -> int:
    """Return the number of values of the outer index that are enough for a group."""
    n_points = sum(
        count_index_tuples(einsum, tuple(i for i in step.joint if i != outer))
        for step in fused
    )
    most = get_typical_extent(einsum.extents[outer]) // cpu.MIN_OUTER
    return max(1, min(cpu.GROUP_POINTS // max(n_points, 1), most))


def _make_space(workload: Workload) -> Space | None:
    """Fit einsums for which a path takes far fewer operations than one nest.

    For operands with diagonals, it need not take fewer: it is best to extract diagonals
    before products.
    """
    einsum = workload.einsum
    paths = find_good_paths(einsum) if has_real_dtype(einsum) else ()
    if not paths:
        return None
    has_diagonal = any(len(set(term)) < len(term) for term in einsum.inputs)
    fewer = 0 if has_diagonal else cpu.FEWER_OPERATIONS
    if count_nest_operations(einsum) < fewer * max(paths[0].n_operations(einsum), 1):
        return None
    is_double = einsum.operands[0].dtype.itemsize == 8
    table: Table = {
        "path": tuple(map(str, paths)),
        "fused": _find_outer_indices(einsum, paths),
        "steps": (BEST,),
        "lanes": (4, 8) if is_double else (8, 4, 16),
    }

    def candidates() -> Iterator[Parameters]:
        # the path of the smallest products may take far more operations, but memory may
        # have no room for any other one
        paths = dict.fromkeys((*table["path"], str(find_smallest_path(einsum))))
        for path, fused, lanes in product(paths, table["fused"], table["lanes"]):
            yield {"path": path, "fused": fused, "steps": BEST, "lanes": lanes}

    def find_problem(parameters: Parameters) -> str | None:
        path = _Path.of(einsum, parameters)
        if path.outer != NO_INDEX and not _can_fuse(einsum, path.steps, path.outer):
            return f"the path has no small products for a value of {path.outer!r}"
        # a parameter without effect must have its first value: otherwise a search would
        # try one kernel several times
        has_lanes = len(path.fused) < len(path.steps) or parameters["steps"] != BEST
        if not has_lanes and parameters["lanes"] != table["lanes"][0]:
            return "all steps are fused"
        return find_misfit(parameters["steps"], path.einsums, FAMILIES)

    # ``path`` is open: which paths are offered depends on extents and on opt_einsum
    return Space(
        table,
        find_problem,
        candidates,
        open=frozenset({"path", "steps"}),
        is_searched=_is_searched(einsum),
    )


def _find_outer_indices(
    einsum: BatchedEinsum, paths: Sequence[PairwisePath]
) -> tuple[str, ...]:
    """Return the outer indices for which products are small, the best value first."""
    indices = [
        index
        for index in einsum.output
        if any(_can_fuse(einsum, path.steps(einsum), index) for path in paths)
    ]
    itemsize = einsum.operands[0].dtype.itemsize
    # fuse first if products would leave the caches and move through memory
    is_large = paths[0].count_written(einsum) * itemsize > cpu.STAGED_BYTES
    return (*indices, NO_INDEX) if is_large else (NO_INDEX, *indices)


def _can_fuse(einsum: BatchedEinsum, steps: Sequence[PathStep], outer: str) -> bool:
    fused = _find_fused_steps(steps, outer)
    # steps of one operand do not count: a diagonal or sum is cheap to read again from
    # global memory
    return (
        sum(len(step.factors) for step in fused) > len(fused) + 1
        and get_typical_extent(einsum.extents[outer]) >= cpu.MIN_OUTER
        and _has_known_products(fused, outer, einsum.extents)
        and _count_fused_bytes(einsum, fused, outer) <= cpu.FUSED_BYTES
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


def _predict_s(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Predict the seconds of all steps; fused products stay in the second cache."""
    path = _Path.of(einsum, parameters)
    fused_s = 0.0
    if path.fused:
        n_points = sum(count_index_tuples(einsum, step.joint) for step in path.fused)
        lanes = min(get_number(parameters, "lanes"), 4)
        cycles = 2 * einsum.batch_size * n_points / lanes
        n_values = count_index_tuples(einsum, (path.outer,))
        n_bytes = _count_fused_bytes(einsum, path.fused, path.outer) * n_values
        fused_s = estimate_region_s(machine, cycles, n_bytes)
    alone = [k for k, step in enumerate(path.steps) if step not in path.fused]
    recipes = [path.recipes[k] for k in alone]
    return fused_s + predict_steps_s(recipes, [path.einsums[k] for k in alone], machine)


def _list_steps(einsum: BatchedEinsum, parameters: Parameters) -> NestSteps:
    """Return the steps; all products but those of fused steps are in global memory."""
    path = _Path.of(einsum, parameters)
    staged = [step for step in path.steps[:-1] if step not in path.fused]
    stored = [make_step_einsum(einsum, step) for step in staged]
    return NestSteps(path.einsums, stored, lambda: path.recipes)


@dataclass(frozen=True)
class _Product:
    """A private array with the product of two arrays.

    Attributes:
        axes: the index of each axis.
        written_by: id of the last statement that writes it.
    """

    array: str
    axes: IndexList
    written_by: str

    def at(self, points: Mapping[str, Expression]) -> Expression:
        return _make_entry(self.array, self.axes, points)


FusedFactor: TypeAlias = str | _Product
"""The name of an operand, or a product. They differ in type, since a private array may
have the name of an operand that is a staged product."""

FusedFactors: TypeAlias = tuple[FusedFactor, ...]


class FusedNest:
    """Writes the fused steps of a path inside a loop over an output index.

    Rewrite, for ``bij,bjk,bkl->bil``, the outer index b and the path ``1,2 0,1``::

        for b, i, l:  out[b,i,l] = sum((j,k), A[b,i,j]*B[b,j,k]*C[b,k,l])

        for b_tile in parallel:
            for b' < block:
                for j, l:  product[j,l] = 0
                for j, k, l:  product[j,l] += B[b,j,k]*C[b,k,l]
                for i, l:  result[i,l] = 0
                for i, j, l:  result[i,l] += A[b,i,j]*product[j,l]
                for i, l:  out[b,i,l] = result[i,l]

    The innermost loop runs along the last axis of a factor if the product has that
    index. Rows that share both factors share the product.

    Args:
        outer: the index of the loop around all steps. The extents of all other indices
            of products must be known.
        block: its values per work-group.
        steps: the steps whose products have ``outer``. The schedule has the operands
            that they read in the order of their numbers.
    """

    def __init__(
        self, schedule: Schedule, outer: str, block: int, steps: Sequence[PathStep]
    ) -> None:
        self.schedule, self.outer, self.steps = schedule, outer, steps
        self.writer = NestWriter(schedule)
        tile = self.writer.blocks(outer, block)
        self.writer.tag(tile.loop, "g.0")
        inner = self.writer.entries(outer, tile)
        self.around, self.point = (tile.loop, inner.loop), inner.point
        read = {factor for step in steps for factor in step.factors}
        numbers = sorted(read - {step.product for step in steps})
        self.rows: list[dict[int, FusedFactor]] = [
            dict(zip(numbers, row, strict=True)) for row in schedule.rows
        ]

    def written(self) -> Schedule:
        """Write all rows, and return the schedule with the nest replaced."""
        for step in self.steps:
            products: dict[FusedFactors, _Product] = {}
            for row in self.rows:
                factors = tuple(row.pop(number) for number in step.factors)
                if factors not in products:
                    products[factors] = self._multiply(step, factors)
                row[step.product] = products[factors]
        for k, row in enumerate(self.rows):
            (product,) = row.values()
            assert isinstance(product, _Product)
            self._store(k, product)
        return self.writer.build()

    def _multiply(self, step: PathStep, factors: FusedFactors) -> _Product:
        """Write the statements of a step, and return its product."""
        axes, dtype = self._order_axes(step, factors), self.schedule.get_row_dtype(0)
        shape = [self._get_size(index) for index in axes] or [1]
        name = self.writer.array("product", shape, dtype)
        after = [
            factor.written_by for factor in factors if isinstance(factor, _Product)
        ]
        if step.summed:
            loops, points = self._make_loops(axes)
            entry = _make_entry(name, axes, points)
            zero = self.writer.assign(
                f"{name}_zero", entry, dtype.type(0), loops, after
            )
            after.append(zero)
        loops, terms = self._list_terms(step, axes)
        entry = _make_entry(name, axes, terms[0])
        values = [self._make_product(factors, points) for points in terms]
        value = p.Sum((entry, *values)) if step.summed else values[0]
        written_by = self.writer.assign(name, entry, value, loops, after)
        return _Product(name, axes, written_by)

    def _get_size(self, index: str) -> int:
        extent = self.schedule.extents[index]
        assert isinstance(extent, int)
        return extent

    def _list_terms(
        self, step: PathStep, axes: IndexList
    ) -> tuple[Names, list[dict[str, Expression]]]:
        """Make the loops of a step; return them and the points of the terms inside."""
        order = (*axes[:-1], *step.summed, *axes[-1:])
        if not step.summed:
            loops, points = self._make_loops(order)
            return loops, [points]
        last = step.summed[-1]
        extent = self.schedule.extents[last]
        # add several terms for each load and store of an entry of the product
        n_terms = _choose_divisor(extent) if isinstance(extent, int) else 1
        loops, points = self._make_loops(order, {last: n_terms})
        first = n_terms * points[last]
        return loops, [{**points, last: first + k} for k in range(n_terms)]

    def _order_axes(self, step: PathStep, factors: FusedFactors) -> IndexList:
        """Order the inner indices of a product: those with contiguous factors last."""
        inner = [index for index in step.output if index != self.outer]
        # along the last axis of a factor, the innermost loop reads vectors
        ends = {term[-1] for term in map(self._get_term, factors) if term}
        return tuple(sorted(inner, key=lambda index: index in ends))

    def _get_term(self, factor: FusedFactor) -> IndexList:
        if isinstance(factor, _Product):
            return factor.axes
        return self.schedule.spans[factor]

    def _make_product(
        self, factors: FusedFactors, points: Mapping[str, Expression]
    ) -> Expression:
        values = tuple(self._read(factor, points) for factor in factors)
        return values[0] if len(values) == 1 else p.Product(values)

    def _read(
        self, factor: FusedFactor, points: Mapping[str, Expression]
    ) -> Expression:
        if isinstance(factor, _Product):
            return factor.at(points)
        rule, term = self.schedule.rules[factor], self.schedule.spans[factor]
        return var(rule)(*(points[index] for index in term))

    def _store(self, row: int, product: _Product) -> None:
        loops, points = self._make_loops(
            [index for index in self.schedule.output if index != self.outer]
        )
        self.writer.store(row, product.at(points), points, loops, [product.written_by])

    def _make_loops(
        self, indices: Sequence[str], divisor_of: Mapping[str, int] | None = None
    ) -> tuple[Names, dict[str, Expression]]:
        """Make loops over indices, inside the outer one.

        Args:
            indices: the indices.
            divisor_of: a divisor of the extent of an index, whose loop is that much
                shorter.
        """
        points: dict[str, Expression] = {self.outer: self.point}
        inames = []
        for index in indices:
            size = self.schedule.extents[index]
            if isinstance(size, int):
                size //= (divisor_of or {}).get(index, 1)
            inames.append(self.writer.loop(index, size=size))
            points[index] = var(inames[-1])
        return (*self.around, *inames), points


def _make_entry(
    array: str, axes: IndexList, points: Mapping[str, Expression]
) -> Expression:
    """Subscript a product; a scalar is an array of one entry."""
    return var(array)[tuple(points[index] for index in axes) or (0,)]


def _choose_divisor(extent: int) -> int:
    """Return the largest divisor up to :data:`cpu.MAX_ITERATION_TERMS`.

    >>> _choose_divisor(24), _choose_divisor(20), _choose_divisor(37)
    (12, 10, 1)
    """
    return max(n for n in range(1, cpu.MAX_ITERATION_TERMS + 1) if extent % n == 0)


CONTRACTION_PATH = register(
    Transform(
        "contraction_path",
        3,
        "two operands at a time, each step by the recipe that costs the least",
        _make_space,
        apply_contraction_path,
        _predict_s,
        steps=_list_steps,
    )
)
