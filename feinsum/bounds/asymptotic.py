"""The paper's figure: steps per byte of a statement with unlimited extents.

A set of X entries allows ``H(X) = max(prod(x_v))`` steps under ``sum(w_a * P_a) <= X``.
The intensity is the least ``H(X) / (X - S)``, which is::

    rho = prod((s_a / w_a) ** s_a) * (S / (sigma - 1)) ** (sigma - 1)

at ``X0 = sigma S / (sigma - 1)``, for the exponents of the least cover; of several,
those that minimize ``prod((s_a / w_a) ** s_a)``. The paper prints ``V / rho`` as a
bound. It only holds for many steps and large extents; the finite form of
:mod:`feinsum.bounds.certificate` is proved.

Source: Ziogas et al., *Deinsum*, section IV. The text omits the access ``IL`` of the
result in the constraint of MTTKRP; without it there is no maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import exp, inf, log, prod

import numpy as np
from constantdict import constantdict

from feinsum.bounds.covers import Cover, least_cover
from feinsum.bounds.statement import Statement
from feinsum.bounds.tiles import best_tiles

__all__ = ["Intensity", "intensity_of"]

FAR = 200.0
"""Logarithm of a size in bytes for which only the leading exponent matters."""
LIMIT = 600.0
SIMPLE = 64


@dataclass(frozen=True)
class Intensity:
    """How steps per byte grow with the memory.

    Attributes:
        cover: of the index lists of the arrays, each list once.
        weights: bytes of an entry, of all arrays of a list together.
        exponents: with the minimum sum; among several, those with the least intensity.
    """

    cover: Cover
    weights: tuple[Fraction, ...]
    exponents: tuple[Fraction, ...]

    @property
    def is_bounded(self) -> bool:
        """Whether a larger memory does not help."""
        return self.cover.total <= 1

    def steps_per_byte(self, memory_bytes: float) -> float:
        """Rho.

        >>> from feinsum.bounds.statement import statement
        >>> product = statement("ij,jk->ik", dict.fromkeys("ijk", 100))
        >>> round(intensity_of(product).steps_per_byte(10_000), 9)  # sqrt(S) / 2
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
        """X0, the bytes that a piece of the best execution accesses; inf if bounded."""
        total = float(self.cover.total)
        return inf if total <= 1 else total * memory_bytes / (total - 1)

    def tile(self, memory_bytes: float) -> Mapping[str, float]:
        """The index tuples of such a piece; empty if bounded.

        >>> from feinsum.bounds.statement import statement
        >>> mttkrp = statement("ijk,ja,ka->ia", dict.fromkeys("ijka", 10**4))
        >>> tile = intensity_of(mttkrp).tile(8000)  # S**(1/3) and S**(2/3) / 2
        >>> {index: round(size, 3) for index, size in sorted(tile.items())}
        {'a': 200.0, 'i': 20.0, 'j': 20.0, 'k': 20.0}
        """
        if self.is_bounded:
            return constantdict()
        log_price = log(float(self.cover.total)) - log(self.segment_bytes(memory_bytes))
        tiles, _ = _solved(self.cover.terms, self.weights, log_price)
        return constantdict({index: exp(size) for index, size in tiles.items()})


def intensity_of(statement: Statement) -> Intensity:
    """The intensity of a statement; arrays with the same index list count together."""
    lists: dict[frozenset[str], Fraction] = {}
    for access in statement.accesses:
        if access.indices and access.entry_bytes:
            its = frozenset(access.indices)
            lists[its] = lists.get(its, Fraction(0)) + access.entry_bytes
    return _intensity_of(tuple(lists), tuple(lists.values()))


@lru_cache(maxsize=1024)
def _intensity_of(
    terms: tuple[frozenset[str], ...], weights: tuple[Fraction, ...]
) -> Intensity:
    """The same for all extents and all memory levels."""
    cover = least_cover(terms)
    return Intensity(cover, weights, _balanced(cover, weights))


def _balanced(cover: Cover, weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The exponents with the minimum sum that have the least intensity.

    The best tiles tend to them. If they are not simple fractions, the cover's are used.
    """
    if not cover.terms:
        return ()
    _, shares = _solved(cover.terms, weights, -FAR)
    found = tuple(Fraction(s).limit_denominator(SIMPLE) for s in shares)
    candidate = Cover(cover.terms, found, cover.packing)
    return found if candidate.is_certified() else cover.exponents


def _solved(
    terms: Iterable[frozenset[str]], weights: Sequence[Fraction], log_price: float
) -> tuple[dict[str, float], list[float]]:
    """Logarithms of the best tile at a price, and what each array contributes."""
    sets = list(terms)
    indices = sorted(frozenset().union(*sets))
    member = np.array([[[v in term for v in indices] for term in sets]])
    tiles, shares = best_tiles(
        member,
        np.array([[log(w) for w in weights]]),
        np.full((1, len(indices)), LIMIT),
        np.array([[log_price]]),
        n_sweeps=2000,
        converged=1e-12,
    )
    sizes = (float(x) for x in tiles[0, 0])
    return dict(zip(indices, sizes, strict=True)), [float(s) for s in shares[0, 0]]
