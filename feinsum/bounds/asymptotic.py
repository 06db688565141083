"""Steps per byte of a statement with unlimited extents, as papers quote them.

The matrix product ``ij,jk->ik`` touches three arrays. A set of its steps that touches
at most X entries has at most ``(X/3)**(3/2)`` steps (Loomis-Whitney, exponents 1/2), so
with a memory of S entries the best piece has X = 3 S, and no execution does more than
``sqrt(S)/2`` steps per entry moved. This module finds the exponents (a linear program,
in fractions), the piece and its tile for any statement.

Intensity
---------

A set of X entries allows ``H(X) = max(prod(x_v))`` steps under ``sum(w_a * P_a) <= X``.
The intensity is the least ``H(X) / (X - S)``, which is::

    rho = prod((s_a / w_a) ** s_a) * (S / (sigma - 1)) ** (sigma - 1)

at ``X0 = sigma S / (sigma - 1)``, for the exponents of the least cover. If several
covers are least, it is the one that minimizes ``prod((s_a / w_a) ** s_a)``. The paper
gives ``V / rho`` as a bound, which holds for many steps and large extents only; the
finite form of :mod:`feinsum.bounds.finite` is proved.

Source: Ziogas et al., *Deinsum*, section IV. Its constraint of MTTKRP omits the access
``IL`` of the result, without which there is no maximum.

Covers
------

A set of index tuples whose projections have ``P_a`` entries has at most
``prod(P_a ** s_a)`` if the exponents cover every index: ``sum(s_a for a with v) >= 1``.
The least sum of such exponents is a linear program. It is solved in fractions, and its
dual solution proves that no sum is smaller.

Source: Hoelder and Loomis-Whitney; Christ, Demmel, Knight, Scanlon and Yelick 2013;
Ziogas et al., *Deinsum*, section IV (lemma 1, in which the fraction is inverted).

Tiles
-----

With ``x_v`` values of every index, an array has ``P_a = prod(x_v)`` entries. At a price
for each byte, the best tile maximizes::

    sum(log x_v) - price * sum(w_a * P_a),    1 <= x_v <= N_v

which is concave in the logarithms. Coordinate ascent sets one ``x_v`` after another to
its best value, ``1 / (price * sum(w_a * P_a / x_v))`` within its limits. At the
solution, the contribution of each array, ``s_a = price * w_a * P_a``, is its exponent
in the dual problem. These numbers need not be exact: every set of exponents that covers
the indices gives a valid bound.

Source: geometric programming; Boyd and Vandenberghe, *Convex Optimization*, 4.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import exp, inf, log, prod
from typing import Any, TypeAlias

import numpy as np
from constantdict import constantdict

from feinsum.bounds.soap import SoapStatement

FAR = 200.0
"""Logarithm of a size in bytes for which only the leading exponent matters."""

LIMIT = 600.0
"""Logarithm of an unlimited extent: below the largest double, exp(709)."""

SIMPLE = 64
"""Largest denominator of an exponent; covers of few arrays have small ones."""


@dataclass(frozen=True)
class Intensity:
    """How the steps per byte grow with the memory.

    Attributes:
        cover: the least cover by the index lists of the arrays, each list once.
        weights: for each list, the bytes of an entry of all its arrays together.
        exponents: exponents with the minimum sum; among several such sets, the one of
            least intensity.
    """

    cover: Cover
    weights: tuple[Fraction, ...]
    exponents: tuple[Fraction, ...]

    @property
    def is_bounded(self) -> bool:
        """Whether a larger memory does not help."""
        return self.cover.total <= 1

    def steps_per_byte(self, memory_bytes: float) -> float:
        """Return rho, the steps per byte.

        >>> from feinsum.bounds.soap import make_statement
        >>> product = make_statement("ij,jk->ik", dict.fromkeys("ijk", 100))
        >>> round(compute_intensity(product).steps_per_byte(10_000), 9)  # sqrt(S) / 2
        50.0
        """
        growth = float(self.cover.total - 1)
        rho: float = prod(
            float(s / w) ** float(s)
            for s, w in zip(self.exponents, self.weights, strict=True)
            if s
        )
        return rho if growth <= 0 else rho * (memory_bytes / growth) ** growth

    def segment_bytes(self, memory_bytes: float) -> float:
        """Return X0, the bytes that a piece of the best execution accesses.

        It is infinite if the intensity is bounded.
        """
        total = float(self.cover.total)
        return inf if total <= 1 else total * memory_bytes / (total - 1)

    def tile(self, memory_bytes: float) -> Mapping[str, float]:
        """Return the number of values of each index in such a piece; empty if bounded.

        >>> from feinsum.bounds.soap import make_statement
        >>> mttkrp = make_statement("ijk,ja,ka->ia", dict.fromkeys("ijka", 10**4))
        >>> tile = compute_intensity(mttkrp).tile(8000)  # S**(1/3) and S**(2/3) / 2
        >>> {index: round(size, 3) for index, size in sorted(tile.items())}
        {'a': 200.0, 'i': 20.0, 'j': 20.0, 'k': 20.0}
        """
        if self.is_bounded:
            return constantdict()
        log_price = log(float(self.cover.total)) - log(self.segment_bytes(memory_bytes))
        tiles, _ = _solve(self.cover.terms, self.weights, log_price)
        return constantdict({index: exp(size) for index, size in tiles.items()})


def compute_intensity(statement: SoapStatement) -> Intensity:
    """Compute the intensity of a statement, merging arrays with the same indices."""
    lists: dict[frozenset[str], Fraction] = {}
    for access in statement.accesses:
        if access.indices and access.entry_bytes:
            indices = frozenset(access.indices)
            lists[indices] = lists.get(indices, Fraction(0)) + access.entry_bytes
    return _compute_intensity(tuple(lists), tuple(lists.values()))


@lru_cache(maxsize=1024)
def _compute_intensity(
    terms: tuple[frozenset[str], ...], weights: tuple[Fraction, ...]
) -> Intensity:
    """Compute an intensity, cached for all extents and memory levels."""
    cover = find_least_cover(terms)
    return Intensity(cover, weights, _find_balanced(cover, weights))


def _find_balanced(cover: Cover, weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Find the exponents of minimum sum that have the least intensity.

    The exponents of the best tiles converge to them. If they are not simple fractions,
    the exponents of the cover are used instead.
    """
    if not cover.terms:
        return ()
    # For large memories, the dual solution converges to these exponents. Rounded to
    # fractions, they have to pass the exact test.
    _, shares = _solve(cover.terms, weights, -FAR)
    exponents = tuple(Fraction(s).limit_denominator(SIMPLE) for s in shares)
    candidate = Cover(cover.terms, exponents, cover.packing)
    return exponents if candidate.is_certified() else cover.exponents


