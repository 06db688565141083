"""The cheapest loop nest, by dynamic programming.

The terms ``t0 t1 t2`` of a path become a list of loops. The first loop, over some
index, is around the first ``split`` terms; its body is the same problem within one more
loop, and the rest is the same problem again::

    cheapest(t0 t1 t2 | around) = min over index, split of
        loop(index, cheapest(t0.. | around + index)) then cheapest(split.. | around)

Two consecutive loops over one index would be fused. So for each group of terms, the
search keeps the cheapest nest, and the cheapest one with another first loop.

Source: Kanakagiri and Solomonik 2024 (SpTTN), section 4.2, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, permutations
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

from feinsum.nests.cost import Cost, TermGroup
from feinsum.nests.nest import Nest, Orders, Rule, list_needed_loops
from feinsum.nests.networks import FactorProduct, Network, Path, list_paths


class BestNest(NamedTuple):
    """The cheapest nest, and its cost."""

    cost: Any
    nest: Nest


class _Candidate(NamedTuple):
    """The cheapest loops around some terms, for one choice of the first loop.

    Attributes:
        root: the index of the first loop; None if the first term has no loop left, in
            which case there is no body.
        body: the loops inside the first loop.
        following: the loops after it.
    """

    cost: Any
    root: str | None
    body: _Candidate | None
    following: _Candidate | None

    def orders(self) -> Orders:
        inside = ((),) if self.body is None else self.body.orders()
        around = () if self.root is None else (self.root,)
        after = () if self.following is None else self.following.orders()
        return (*((*around, *order) for order in inside), *after)


@dataclass
class OrderSearch:
    """The cheapest orders of paths of one network, memoized across paths.

    For each group of terms within each set of loops, it stores the cheapest orders, and
    the cheapest ones with another first loop, because two consecutive loops over one
    index would be fused.

    Complexity: of one path with n terms and m indices, O(n**3 * m * 2**m).
    """

    network: Network
    cost: Cost[Any]
    rule: Rule = "relative"

    def __post_init__(self) -> None:
        self._numbers: dict[FactorProduct, int] = {}
        self._terms: list[FactorProduct] = []
        self._needed: list[dict[str, frozenset[str]]] = []
        self._solutions: dict[Any, tuple[_Candidate, ...]] = {}

    def best(self, path: Path) -> tuple[Any, Orders] | None:
        """Find the cost and orders of a path's cheapest nest, if any is allowed."""
        numbers = tuple(map(self._number, path))
        candidates = self._find_candidates(numbers, frozenset())
        if not candidates or _is_infinite(candidates[0].cost):
            return None
        return candidates[0].cost, candidates[0].orders()

    def _number(self, term: FactorProduct) -> int:
        if term not in self._numbers:
            self._numbers[term] = len(self._terms)
            self._terms.append(term)
            self._needed.append(
                {
                    i: list_needed_loops(self.network, self.rule, term, i)
                    for i in term.indices
                }
            )
        return self._numbers[term]

    def _find_candidates(
        self, numbers: tuple[int, ...], ancestors: frozenset[str]
    ) -> tuple[_Candidate, ...]:
        """Return the cheapest candidate and, if any, the cheapest with another root."""
        # groups of equal terms within equal loops recur, also in other paths
        key = (numbers, ancestors)
        candidates = self._solutions.get(key)
        if candidates is None:
            terms = tuple(self._terms[number] for number in numbers)
            candidates = self._solutions[key] = self._solve(
                numbers, TermGroup(terms, ancestors)
            )
        return candidates

    def _solve(
        self, numbers: tuple[int, ...], group: TermGroup
    ) -> tuple[_Candidate, ...]:
        candidates = group.terms[0].indices - group.ancestors
        if not candidates:
            no_loop = _Candidate(self.cost.nothing, None, None, None)
            joined = self._join(numbers, group, 1, no_loop)
            return () if joined is None else (joined,)
        best = [
            candidate
            for index in sorted(candidates)
            if (candidate := self._find_rooted(numbers, group, index)) is not None
        ]
        # the sort is stable: equal costs keep the order of the index names
        best.sort(key=_cost_of)
        # two suffice: at most one of them is fused with the loop before
        return tuple(best[:2])

    def _find_rooted(
        self, numbers: tuple[int, ...], group: TermGroup, index: str
    ) -> _Candidate | None:
        """Return the cheapest candidate whose first loop is over the index."""
        best: _Candidate | None = None
        inside = group.ancestors | {index}
        for split, number in enumerate(numbers, 1):
            needed = self._needed[number].get(index)
            # loops around more terms would contain this term, too
            if needed is None or not needed <= group.ancestors:
                break
            bodies = self._find_candidates(numbers[:split], inside)
            if bodies:
                inner = TermGroup(group.terms[:split], group.ancestors)
                cost = self.cost.loop(inner, index, bodies[0].cost)
                first = _Candidate(cost, index, bodies[0], None)
                joined = self._join(numbers, group, split, first)
                if joined is not None and (best is None or joined.cost < best.cost):
                    best = joined
        return best

    def _join(
        self, numbers: tuple[int, ...], group: TermGroup, split: int, first: _Candidate
    ) -> _Candidate | None:
        """Join the first node with the cheapest candidate that can follow it."""
        if split == len(numbers):
            return first
        # candidates are sorted, so the first that fits is the cheapest
        for following in self._find_candidates(numbers[split:], group.ancestors):
            if first.root is None or following.root != first.root:
                crossing = self.cost.crossing(group, split)
                cost = self.cost.combine(first.cost, crossing)
                cost = self.cost.combine(cost, following.cost)
                return _Candidate(cost, first.root, first.body, following)
        return None


