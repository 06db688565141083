"""Contraction paths, the order in which operands are multiplied: searches and costs.

A *path* is a list of steps. Each step names positions among the operands that are left,
and its product is appended to them. For the chain ``ij,jk,kl->il``, the path
``((1, 2), (0, 1))`` multiplies the last two operands first::

    ij  jk  kl     step (1, 2):  jk,kl->jl
    ij  jl         step (0, 1):  ij,jl->il

The searches are opt_einsum's, which only this module imports.
:func:`find_contraction_steps`
has a search of its own, exhaustive for up to eight operands: the count of operations is
a convention, and recipes of ``element_blocked`` depend on the order, so that no release
of a library may change them.

Source: Smith and Gray 2018 (opt_einsum); Pfeifer, Haegeman and Verstraete 2014;
Kanakagiri and Solomonik 2024 (SpTTN), definition 4.1 (postorders).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations
from math import prod
from typing import Any, Literal, TypeAlias

import opt_einsum

from feinsum.contraction.steps import find_steps
from feinsum.errors import InvalidPathError
from feinsum.subscripts import IndexList
from feinsum.words import format_count

Path: TypeAlias = tuple[tuple[int, ...], ...]
"""Positions to contract at each step; the result is appended at the end."""

PathMethod: TypeAlias = Literal["auto", "greedy", "flops", "combo", "write", "size"]

OPTIMAL_UP_TO = 6
"""Most operands for which ``auto`` tries all orders; six have 2700."""

EXACT_UP_TO = 7
"""Most operands for which a quantity is minimized; for more, the order is greedy."""

MINIMIZED: tuple[PathMethod, ...] = ("flops", "combo", "write", "size")
"""Quantities to minimize: operations; operations and entries written; entries written;
entries of the largest product.
"""

Search: TypeAlias = Callable[..., Any]
"""A search of opt_einsum. Its arguments are the index sets of the operands and of the
result, and the extents.
"""


def find_path(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    *,
    method: PathMethod = "auto",
    max_entries: int | None = None,
) -> Path:
    """Find an order in which to multiply operands.

    Slow searches run for few operands only. For more, the search is greedy, whatever
    the method.

    Args:
        inputs: the indices of each operand.
        output: the indices of the result.
        extents: the extents of indices. Their order decides between equal paths, so
            that all processes find the same one.
        method: ``auto`` for few operations, ``greedy``, or a quantity to minimize; see
            :data:`MINIMIZED`.
        max_entries: limit on the entries of any product before the result. If no order
            stays below, one step takes all remaining operands.

    Source: Smith and Gray 2018 (opt_einsum), which searches; Pfeifer, Haegeman and
    Verstraete 2014.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> find_path(["ij", "jk", "kl"], "il", extents)
    ((1, 2), (0, 1))
    >>> find_path(["ij", "jk", "kl"], "il", extents, max_entries=3)
    ((0, 1, 2),)
    """
    # Number the indices: the search breaks ties by the order of sets, which for sets of
    # strings differs from process to process.
    number = {index: k for k, index in enumerate(extents)}
    sizes = {number[index]: extent for index, extent in extents.items()}
    sets = [frozenset(sorted(number[i] for i in term)) for term in inputs]
    result = frozenset(sorted(number[i] for i in output))
    if len(sets) < 2:
        return ((0,),) * len(sets)
    path = _as_path(_get_search(method, len(sets))(sets, result, sizes))
    if max_entries is None or _count_largest(sets, result, sizes, path) <= max_entries:
        return path
    # with a limit, ignore the quantity: dynamic programming under a limit may not end
    search = _get_search("auto", len(sets))
    path = _as_path(search(sets, result, sizes, max_entries))
    if _count_largest(sets, result, sizes, path) <= max_entries:
        return path
    return (tuple(range(len(sets))),)


def _count_largest(
    inputs: Sequence[frozenset[int]],
    output: frozenset[int],
    sizes: Mapping[int, int],
    path: Path,
) -> int:
    """Count the entries of the largest intermediate product."""
    products = list_path_outputs(inputs, output, path)[:-1]
    return max((prod(sizes[i] for i in term) for term in products), default=0)


def list_path_outputs(
    inputs: Sequence[Iterable[Any]], output: Iterable[Any], path: Path
) -> list[frozenset[Any]]:
    """Return the indices of the product of every step; the last one is the result.

    >>> [*map(sorted, list_path_outputs(["ij", "jk", "kl"], "il", ((1, 2), (0, 1))))]
    [['j', 'l'], ['i', 'l']]
    """
    steps = find_steps(inputs, output, path, is_pairwise=False, has_sums_first=False)
    return [frozenset(step.output) for step in steps]


def _get_search(method: PathMethod, n_operands: int) -> Search:
    search: Search = opt_einsum.paths.greedy
    if method == "auto" and n_operands <= OPTIMAL_UP_TO:
        search = opt_einsum.paths.optimal
    elif method in MINIMIZED and n_operands <= EXACT_UP_TO:
        # without outer products, the search may miss the optimum
        search = opt_einsum.DynamicProgramming(minimize=method, search_outer=True)
    return search


def _as_path(steps: Iterable[Iterable[int]]) -> Path:
    return tuple(tuple(step) for step in steps)


def contract_greedily(*args: Any) -> Any:
    """Evaluate an einsum of more indices than numpy supports, in its list notation."""
    return opt_einsum.contract(*args, optimize="greedy")


def find_path_within(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    most_entries: int,
) -> Path:
    """Find an order whose intermediates together stay within a limit.

    A step may take more than two operands, and the last step all that are left.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> find_path_within(["ij", "jk", "kl"], "il", extents, most_entries=3)
    ((0, 1, 2),)
    """
    # a limit on each product does not limit their sum, so the second try divides it
    n_products = max(len(inputs) - 2, 1)
    for most in (most_entries, most_entries // n_products):
        path = find_path(inputs, output, extents, max_entries=most)
        if count_entries_between(inputs, output, extents, path) <= most_entries:
            return path
    return (tuple(range(len(inputs))),)


def count_entries_between(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    path: Path,
) -> int:
    """Count the entries of all intermediate products.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> count_entries_between(["ij", "jk", "kl"], "il", extents, ((1, 2), (0, 1)))
    4
    """
    products = list_path_outputs(inputs, output, path)[:-1]
    return sum(prod(extents[index] for index in term) for term in products)


def check_path(path: Path, n_operands: int) -> None:
    """Refuse a path that does not end with one array.

    Raises:
        InvalidPathError: with the rule ``path``.
    """
    n_left = n_operands
    for step in path:
        if (
            not step
            or len(set(step)) != len(step)
            or not all(0 <= p < n_left for p in step)
        ):
            raise InvalidPathError(
                f"contraction path {path}: step {step} does not name distinct "
                f"positions among the {format_count(n_left, 'array')} left",
                rules=("path",),
            )
        n_left += 1 - len(step)
    if n_left != 1:
        raise InvalidPathError(
            f"contraction path {path} leaves {format_count(n_left, 'array')}; it must "
            "leave one",
            rules=("path",),
        )


def is_path_name(name: str) -> bool:
    """Return whether opt_einsum has a search of that name.

    >>> is_path_name("random-greedy"), is_path_name("fastest")
    (True, False)
    """
    try:
        opt_einsum.paths.get_path_fn(name)
    except KeyError:
        return False
    return True


def get_index_letter(number: int) -> str:
    """Return opt_einsum's letter for the index with a number.

    >>> get_index_letter(0), get_index_letter(27)
    ('a', 'B')
    """
    return str(opt_einsum.get_symbol(number))


def search_path(*arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Search a path, and return it and its report, as ``opt_einsum.contract_path``.

    >>> search_path("ij,jk,kl->il", (9, 2), (2, 9), (9, 2), shapes=True)[0]
    [(1, 2), (0, 1)]
    """
    result: tuple[Any, Any] = opt_einsum.contract_path(*arguments, **options)
    return result


