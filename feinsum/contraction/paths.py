"""In which order operands are multiplied: searches, limits, costs, all orders.

A *path* is a list of steps; each names positions among the operands that are left, and
its product goes to the end of that list. Of the chain ``ij,jk,kl->il``, the path
``((1, 2), (0, 1))`` multiplies the last two operands first::

    ij  jk  kl     step (1, 2):  jk,kl->jl
    ij  jl         step (0, 1):  ij,jl->il

opt_einsum searches; this module is the one door to it. The count of operations is a
convention, so up to eight operands it has an exhaustive search of its own that no
release of a library changes (:func:`contraction_steps`); recipes of ``element_blocked``
rely on it, too.

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
from feinsum.words import counted

Path: TypeAlias = tuple[tuple[int, ...], ...]
"""Positions to contract at each step; the result is appended at the end."""

PathMethod: TypeAlias = Literal["auto", "greedy", "flops", "combo", "write", "size"]

OPTIMAL_UP_TO = 6
"""Most operands for which ``auto`` tries all orders; six have 2700."""

EXACT_UP_TO = 7
"""Most operands for which something is minimized; for more, the order is greedy."""

MINIMIZED: tuple[PathMethod, ...] = ("flops", "combo", "write", "size")
"""Quantities to minimize: operations, operations and entries written, entries written,
the largest product.
"""

Search: TypeAlias = Callable[..., Any]
"""A search of opt_einsum: from index sets of operands and result, and extents."""


def find_path(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    *,
    method: PathMethod = "auto",
    max_entries: int | None = None,
) -> Path:
    """Find an order in which to multiply operands.

    Slow searches are run for few operands only, whatever the method: for more, the
    search is greedy.

    Args:
        inputs: the indices of each operand.
        output: those of the result.
        extents: of the indices. Their order decides between equals, and not that of
            sets of text, which is another in every process.
        method: ``auto`` for few operations, ``greedy``, or what is made as small as
            possible; see :data:`MINIMIZED`.
        max_entries: of any product ahead of the result. Where no product is that
            small, one step takes all that is left.

    Source: Smith and Gray 2018 (opt_einsum), which searches; Pfeifer, Haegeman and
    Verstraete 2014.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> find_path(["ij", "jk", "kl"], "il", extents)
    ((1, 2), (0, 1))
    >>> find_path(["ij", "jk", "kl"], "il", extents, max_entries=3)
    ((0, 1, 2),)
    """
    # Numbers instead of names: sets of integers have one order in every run, sets of
    # text another in each, and the search breaks ties by it.
    number = {index: k for k, index in enumerate(extents)}
    sizes = {number[index]: extent for index, extent in extents.items()}
    sets = [frozenset(sorted(number[i] for i in term)) for term in inputs]
    result = frozenset(sorted(number[i] for i in output))
    if len(sets) < 2:
        return ((0,),) * len(sets)
    path = _as_path(_search(method, len(sets))(sets, result, sizes))
    if max_entries is None or _largest(sets, result, sizes, path) <= max_entries:
        return path
    # Other quantities give way to the limit: dynamic programming under one may not end.
    search = _search("auto", len(sets))
    path = _as_path(search(sets, result, sizes, max_entries))
    if _largest(sets, result, sizes, path) <= max_entries:
        return path
    return (tuple(range(len(sets))),)


def _largest(
    inputs: Sequence[frozenset[int]],
    output: frozenset[int],
    sizes: Mapping[int, int],
    path: Path,
) -> int:
    """Count the entries of the largest intermediate product."""
    products = path_outputs(inputs, output, path)[:-1]
    return max((prod(sizes[i] for i in term) for term in products), default=0)


def path_outputs(
    inputs: Sequence[Iterable[Any]], output: Iterable[Any], path: Path
) -> list[frozenset[Any]]:
    """Return the indices of the product of every step; the last one is the result.

    >>> [*map(sorted, path_outputs(["ij", "jk", "kl"], "il", ((1, 2), (0, 1))))]
    [['j', 'l'], ['i', 'l']]
    """
    steps = find_steps(inputs, output, path, is_pairwise=False, has_sums_first=False)
    return [frozenset(step.output) for step in steps]


def _search(method: PathMethod, n_operands: int) -> Search:
    if method == "auto" and n_operands <= OPTIMAL_UP_TO:
        return _typed(opt_einsum.paths.optimal)
    if method in MINIMIZED and n_operands <= EXACT_UP_TO:
        # outer products, too: without them the optimum may be missed
        search = opt_einsum.DynamicProgramming(minimize=method, search_outer=True)
        return _typed(search)
    return _typed(opt_einsum.paths.greedy)


def _typed(search: Search) -> Search:
    """Return a search with its type; the library has none."""
    return search


def _as_path(steps: Iterable[Iterable[int]]) -> Path:
    return tuple(tuple(step) for step in steps)


def contract_greedily(*args: Any) -> Any:
    """Evaluate an einsum of more indices than numpy can number.

    Args:
        args: operands and the numbers of their indices in turn, and those of the
            result.
    """
    return opt_einsum.contract(*args, optimize="greedy")


def path_within(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    most_entries: int,
) -> Path:
    """Find an order whose intermediates together stay within a limit.

    A step may then take more than two operands, and the last one all that are left.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> path_within(["ij", "jk", "kl"], "il", extents, most_entries=3)
    ((0, 1, 2),)
    """
    # A limit of each product does not bound their sum: the second try divides it.
    n_products = max(len(inputs) - 2, 1)
    for most in (most_entries, most_entries // n_products):
        path = find_path(inputs, output, extents, max_entries=most)
        if entries_between(inputs, output, extents, path) <= most_entries:
            return path
    return (tuple(range(len(inputs))),)


def entries_between(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    path: Path,
) -> int:
    """Count the entries of all intermediate products.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> entries_between(["ij", "jk", "kl"], "il", extents, ((1, 2), (0, 1)))
    4
    """
    products = path_outputs(inputs, output, path)[:-1]
    return sum(prod(extents[index] for index in term) for term in products)


def check_path(path: Path, n_operands: int) -> None:
    """Refuse a path that does not end with one array.

    Raises:
        InvalidPathError: with the rule ``path``.
    """
    left = n_operands
    for step in path:
        if (
            not step
            or len(set(step)) != len(step)
            or not all(0 <= p < left for p in step)
        ):
            raise InvalidPathError(
                f"contraction path {path}: step {step} does not name distinct "
                f"positions among the {counted(left, 'array')} left",
                rules=("path",),
            )
        left += 1 - len(step)
    if left != 1:
        raise InvalidPathError(
            f"contraction path {path} leaves {counted(left, 'array')}; it must "
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


def index_letter(number: int) -> str:
    """Return the letter by which opt_einsum denotes an index.

    >>> index_letter(0), index_letter(27)
    ('a', 'B')
    """
    return str(opt_einsum.get_symbol(number))


def search_path(*arguments: Any, **options: Any) -> tuple[Any, Any]:
    """Search a path with opt_einsum, and return it with its report.

    Args:
        arguments: as for ``opt_einsum.contract_path``.
        options: as for ``opt_einsum.contract_path``.

    >>> search_path("ij,jk,kl->il", (9, 2), (2, 9), (9, 2), shapes=True)[0]
    [(1, 2), (0, 1)]
    """
    result: tuple[Any, Any] = opt_einsum.contract_path(*arguments, **options)
    return result


Operands: TypeAlias = frozenset[int]
"""Positions of the operands in a product."""
Order: TypeAlias = tuple[tuple[Operands, Operands], ...]
"""The two factors of every product, in the order in which products are made."""


def postorders(n_operands: int) -> Iterator[Order]:
    """Yield every depth-first postorder of a binary tree of the operands.

    >>> [path_of(order, 3) for order in postorders(3)]
    [((1, 2), (0, 1)), ((0, 1), (0, 1)), ((0, 2), (0, 1))]
    """
    memo: dict[Operands, list[Order]] = {}

    def orders(operands: Operands) -> list[Order]:
        if operands not in memo:
            memo[operands] = [*splits(operands)] if len(operands) > 1 else [()]
        return memo[operands]

    def splits(operands: Operands) -> Iterator[Order]:
        # the first operand stays on the left, so that no split is listed twice
        first, *others = sorted(operands)
        for size in range(len(others)):
            for chosen in combinations(others, size):
                left = frozenset({first, *chosen})
                last = ((left, operands - left),)
                for before in orders(left):
                    for after in orders(operands - left):
                        yield before + after + last
                        # subtrees without products have nothing to be exchanged
                        if before and after:
                            yield after + before + last

    if n_operands:
        yield from splits(frozenset(range(n_operands))) if n_operands > 1 else [()]


def path_of(
    order: Iterable[tuple[Iterable[int], Iterable[int]]], n_operands: int
) -> Path:
    """Return an order as positions among what is left; each product goes to the end."""
    left = [frozenset({k}) for k in range(n_operands)]
    path = []
    for factors in order:
        pair = [frozenset(operands) for operands in factors]
        path.append(tuple(sorted(map(left.index, pair))))
        left = [operands for operands in left if operands not in pair]
        left.append(pair[0] | pair[1])
    return tuple(path)


def order_of(path: Path, n_operands: int) -> Order:
    """Return the factors of every step of a path of pairs.

    >>> [[sorted(f) for f in pair] for pair in order_of(((1, 2), (0, 1)), 3)]
    [[[1], [2]], [[0], [1, 2]]]
    """
    left = [frozenset({k}) for k in range(n_operands)]
    order = []
    for first, second in path:
        order.append((left[first], left[second]))
        left = [x for at, x in enumerate(left) if at not in (first, second)]
        left.append(order[-1][0] | order[-1][1])
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
def contraction_steps(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    extents: tuple[tuple[str, int], ...],
) -> tuple[CountedStep, ...]:
    """Return the steps that evaluate one row with the fewest operations.

    Args:
        inputs: index names of each operand.
        output: index names of the result.
        extents: index names and extents, which decide on the cheapest order.

    Returns:
        First the sum of each operand over its private indices, then one step
        less than there are operands.
    """
    costs = _Costs(inputs, output, dict(extents))
    sums = [CountedStep((p,), costs.of_sum(p)) for p in range(len(inputs))]
    pairs = _order(costs)
    return *sums, *(CountedStep(join(*pair), costs.of_step(*pair)) for pair in pairs)


@lru_cache(maxsize=1024)
def pairwise_path(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    extents: tuple[tuple[str, int], ...],
) -> Path:
    """Return the same order as positions in a list; each product goes to its end.

    >>> extents = (("x", 3), ("r", 3), ("e", 8), ("i", 20), ("j", 20))
    >>> pairwise_path((tuple("xre"), tuple("rij"), tuple("ej")), tuple("xei"), extents)
    ((1, 2), (0, 1))
    """
    order = _order(_Costs(inputs, output, dict(extents)))
    return path_of(order, len(inputs))


def _order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    if len(costs.inputs) <= _COUNTED_UP_TO:
        return _optimal_order(costs)
    return _greedy_order(costs)


@dataclass(frozen=True)
class _Costs:
    """Costs of contractions, for subsets of the operand positions."""

    inputs: tuple[IndexList, ...]
    output: IndexList
    extent: Mapping[str, int]

    def indices(self, subset: Subset) -> frozenset[str]:
        """Return the indices of a subset's product, after all sums that can be done."""
        inside = frozenset(i for p in subset for i in self.inputs[p])
        others = set(range(len(self.inputs))) - set(subset)
        return inside & {*self.output, *(i for p in others for i in self.inputs[p])}

    def size(self, indices: Iterable[str]) -> int:
        return prod(self.extent[index] for index in indices)

    def of_sum(self, position: int) -> int:
        """Count the additions of summing an operand over its private indices."""
        before = self.size(set(self.inputs[position]))
        return max(before - self.size(self.indices((position,))), 0)

    def of_step(self, left: Subset, right: Subset) -> int:
        """Count the operations of multiplying two intermediate results and summing."""
        # one multiplication for each point, and an addition where something is summed
        together = self.indices(left) | self.indices(right)
        n_products = self.size(together)
        return n_products + max(
            n_products - self.size(self.indices(join(left, right))), 0
        )


