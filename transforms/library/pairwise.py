"""Orders of pairwise contractions: their text, their cost, and the best ones.

For ``ij,jk,kl->il`` the path ``1,2 0,1`` first multiplies the operands B and C at the
positions 1 and 2, and appends the product to the list. Then A and the product are at
the positions 0 and 1::

    A[i,j]   B[j,k]   C[k,l]
       |        +--------+
       |       product[j,l]            "1,2"
       +-----------+
                out[i,l]               "0,1"

Source: Pfeifer, Haegeman and Verstraete 2014 for orders of fewest operations; Smith and
Gray 2018 (opt_einsum), which searches them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from feinsum.contraction.paths import (
    EXACT_UP_TO,
    MINIMIZED,
    PathMethod,
    find_path,
    list_factors,
)
from feinsum.errors import InvalidParameterError
from feinsum.ir import BatchedEinsum, IndexList, Operand
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.roles import count_index_tuples, get_typical_extent

GREEDY: PathMethod = "greedy"

_NUMBER = "(?:0|[1-9][0-9]?)"

_TEXT = re.compile(rf"{_NUMBER},{_NUMBER}(?: {_NUMBER},{_NUMBER})*")


@dataclass(frozen=True)
class PathStep:
    """A product of two arrays, or one array, summed over indices of no later step.

    Arrays are numbered: operands by position, then products in order.

    Attributes:
        factors: the numbers of the arrays.
        product: the number of the product.
        n_products: number of different products; rows with equal factors share one.
        inputs: the indices of the factors.
        output: the indices of the product.
    """

    factors: tuple[int, ...]
    product: int
    n_products: int
    inputs: tuple[IndexList, ...]
    output: IndexList

    @property
    def joint(self) -> IndexList:
        """Every index of the step, each once."""
        return tuple(dict.fromkeys(i for term in self.inputs for i in term))

    @property
    def summed(self) -> IndexList:
        return tuple(index for index in self.joint if index not in self.output)

    def n_operations(self, einsum: BatchedEinsum) -> int:
        """Count multiplications and additions, with size parameters as long extents."""
        n_points = self.n_products * count_index_tuples(einsum, self.joint)
        return n_points * (len(self.factors) - 1 + bool(self.summed))


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

    pairs: tuple[tuple[int, int], ...]

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
        collected = _Steps(einsum)
        numbers = [
            collected.with_own_sums(number) for number in range(einsum.n_operands)
        ]
        for first, second in self.pairs:
            pair = numbers[first], numbers[second]
            numbers = [number for number in numbers if number not in pair]
            numbers.append(collected.add(pair))
        return tuple(collected.steps)

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
            step.n_products * count_index_tuples(einsum, step.output)
            for step in self.steps(einsum)
        )


class _Steps:
    """Collects steps, and tracks the arrays that are left."""

    def __init__(self, einsum: BatchedEinsum) -> None:
        self.steps: list[PathStep] = []
        self._einsum = einsum
        self._left = dict(enumerate(einsum.inputs))
        self._rows: list[dict[int, tuple[str, ...]]] = [
            {k: (op.name,) for k, op in enumerate(row)} for row in einsum.rows
        ]

    def with_own_sums(self, number: int) -> int:
        """Return an operand's number, or that of its sum over indices it alone has."""
        other_terms = [term for k, term in self._left.items() if k != number]
        needed = set(self._einsum.output).union(*other_terms)
        term = self._left[number]
        # summing first makes the operand smaller, and the product cheaper
        is_whole = needed.issuperset(term) and len(set(term)) == len(term)
        return number if is_whole else self.add((number,))

    def add(self, factors: tuple[int, ...]) -> int:
        """Add a step, and return the number of its product."""
        product = self._einsum.n_operands + len(self.steps)
        for row in self._rows:
            row[product] = tuple(name for k in factors for name in row.pop(k))
        inputs = tuple(self._left.pop(k) for k in factors)
        needed = set(self._einsum.output).union(*self._left.values())
        joint = dict.fromkeys(i for term in inputs for i in term)
        output_indices = tuple(index for index in joint if index in needed)
        output = output_indices if self._left else self._einsum.output
        # rows of a batch with the same operands share the product
        n_products = len({row[product] for row in self._rows})
        self.steps.append(PathStep(factors, product, n_products, inputs, output))
        self._left[product] = output
        return product