Operands: TypeAlias = frozenset[int]
"""Positions of the operands in a product."""
ProductOrder: TypeAlias = tuple[tuple[Operands, Operands], ...]
"""The two factors of every product, in the order in which products are made."""


def list_postorders(n_operands: int) -> Iterator[ProductOrder]:
    """Yield every depth-first postorder of a binary tree of the operands.

    >>> [make_path(order, 3) for order in list_postorders(3)]
    [((1, 2), (0, 1)), ((0, 1), (0, 1)), ((0, 2), (0, 1))]
    """
    memo: dict[Operands, list[ProductOrder]] = {}

    def orders(operands: Operands) -> list[ProductOrder]:
        if operands not in memo:
            memo[operands] = [*splits(operands)] if len(operands) > 1 else [()]
        return memo[operands]

    def splits(operands: Operands) -> Iterator[ProductOrder]:
        # the first operand stays on the left, so that no split is listed twice
        first, *remaining = sorted(operands)
        for size in range(len(remaining)):
            for chosen in combinations(remaining, size):
                left = frozenset({first, *chosen})
                last = ((left, operands - left),)
                for before in orders(left):
                    for after in orders(operands - left):
                        yield before + after + last
                        # two orders differ only if both subtrees have products
                        if before and after:
                            yield after + before + last

    if n_operands:
        yield from splits(frozenset(range(n_operands))) if n_operands > 1 else [()]


