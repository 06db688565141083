"""Subscripts that are sums of inames times whole numbers, as of flattened arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from constantdict import constantdict
from pymbolic import primitives as p

from feinsum.raising.nest import Expression

__all__ = ["Affine", "affine"]


@dataclass(frozen=True)
class Affine:
    """``constant + sum(coefficient*iname)``."""

    constant: int
    coefficients: constantdict[str, int]

    def __add__(self, other: Affine) -> Affine:
        names = dict.fromkeys((*self.coefficients, *other.coefficients))
        mine, theirs = self.coefficients, other.coefficients
        both = {name: mine.get(name, 0) + theirs.get(name, 0) for name in names}
        return Affine(
            self.constant + other.constant,
            constantdict({name: n for name, n in both.items() if n}),
        )

    def times(self, factor: int) -> Affine:
        scaled = {name: n * factor for name, n in self.coefficients.items()}
        return Affine(
            self.constant * factor,
            constantdict({name: n for name, n in scaled.items() if n}),
        )

    @property
    def inames(self) -> tuple[str, ...]:
        """Those of the largest steps first, as in an array of these axes."""
        known = self.coefficients
        return tuple(sorted(known, key=lambda name: -abs(known[name])))

    def expression(self) -> Expression:
        """In as few words as can be."""
        terms = [
            p.Variable(name) if n == 1 else p.Product((n, p.Variable(name)))
            for name, n in self.coefficients.items()
        ]
        if self.constant or not terms:
            terms.append(self.constant)
        return terms[0] if len(terms) == 1 else p.Sum(tuple(terms))

    def text(self) -> str:
        """As isl and Loopy read it.

        >>> Affine(-2, constantdict({"start": -1, "end": 2})).text()
        '2*end - start - 2'
        """
        known = sorted(self.coefficients.items(), key=lambda term: term[1] < 0)
        terms = [(n, name if abs(n) == 1 else f"{abs(n)}*{name}") for name, n in known]
        if self.constant or not terms:
            terms.append((self.constant, str(abs(self.constant))))
        (first, begin), *others = terms
        text = begin if first >= 0 else f"-{begin}"
        return text + "".join(f" {'-' if n < 0 else '+'} {x}" for n, x in others)


Combine: TypeAlias = Callable[[Affine, Affine], Affine | None]


def affine(expression: Expression, inames: Collection[str]) -> Affine | None:
    """The expression as a sum of multiples of inames; None if it is no such sum.

    >>> from pymbolic import parse
    >>> found = affine(parse("0 + i*16 + (j + 1)*4"), {"i", "j"})
    >>> print(found.expression())
    16*i + 4*j + 4
    >>> affine(parse("i*j"), {"i", "j"}) is None
    True
    """
    match expression:
        case bool():
            return None
        case int() | np.integer():
            return Affine(int(expression), constantdict())
        case p.Variable(name):
            known = Affine(0, constantdict({name: 1}))
            return known if name in inames else None
        case p.Sum(children):
            return _all_of(children, inames, Affine.__add__)
        case p.Product(children):
            return _all_of(children, inames, _product)
    return None


def _all_of(
    children: Sequence[Expression], inames: Collection[str], combine: Combine
) -> Affine | None:
    first, *others = (affine(child, inames) for child in children)
    for other in others:
        first = None if first is None or other is None else combine(first, other)
    return first


def _product(one: Affine, other: Affine) -> Affine | None:
    if not one.coefficients:
        return other.times(one.constant)
    return None if other.coefficients else one.times(other.constant)