def _refuse(text: object, problem: str) -> InvalidParameterError:
    return InvalidParameterError(f"contraction path {text!r:.80}: {problem}")


def count_nest_operations(einsum: BatchedEinsum) -> int:
    """Count the multiplications and additions of a single nest over all indices."""
    n_additions = 1 if einsum.summation_indices else 0
    n_points = einsum.batch_size * count_index_tuples(einsum, einsum.indices)
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
    trees: dict[frozenset[frozenset[int]], PairwisePath] = {}
    for path in _list_proposed(einsum):
        trees.setdefault(_list_products(path, einsum.n_operands), path)
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
    terms = dict(enumerate(map(frozenset, einsum.inputs)))
    pairs = _search_pairs(einsum, "size", terms, frozenset(einsum.output))
    return _make_path(pairs, einsum.n_operands)


def _list_proposed(einsum: BatchedEinsum) -> Iterator[PairwisePath]:
    """Search paths over all operands, and paths that begin with shared operands."""
    terms = dict(enumerate(map(frozenset, einsum.inputs)))
    shared = {k: terms[k] for k in terms if len({row[k] for row in einsum.rows}) == 1}
    unshared = {k: terms[k] for k in terms if k not in shared}
    # for more operands, an exact search takes longer than a better path saves
    exact = MINIMIZED if einsum.n_operands <= EXACT_UP_TO else ()
    for method in (*exact, GREEDY):
        find = partial(_search_pairs, einsum, method)
        yield _make_path(find(terms, frozenset(einsum.output)), einsum.n_operands)
        # a product of operands that all rows share is computed once for all of them
        if unshared and len(shared) > 1:
            needed = frozenset(einsum.output).union(*unshared.values())
            product = needed & frozenset().union(*shared.values())
            pairs_first = find(shared, product)
            pairs_after = find(
                {pairs_first[-1][0]: product, **unshared}, frozenset(einsum.output)
            )
            yield _make_path([*pairs_first, *pairs_after], einsum.n_operands)


def _search_pairs(
    einsum: BatchedEinsum,
    method: PathMethod,
    terms: Mapping[int, frozenset[str]],
    output: frozenset[str],
) -> list[tuple[int, int]]:
    """Search a path; a product gets the number of its first factor.

    Indices of one term alone are left out: they are summed before any product.
    """
    extents = {
        index: get_typical_extent(einsum.extents[index]) for index in einsum.indices
    }
    n_uses = Counter(i for term in (*terms.values(), output) for i in term)
    inputs = [[i for i in term if n_uses[i] > 1] for term in terms.values()]
    numbers, pairs = list(terms), []
    for step in find_path(inputs, output, extents, method=method):
        factors = [numbers[position] for position in sorted(step)]
        numbers = [number for number in numbers if number not in factors] + factors[:1]
        if len(factors) == 2:
            pairs.append((factors[0], factors[1]))
    return pairs


def _make_path(pairs: Sequence[tuple[int, int]], n_operands: int) -> PairwisePath:
    """Convert numbers of operands and products to positions among the arrays left."""
    numbers, positions = list(range(n_operands)), []
    for pair in pairs:
        first, second = sorted(map(numbers.index, pair))
        positions.append((first, second))
        numbers = [number for number in numbers if number not in pair] + [pair[0]]
    return PairwisePath(tuple(positions))


def _list_products(path: PairwisePath, n_operands: int) -> frozenset[frozenset[int]]:
    """Return the set of operands in each product.

    It is equal for paths that differ only in the order of their steps.
    """
    order = list_factors(path.pairs, n_operands)
    return frozenset(
        first_operands | second_operands for first_operands, second_operands in order
    )


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