def list_partitions(
    positions: Sequence[int],
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield all ways to put positions into blocks.

    >>> [*list_partitions([0, 1])]
    [((0,), (1,)), ((0, 1),)]
    >>> [len([*list_partitions(range(n))]) for n in range(1, 6)]
    [1, 2, 5, 15, 52]
    """
    if not positions:
        yield ()
        return
    # the first position is always in the first block, so that no partition comes twice
    first, *remaining = positions
    for n in range(len(remaining) + 1):
        for chosen in combinations(remaining, n):
            unchosen = [p for p in remaining if p not in chosen]
            for blocks in list_partitions(unchosen):
                yield ((first, *chosen), *blocks)


def make_path(
    order: Iterable[tuple[Iterable[int], Iterable[int]]], n_operands: int
) -> Path:
    """Convert an order to a path of positions; each product is appended."""
    products = [frozenset({k}) for k in range(n_operands)]
    path = []
    for factors in order:
        pair = [frozenset(operands) for operands in factors]
        path.append(tuple(sorted(map(products.index, pair))))
        products = [operands for operands in products if operands not in pair]
        products.append(pair[0] | pair[1])
    return tuple(path)


def list_factors(path: Path, n_operands: int) -> ProductOrder:
    """Return the factors of every step of a path of pairs.

    >>> [[sorted(f) for f in pair] for pair in list_factors(((1, 2), (0, 1)), 3)]
    [[[1], [2]], [[0], [1, 2]]]
    """
    products = [frozenset({k}) for k in range(n_operands)]
    order = []
    for first, second in path:
        order.append((products[first], products[second]))
        products = [
            product
            for position, product in enumerate(products)
            if position not in (first, second)
        ]
        products.append(order[-1][0] | order[-1][1])
    return tuple(order)


_COUNTED_UP_TO = 8
"""Most operands for which the order with the fewest operations is found exactly."""

Subset: TypeAlias = tuple[int, ...]
"""Operand positions, ascending."""


@dataclass(frozen=True)
class CountedStep:
    """A contraction to the product of the operands at these positions, and its cost."""

    operands: Subset
    n_operations: int


@lru_cache(maxsize=1024)
def find_contraction_steps(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    extents: tuple[tuple[str, int], ...],
) -> tuple[CountedStep, ...]:
    """Return the steps that evaluate one row with the fewest operations.

    Returns:
        The sums of operands over indices of their own, one for each operand, and then
        the products of pairs.
    """
    costs = _Costs(inputs, output, dict(extents))
    sums = [
        CountedStep((p,), costs.count_sum_operations(p)) for p in range(len(inputs))
    ]
    pairs = _find_order(costs)
    return *sums, *(
        CountedStep(join_subsets(*pair), costs.count_step_operations(*pair))
        for pair in pairs
    )


@lru_cache(maxsize=1024)
def find_pairwise_path(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    extents: tuple[tuple[str, int], ...],
) -> Path:
    """Return the order of :func:`find_contraction_steps` as a path of positions.

    >>> extents = (("x", 3), ("r", 3), ("e", 8), ("i", 20), ("j", 20))
    >>> find_pairwise_path((tuple("xre"), tuple("rij"), tuple("ej")), tuple("xei"),
    ...     extents)
    ((1, 2), (0, 1))
    """
    order = _find_order(_Costs(inputs, output, dict(extents)))
    return make_path(order, len(inputs))


def _find_order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    if len(costs.inputs) <= _COUNTED_UP_TO:
        return _find_optimal_order(costs)
    return _find_greedy_order(costs)


@dataclass(frozen=True)
class _Costs:
    """Costs of contractions, for subsets of the operand positions."""

    inputs: tuple[IndexList, ...]
    output: IndexList
    extent: Mapping[str, int]

    def indices(self, subset: Subset) -> frozenset[str]:
        """Return the indices of a subset's product, after all possible sums."""
        inside = frozenset(i for p in subset for i in self.inputs[p])
        outside = set(range(len(self.inputs))) - set(subset)
        return inside & {*self.output, *(i for p in outside for i in self.inputs[p])}

    def size(self, indices: Iterable[str]) -> int:
        return prod(self.extent[index] for index in indices)

    def count_sum_operations(self, position: int) -> int:
        """Count the additions that sum an operand over the indices it alone has."""
        before = self.size(set(self.inputs[position]))
        return max(before - self.size(self.indices((position,))), 0)

    def count_step_operations(self, left: Subset, right: Subset) -> int:
        """Count the multiplications and additions of a product of two subsets."""
        # each index tuple takes a multiplication, and an addition if there is a sum
        together = self.indices(left) | self.indices(right)
        n_products = self.size(together)
        return n_products + max(
            n_products - self.size(self.indices(join_subsets(left, right))), 0
        )


def join_subsets(left: Subset, right: Subset) -> Subset:
    return tuple(sorted((*left, *right)))


def _find_optimal_order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    """Find the pairwise order of lowest cost, by dynamic programming over subsets.

    Complexity: 3**n for n operands.
    """

    @cache
    def best(subset: Subset) -> tuple[int, tuple[tuple[Subset, Subset], ...]]:
        first, *remaining = subset
        if not remaining:
            return 0, ()
        candidates = []
        for n_others in range(len(remaining)):
            for chosen in combinations(remaining, n_others):
                left = (first, *chosen)
                right = tuple(p for p in remaining if p not in chosen)
                (left_cost, left_order), (right_cost, right_order) = map(
                    best, (left, right)
                )
                cost = left_cost + right_cost + costs.count_step_operations(left, right)
                order = (*left_order, *right_order, (left, right))
                candidates.append((cost, order))
        # of equal costs, the first order by numbers: recorded recipes depend on it
        return min(candidates)

    return best(tuple(range(len(costs.inputs))))[1]


def _find_greedy_order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    """Return the greedy order of :func:`find_path`."""
    subsets: list[Subset] = [(p,) for p in range(len(costs.inputs))]
    terms = [costs.indices(subset) for subset in subsets]
    path = find_path(terms, costs.output, costs.extent, method="greedy")
    order = []
    for step in path:
        left, right = (subsets.pop(p) for p in sorted(step, reverse=True))
        order.append((left, right))
        subsets.append(join_subsets(left, right))
    return tuple(order)