_cost_of = attrgetter("cost")


def find_best_orders(
    network: Network, path: Path, cost: Cost[Any], rule: Rule = "relative"
) -> BestNest | None:
    """Find the cheapest nest of one path; None if none is allowed.

    >>> from feinsum.nests import IndependentLoops, parse_network, build_path
    >>> ttmc = parse_network("ijkl,jr,ks,lt->irst")
    >>> path = build_path(ttmc, [(0, 3), (4, 2), (5, 1)])
    >>> found = find_best_orders(ttmc, path, IndependentLoops(ttmc, max_dimension=2))
    >>> found.cost, [len(buffer.indices) for buffer in found.nest.buffers]
    (-6.0, [1, 2])
    """
    best = OrderSearch(network, cost, rule).best(path)
    return None if best is None else BestNest(best[0], Nest(network, path, best[1]))


def group_by_depth(network: Network) -> Iterator[list[Path]]:
    """Yield the paths by the loops around their deepest term, fewest first."""

    def depth(path: Path) -> int:
        return max(len(term.indices) for term in path)

    for _, group in groupby(sorted(list_paths(network), key=depth), key=depth):
        yield list(group)


def find_best_nest(
    network: Network,
    cost: Cost[Any],
    rule: Rule = "relative",
    paths: Iterable[Path] | None = None,
) -> BestNest | None:
    """Find the cheapest nest of a network; None if none is allowed.

    Args:
        network: the network to compute.
        cost: the cost to minimize.
        rule: for the indices of the sparse operand; see :mod:`feinsum.nests.nest`.
        paths: the paths to consider. By default those with the fewest loops around a
            term; if the cost allows none of them, those with one more.

    >>> from feinsum.nests import IndependentLoops, parse_network
    >>> mttkrp = parse_network("ijk,ja,ka->ia")
    >>> find_best_nest(mttkrp, IndependentLoops(mttkrp)).cost
    -2.0
    """
    # begin with the fewest loops: each further loop multiplies the work
    groups = group_by_depth(network) if paths is None else iter([list(paths)])
    search = OrderSearch(network, cost, rule)
    nests = (_find_best(search, group) for group in groups)
    return next((best for best in nests if best is not None), None)


def _find_best(search: OrderSearch, paths: list[Path]) -> BestNest | None:
    """Find the cheapest nest of several paths, the most promising first."""
    # a path's bound is cheap, the search over its orders is not
    best: tuple[Any, Orders, Path] | None = None
    # with lower bounds in ascending order, all paths after the first pruned one are
    # pruned, too
    bounds = [search.cost.least(path) for path in paths]
    for number in sorted(range(len(paths)), key=bounds.__getitem__):
        if best is not None and not bounds[number] < best[0]:
            break
        candidate = search.best(paths[number])
        if candidate is not None and (best is None or candidate[0] < best[0]):
            best = (*candidate, paths[number])
    if best is None:
        return None
    return BestNest(best[0], Nest(search.network, best[2], best[1]))


def list_level_orders(network: Network) -> Iterator[Network]:
    """Yield the network with each order of the levels of its sparse operand."""
    for levels in permutations(network.levels):
        yield replace(network, levels=levels)


def find_best_levels(
    network: Network,
    cost_of: Callable[[Network], Cost[Any]],
    rule: Rule = "relative",
) -> BestNest | None:
    """Find the cheapest nest over all level orders; its network has the best one.

    Args:
        network: the network to compute.
        cost_of: the cost for a level order, since each order has its own profile.
        rule: for the indices of the sparse operand.

    >>> from feinsum.nests import EstimatedTime, Sizes, parse_network
    >>> extents = {"i": 900, "j": 800, "k": 700, "a": 32}
    >>> nodes = {"i": 900, "j": 800, "k": 9, "ij": 80_000, "ik": 1000, "jk": 2000}
    >>> def cost_of(net):
    ...     two = "".join(sorted(net.levels[:2]))
    ...     profile = (nodes[net.levels[0]], nodes[two], 90_000)
    ...     return EstimatedTime(net, Sizes(extents, profile))
    >>> find_best_levels(parse_network("ijk,ja,ka->ia"), cost_of).nest.network.levels
    ('k', 'i', 'j')
    """
    candidates = (
        find_best_nest(n, cost_of(n), rule) for n in list_level_orders(network)
    )
    nests = [best for best in candidates if best is not None]
    return min(nests, key=_cost_of, default=None)


def _is_infinite(cost: Any) -> bool:
    first = cost[0] if isinstance(cost, tuple) else cost
    return bool(first == inf)