def _solve(
    terms: Iterable[frozenset[str]], weights: Sequence[Fraction], log_price: float
) -> tuple[dict[str, float], list[float]]:
    """Return the logarithms of the best tile at a price, and the arrays' shares."""
    sets = list(terms)
    indices = sorted(frozenset().union(*sets))
    member = np.array([[[v in term for v in indices] for term in sets]])
    tiles, shares = find_best_tiles(
        member,
        np.array([[log(w) for w in weights]]),
        np.full((1, len(indices)), LIMIT),
        np.array([[log_price]]),
        n_sweeps=2000,
        converged=1e-12,
    )
    sizes = (float(x) for x in tiles[0, 0])
    return dict(zip(indices, sizes, strict=True)), [float(s) for s in shares[0, 0]]


@dataclass(frozen=True)
class Cover:
    """Exponents with the minimum sum, and a proof of the minimum.

    Attributes:
        terms: the indices of each array.
        exponents: an exponent for each array.
        packing: a weight for each index; those of an array add up to at most 1.
    """

    terms: tuple[frozenset[str], ...]
    exponents: tuple[Fraction, ...]
    packing: Mapping[str, Fraction]

    def __post_init__(self) -> None:
        object.__setattr__(self, "packing", constantdict(self.packing))

    @property
    def total(self) -> Fraction:
        """The sum of the exponents."""
        return sum(self.exponents, Fraction(0))

    def is_certified(self) -> bool:
        """Return whether both solutions are feasible and equal, in exact arithmetic."""
        pairs = list(zip(self.terms, self.exponents, strict=True))
        indices = frozenset().union(*self.terms)
        is_cover = all(sum(s for term, s in pairs if v in term) >= 1 for v in indices)
        is_packing = all(sum(self.packing[v] for v in t) <= 1 for t in self.terms)
        values = [*self.exponents, *self.packing.values()]
        is_equal = self.total == sum(self.packing.values())
        return is_cover and is_packing and is_equal and min(values, default=0) >= 0


def find_least_cover(terms: Sequence[Iterable[str]]) -> Cover:
    """Find exponents with the smallest sum that cover every index.

    Args:
        terms: the indices of each array; each of them must be covered.

    >>> cover = find_least_cover(["ijk", "ja", "ka", "ia"])
    >>> [str(s) for s in cover.exponents], cover.is_certified()
    (['2/3', '1/3', '1/3', '1/3'], True)
    """
    return _find_cover(tuple(map(frozenset, terms)))


