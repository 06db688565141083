"""Three operands and more, multiplied two at a time along a contraction path.

For ``ij,jk,kl->il`` with 1,000 values of each index, one nest takes 2 * 10**12
multiplications, two consecutive products 2 * 10**9. The path ``1,2 0,1`` first
multiplies the operands B and C at the positions 1 and 2, and appends the product to the
list. Then A and the product are at the positions 0 and 1::

    A[i,j]   B[j,k]   C[k,l]
       |        +--------+
       |       product[j,l]            "1,2"
       +-----------+
                out[i,l]               "0,1"

Each step is a device kernel of its own, whose product is in global memory. Steps that
ran one after the other for each value of an outer index, with products in private
memory, were never faster by more than a tenth.

Source: Pfeifer, Haegeman and Verstraete 2014 for orders of fewest operations; Smith and
Gray 2018 (opt_einsum), which searches them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product

import loopy as lp

from feinsum.contraction.paths import (
    EXACT_UP_TO,
    MINIMIZED,
    Operands,
    Path,
    PathMethod,
    ProductOrder,
    find_path,
    make_path,
)
from feinsum.contraction.steps import Step, find_steps
from feinsum.errors import InvalidParameterError
from feinsum.ir import BatchedEinsum, IndexList, Operand, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.library.generic import GENERIC
from feinsum.transforms.library.packed.packed_contraction import PACKED_CONTRACTION
from feinsum.transforms.library.steps import (
    BEST,
    apply_recipes,
    find_misfit,
    list_recipes,
    predict_steps_s,
    split_nest,
)
from feinsum.transforms.registry import (
    NestSteps,
    Parameters,
    Space,
    Table,
    Transform,
    list_choices,
    register,
)
from feinsum.transforms.roles import (
    count_points,
    find_packed_roles,
    get_typical_extent,
    has_blas_dtype,
    has_diagonal,
)

FAMILIES = (PACKED_CONTRACTION, GENERIC)
"""Families for steps: those that write new loops."""

LANES = {4: (8, 4, 16), 8: (4, 8), 16: (2, 4)}
"""Entries of the vectors to choose steps for, by the bytes of an entry."""


def apply(
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
    machine = MachineModel(vector_bytes=parameters["lanes"] * itemsize)
    recipes = partial(list_recipes, parameters["steps"], einsums, FAMILIES, machine)
    return NestSteps(einsums, recipes)


def space(workload: Workload) -> Space | None:
    """Fit einsums for which a path takes far fewer operations than one nest.

    For operands with diagonals, it need not take fewer: it is best to extract diagonals
    before products.
    """
    einsum = workload.einsum
    paths = find_good_paths(einsum) if has_blas_dtype(einsum) else ()
    if not paths:
        return None
    fewer = 0 if has_diagonal(einsum) else cpu.FEWER_OPERATIONS
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
    packed = PACKED_CONTRACTION.space(Workload(einsum))
    if packed is None:
        return True
    pairs = product(packed["vector"], packed["register"])
    roles = [find_packed_roles(einsum, str(v), str(r)) for v, r in pairs]
    counts = [einsum.batch_size * x.n_operations(einsum) for x in roles if x]
    least = find_good_paths(einsum)[0].n_operations(einsum)
    return all(n >= cpu.FEWER_THAN_PACKED * least for n in counts)


CONTRACTION_PATH = register(
    Transform(
        "contraction_path",
        4,
        "two operands at a time, each step by the recipe that costs the least",
        space,
        apply,
        partial(predict_steps_s, _list_steps),
        steps=_list_steps,
    )
)


GREEDY: PathMethod = "greedy"

_NUMBER = "(?:0|[1-9][0-9]?)"

_TEXT = re.compile(rf"{_NUMBER},{_NUMBER}(?: {_NUMBER},{_NUMBER})*")


@dataclass(frozen=True)
class PathStep(Step):
    """A product of two arrays, or one array, summed over indices of no later step.

    Attributes:
        product: the number of the product.
        n_products: number of different products; rows with equal factors share one.
    """

    product: int
    n_products: int

    @property
    def joint(self) -> IndexList:
        """Every index of the step, each once."""
        return tuple(dict.fromkeys(i for term in self.inputs for i in term))

    @property
    def summed(self) -> IndexList:
        return tuple(index for index in self.joint if index not in self.output)

    def n_operations(self, einsum: BatchedEinsum) -> int:
        """Count multiplications and additions, with size parameters as long extents."""
        n_points = self.n_products * count_points(einsum, self.joint)
        return n_points * (len(self.operands) - 1 + bool(self.summed))


@dataclass(frozen=True)
class PairwisePath:
    """The two arrays that each step multiplies, as positions among those left.

    As in opt_einsum's paths, the product is appended.

    >>> path = PairwisePath.parse("1,2 0,1", 3)
    >>> path.pairs
    ((1, 2), (0, 1))
    >>> print(path)
    1,2 0,1
    """

    pairs: Path

    @classmethod
    def parse(cls, text: object, n_operands: int) -> PairwisePath:
        """Parse the text of a path.

        Args:
            text: the pairs of all steps, the smaller position of each first. A record
                may have any value here.
            n_operands: number of arrays that the path contracts.

        Raises:
            InvalidParameterError: if the value is not such a text, or the path does not
                leave one array.
        """
        if not isinstance(text, str) or not _TEXT.fullmatch(text):
            raise _refuse(text, "expected pairs of positions such as '1,2 0,1'")
        steps = text.split()
        if len(steps) != n_operands - 1:
            raise _refuse(
                text,
                f"{n_operands} operands take {n_operands - 1} steps, not {len(steps)}",
            )
        pairs = []
        for n_left, step in zip(range(n_operands, 1, -1), steps, strict=True):
            first, second = map(int, step.split(","))
            if not first < second < n_left:
                raise _refuse(
                    text,
                    f"the step {step} does not name two of {n_left} arrays in order",
                )
            pairs.append((first, second))
        return cls(tuple(pairs))

    def __str__(self) -> str:
        return " ".join(f"{first},{second}" for first, second in self.pairs)

    def steps(self, einsum: BatchedEinsum) -> tuple[PathStep, ...]:
        """Return the steps; the product of the last one is the result.

        The first steps sum each operand over the indices that it alone has, and extract
        diagonals.
        """
        rows: list[list[object]] = [[op.name for op in row] for row in einsum.rows]
        steps = []
        for step in find_steps(
            einsum.inputs, einsum.output, self.pairs, is_pairwise=False
        ):
            product = len(rows[0])
            for row in rows:
                row.append(tuple(row[k] for k in step.operands))
            # rows of a batch with the same operands share the product
            n_products = len({row[product] for row in rows})
            steps.append(
                PathStep(step.operands, step.inputs, step.output, product, n_products)
            )
        return tuple(steps)

    def n_operations(self, einsum: BatchedEinsum) -> int:
        """Count multiplications and additions, with size parameters as long extents.

        >>> from feinsum.ir import array, einsum
        >>> matrices = [array(name, (10, 10)) for name in "ABC"]
        >>> chain = einsum("ij,jk,kl->il", *matrices)
        >>> (PairwisePath(((0, 1), (0, 1))).n_operations(chain),
        ...  count_nest_operations(chain))
        (4000, 30000)
        """
        return sum(step.n_operations(einsum) for step in self.steps(einsum))

    def count_written(self, einsum: BatchedEinsum) -> int:
        """Count the entries of all products."""
        return sum(
            step.n_products * count_points(einsum, step.output)
            for step in self.steps(einsum)
        )


def _refuse(text: object, problem: str) -> InvalidParameterError:
    return InvalidParameterError(f"contraction path {text!r:.80}: {problem}")


def count_nest_operations(einsum: BatchedEinsum) -> int:
    """Count the multiplications and additions of a single nest over all indices."""
    n_additions = 1 if einsum.summation_indices else 0
    n_points = einsum.batch_size * count_points(einsum, einsum.indices)
    return n_points * (einsum.n_operands - 1 + n_additions)


@lru_cache(maxsize=256)
def find_good_paths(einsum: BatchedEinsum) -> tuple[PairwisePath, ...]:
    """Return some different paths of few operations, best first.

    There are none for one operand and for more than :data:`cpu.MAX_PATH_OPERANDS`.

    >>> from feinsum.ir import array, einsum
    >>> A, B, x = array("A", (9, 9)), array("B", (9, 9)), array("x", 9)
    >>> chain = einsum("ij,jk,k->i", A, B, x)
    >>> print(*find_good_paths(chain))
    1,2 0,1
    """
    if (
        not 2 <= einsum.n_operands <= cpu.MAX_PATH_OPERANDS
        or 0 in einsum.extents.values()
    ):
        return ()
    # paths of one tree differ in the order of independent steps, and cost the same
    trees: dict[frozenset[Operands], PairwisePath] = {}
    for order in _list_orders(einsum):
        products = frozenset(first | second for first, second in order)
        path = PairwisePath(make_path(order, einsum.n_operands))
        trees.setdefault(products, path)
    costs = {path: path.n_operations(einsum) for path in trees.values()}
    best_first = sorted(
        costs, key=lambda path: (costs[path], path.count_written(einsum), str(path))
    )
    least = costs[best_first[0]]
    return tuple(p for p in best_first if costs[p] <= cpu.NEAR_LEAST * least)[
        : cpu.MAX_PATHS
    ]


@lru_cache(maxsize=256)
def find_smallest_path(einsum: BatchedEinsum) -> PairwisePath:
    """Return a path whose largest product is as small as possible.

    >>> from feinsum.ir import array, einsum
    >>> A, B, x = array("A", (9, 9)), array("B", (9, 9)), array("x", 9)
    >>> print(find_smallest_path(einsum("ij,jk,k->i", A, B, x)))
    1,2 0,1
    """
    order = _search_order(einsum, "size", _list_terms(einsum), frozenset(einsum.output))
    return PairwisePath(make_path(order, einsum.n_operands))


def _list_terms(einsum: BatchedEinsum) -> dict[Operands, frozenset[str]]:
    return {frozenset({k}): frozenset(term) for k, term in enumerate(einsum.inputs)}


def _list_orders(einsum: BatchedEinsum) -> Iterator[ProductOrder]:
    """Search orders over all operands, and orders that begin with shared operands."""
    terms = _list_terms(einsum)
    shared = {
        operand: term
        for (operand, term), *column in zip(terms.items(), *einsum.rows, strict=True)
        if len({*column}) == 1
    }
    unshared = {k: terms[k] for k in terms if k not in shared}
    # for more operands, an exact search takes longer than a better path saves
    exact = MINIMIZED if einsum.n_operands <= EXACT_UP_TO else ()
    for method in (*exact, GREEDY):
        find = partial(_search_order, einsum, method)
        yield find(terms, frozenset(einsum.output))
        # a product of operands that all rows share is computed once for all of them
        if unshared and len(shared) > 1:
            needed = frozenset(einsum.output).union(*unshared.values())
            product = needed & frozenset().union(*shared.values())
            joined = frozenset[int]().union(*shared)
            remaining = {joined: product, **unshared}
            yield find(shared, product) + find(remaining, frozenset(einsum.output))


def _search_order(
    einsum: BatchedEinsum,
    method: PathMethod,
    terms: Mapping[Operands, frozenset[str]],
    output: frozenset[str],
) -> ProductOrder:
    """Search an order in which to multiply operands and products.

    Indices of one term alone are left out: they are summed before any product.
    """
    extents = {
        index: get_typical_extent(einsum.extents[index]) for index in einsum.indices
    }
    n_uses = Counter(i for term in (*terms.values(), output) for i in term)
    inputs = [[i for i in term if n_uses[i] > 1] for term in terms.values()]
    arrays, order = list(terms), []
    for step in find_path(inputs, output, extents, method=method):
        factors = [arrays[position] for position in sorted(step)]
        arrays = [array for array in arrays if array not in factors]
        arrays.append(frozenset[int]().union(*factors))
        if len(factors) == 2:
            order.append((factors[0], factors[1]))
    return tuple(order)


def make_step_einsum(einsum: BatchedEinsum, step: PathStep) -> BatchedEinsum:
    """Return a step as an einsum, with generated names of operands."""
    dtype = einsum.operands[0].dtype
    rows = tuple(
        tuple(
            Operand(f"A{row}_{k}", tuple(einsum.extents[i] for i in term), dtype)
            for k, term in enumerate(step.inputs)
        )
        for row in range(step.n_products)
    )
    return BatchedEinsum(step.output, step.inputs, rows)
