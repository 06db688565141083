"""Fractional covers: how fast work can grow with the entries that it touches.

A set of index tuples whose projections have ``P_a`` entries has at most
``prod(P_a ** s_a)`` if the exponents cover every index: ``sum(s_a for a with v) >= 1``.
The least sum of such exponents is a linear program. It is solved in fractions, and its
dual solution proves that no sum is smaller.

Source: Hoelder and Loomis-Whitney; Christ, Demmel, Knight, Scanlon and Yelick 2013;
Ziogas et al., *Deinsum*, section IV (lemma 1, whose fraction is printed upside down).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from constantdict import constantdict

__all__ = ["Cover", "least_cover"]


@dataclass(frozen=True)
class Cover:
    """Exponents with the minimum sum, and the proof that it is the minimum.

    Attributes:
        terms: the indices of each array.
        exponents: one for each array.
        packing: one weight for each index, of which no array has more than 1.
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
        """Whether both solutions are feasible and equal, by exact arithmetic alone."""
        pairs = list(zip(self.terms, self.exponents, strict=True))
        indices = frozenset().union(*self.terms)
        is_cover = all(sum(s for term, s in pairs if v in term) >= 1 for v in indices)
        is_packing = all(sum(self.packing[v] for v in t) <= 1 for t in self.terms)
        values = [*self.exponents, *self.packing.values()]
        is_equal = self.total == sum(self.packing.values())
        return is_cover and is_packing and is_equal and min(values, default=0) >= 0


def least_cover(terms: Sequence[Iterable[str]]) -> Cover:
    """The exponents of least sum that cover every index.

    Args:
        terms: the indices of each array; every index counts.

    >>> cover = least_cover(["ijk", "ja", "ka", "ia"])
    >>> [str(s) for s in cover.exponents], cover.is_certified()
    (['2/3', '1/3', '1/3', '1/3'], True)
    """
    return _cover_of(tuple(map(frozenset, terms)))


@lru_cache(maxsize=1024)
def _cover_of(sets: tuple[frozenset[str], ...]) -> Cover:
    """The same, computed once for all memory levels."""
    indices = sorted(frozenset().union(*sets))
    rows = [[Fraction(v in term) for v in indices] for term in sets]
    weights, exponents = _packing(rows, len(indices))
    return Cover(sets, exponents, dict(zip(indices, weights, strict=True)))


def _packing(
    rows: list[list[Fraction]], n: int
) -> tuple[list[Fraction], tuple[Fraction, ...]]:
    """Maximize the sum of weights under ``rows @ weights <= 1``.

    The simplex method in fractions. All weights 0 are a vertex to start from, and
    Bland's rule prevents cycling.

    Returns:
        The weights, and the multipliers of the rows.
    """
    m, one, zero = len(rows), Fraction(1), Fraction(0)
    table = [
        [*row, *(Fraction(k == i) for k in range(m)), one] for i, row in enumerate(rows)
    ]
    costs = [*([-one] * n), *([zero] * (m + 1))]
    basis = [n + i for i in range(m)]
    while entering := [j for j in range(n + m) if costs[j] < 0]:
        column = entering[0]
        _, _, pivot = min(
            (table[i][-1] / table[i][column], basis[i], i)
            for i in range(m)
            if table[i][column] > 0
        )
        _eliminate(table, costs, pivot, column)
        basis[pivot] = column
    values = {basis[i]: table[i][-1] for i in range(m)}
    return [values.get(j, zero) for j in range(n)], tuple(costs[n : n + m])


def _eliminate(
    table: list[list[Fraction]], costs: list[Fraction], pivot: int, column: int
) -> None:
    """Make a column a unit vector, in place."""
    factor = table[pivot][column]
    table[pivot] = [x / factor for x in table[pivot]]
    for row in (*(row for k, row in enumerate(table) if k != pivot), costs):
        if factor := row[column]:
            row[:] = [x - factor * y for x, y in zip(row, table[pivot], strict=True)]