@lru_cache(maxsize=1024)
def _find_cover(sets: tuple[frozenset[str], ...]) -> Cover:
    """Compute a cover, cached for all memory levels."""
    indices = sorted(frozenset().union(*sets))
    rows = [[Fraction(v in term) for v in indices] for term in sets]
    weights, exponents = _solve_packing(rows, len(indices))
    return Cover(sets, exponents, dict(zip(indices, weights, strict=True)))


def _solve_packing(
    rows: list[list[Fraction]], n: int
) -> tuple[list[Fraction], tuple[Fraction, ...]]:
    """Maximize the sum of weights under ``rows @ weights <= 1``.

    This is the simplex method in fractions. It starts at the vertex with all weights 0,
    and Bland's rule prevents cycling.

    Returns:
        The weights, and the multipliers of the rows.
    """
    m = len(rows)
    # one slack variable for each row, and the right-hand side; costs are the last row
    table = np.full((m + 1, n + m + 1), Fraction(0), object)
    table[:m, :n], table[m, :n], table[:m, -1] = rows, Fraction(-1), Fraction(1)
    table[range(m), range(n, n + m)] = Fraction(1)
    basis = [n + i for i in range(m)]
    while (is_entering := table[m, :-1] < 0).any():
        # Bland's rule: the first column and, of equal ratios, the first basis variable
        column = int(is_entering.argmax())
        _, _, pivot = min(
            (table[i, -1] / table[i, column], basis[i], i)
            for i in range(m)
            if table[i, column] > 0
        )
        table[pivot] /= table[pivot, column]
        factors = table[:, column].copy()
        factors[pivot] = Fraction(0)
        table -= factors[:, None] * table[pivot]
        basis[pivot] = column
    values = {basis[i]: table[i, -1] for i in range(m)}
    # the reduced costs of the slack variables are the dual solution: the exponents
    return [values.get(j, Fraction(0)) for j in range(n)], tuple(table[m, n : n + m])


Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

N_SWEEPS = 60

CONVERGED = 1e-5
"""Tolerance of a logarithm. The bound loses only the square of the error."""


def find_best_tiles(
    member: Array,
    log_weights: Array,
    log_extents: Array,
    log_prices: Array,
    *,
    n_sweeps: int = N_SWEEPS,
    converged: float = CONVERGED,
) -> tuple[Array, Array]:
    """Find the best tiles of G statements at P prices each.

    Args:
        member: whether an array has an index, of shape ``(G, A, V)``.
        log_weights: logarithms of the bytes of an entry, of shape ``(G, A)``; ``-inf``
            where there is no array.
        log_extents: logarithms of extents, of shape ``(G, V)``; 0 where there is no
            index.
        log_prices: logarithms of prices, of shape ``(G, P)``.
        n_sweeps: limit on the sweeps over all indices.
        converged: change of a logarithm in a sweep at which the search stops.

    Returns:
        The logarithms of the tiles, ``(G, P, V)``, and the exponents, ``(G, P, A)``.
    """
    # Update the shares, price * w_a * P_a, by factors instead of computing them again:
    # a sweep then costs one exponential for each index and array.
    log_shares = log_weights[:, None, :] + log_prices[:, :, None]
    limits = np.broadcast_to(
        log_extents[:, None, :], (*log_prices.shape, log_extents.shape[1])
    )
    tiles = _choose_start(member, log_shares, limits)
    log_shares = log_shares + np.einsum("gpv,gav->gpa", tiles, member.astype(float))
    shares = np.exp(log_shares)
    has_index = [member[:, None, :, v].astype(float) for v in range(member.shape[2])]
    with np.errstate(divide="ignore"):
        for _ in range(n_sweeps):
            largest = 0.0
            for v, has_v in enumerate(has_index):
                before = tiles[:, :, v]
                # at the optimum of a coordinate, the shares of its arrays add up to 1
                wanted = before - np.log((shares * has_v).sum(axis=2))
                after = np.minimum(np.maximum(wanted, 0.0), limits[:, :, v])
                step = after - before
                tiles[:, :, v] = after
                shares = shares * np.exp(has_v * step[:, :, None])
                largest = max(largest, float(np.abs(step).max(initial=0.0)))
            if largest < converged:
                break
    return tiles, shares


def _choose_start(member: Array, log_shares: Array, limits: Array) -> Array:
    """Choose initial tiles for which all shares are at most 1."""
    sizes = np.maximum(member.sum(axis=2), 1)
    room = -log_shares / sizes[:, None, :]
    smallest = np.where(member[:, None, :, :], room[..., None], np.inf).min(axis=2)
    clipped: Array = np.minimum(np.maximum(smallest, 0.0), limits)
    return clipped