def join(left: Subset, right: Subset) -> Subset:
    return tuple(sorted((*left, *right)))


def _optimal_order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    """Find the pairwise order of lowest cost, by dynamic programming over subsets.

    Complexity: 3**n for n operands.
    """

    @cache
    def best(subset: Subset) -> tuple[int, tuple[tuple[Subset, Subset], ...]]:
        first, *others = subset
        if not others:
            return 0, ()
        candidates = []
        for n_others in range(len(others)):
            for chosen in combinations(others, n_others):
                left = (first, *chosen)
                right = tuple(p for p in others if p not in chosen)
                (left_cost, left_order), (right_cost, right_order) = map(
                    best, (left, right)
                )
                cost = left_cost + right_cost + costs.of_step(left, right)
                order = (*left_order, *right_order, (left, right))
                candidates.append((cost, order))
        # of equal costs the first order, by number: recipes on record rely on it
        return min(candidates)

    return best(tuple(range(len(costs.inputs))))[1]


def _greedy_order(costs: _Costs) -> tuple[tuple[Subset, Subset], ...]:
    """Return the greedy order of :func:`find_path`."""
    subsets: list[Subset] = [(p,) for p in range(len(costs.inputs))]
    terms = [costs.indices(subset) for subset in subsets]
    path = find_path(terms, costs.output, costs.extent, method="greedy")
    order = []
    for step in path:
        left, right = (subsets.pop(p) for p in sorted(step, reverse=True))
        order.append((left, right))
        subsets.append(join(left, right))
    return tuple(order)
