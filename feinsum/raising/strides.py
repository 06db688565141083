"""Subscripts that are sums of inames times strides, as of flattened arrays.

Strides are numbers, or products of numbers and of sizes that only a call knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import TypeAlias

import numpy as np
from constantdict import constantdict
from pymbolic import parse
from pymbolic import primitives as p

from feinsum.ir import Extent, SizeParam
from feinsum.raising.nest import Expression, in_kernel

__all__ = ["Strides", "are_distinct_places", "strides_of"]

Polynomial: TypeAlias = dict[tuple[str, ...], int]
"""The coefficient of each product of names, which are sorted."""

ONE: Polynomial = {(): 1}
LONG = 2**20
"""A size that stands for any, to put strides in order."""


@dataclass(frozen=True)
class Strides:
    """``offset + sum(stride*iname)``.

    Attributes:
        strides: of each iname, the largest first, as in an array of these axes.
    """

    offset: Polynomial
    strides: constantdict[str, Polynomial]

    @property
    def inames(self) -> tuple[str, ...]:
        return tuple(self.strides)

    @property
    def is_positive(self) -> bool:
        """Whether no stride goes back, nor begins the place before the array."""
        return _at_long_sizes(self.offset) >= 0 and all(
            _at_long_sizes(stride) > 0 for stride in self.strides.values()
        )


def strides_of(
    subscript: Expression, inames: Collection[str], sizes: Collection[str] = ()
) -> Strides | None:
    """The strides of the inames; None if it is no sum of multiples of them.

    >>> found = strides_of(parse("(i*m + j)*n + k + 2"), {*"ijk"}, {*"mn"})
    >>> dict(found.strides)
    {'i': {('m', 'n'): 1}, 'j': {('n',): 1}, 'k': {(): 1}}
    >>> found.offset
    {(): 2}
    >>> strides_of(parse("i*j"), {*"ij"}) is None
    True
    """
    known = _polynomial(subscript)
    if known is None:
        return None
    offset: Polynomial = {}
    strides: dict[str, Polynomial] = {}
    for names, n in known.items():
        own = [name for name in names if name in inames]
        if len(own) > 1 or not {*names} <= {*own, *sizes}:
            return None
        of = strides.setdefault(own[0], {}) if own else offset
        of[tuple(name for name in names if name not in own)] = n
    by_length = sorted(strides, key=lambda name: -abs(_at_long_sizes(strides[name])))
    return Strides(offset, constantdict({name: strides[name] for name in by_length}))


def are_distinct_places(subscript: Strides, extents: Mapping[str, Extent]) -> bool:
    """Whether no two points have one subscript: each stride is longer than all that the
    smaller ones can reach, whatever the sizes are.

    >>> flat = strides_of(parse("10*e + i"), {*"ei"})
    >>> are_distinct_places(flat, {"e": 5, "i": 10})
    True
    >>> are_distinct_places(flat, {"e": 5, "i": 11})
    False
    >>> flat = strides_of(parse("n*e + i"), {*"ei"}, {"n"})
    >>> are_distinct_places(flat, {"e": 5, "i": SizeParam("n")})
    True
    """
    lengths = [extents[name] for name in subscript.inames]
    positive = {length.name for length in lengths if isinstance(length, SizeParam)}
    reach: Polynomial = {}
    for name in reversed(subscript.inames):
        stride = subscript.strides[name]
        margin = _added(_added(stride, reach, -1), ONE, -1)
        if not all(n >= 0 and {*names} <= positive for names, n in margin.items()):
            return False
        length = _polynomial(parse(str(in_kernel(extents[name]))))
        assert length is not None
        reach = _added(reach, _multiplied(stride, _added(length, ONE, -1)))
    return True


def _polynomial(expression: Expression) -> Polynomial | None:
    """The expression, multiplied out; None if it is no sum of products."""
    match expression:
        case bool():
            return None
        case int() | np.integer():
            return {(): int(expression)} if expression else {}
        case p.Variable(name):
            return {(name,): 1}
        case p.Sum(children) | p.Product(children):
            parts = [part for part in map(_polynomial, children) if part is not None]
            if len(parts) < len(children):
                return None
            is_sum = isinstance(expression, p.Sum)
            return reduce(_added if is_sum else _multiplied, parts)
    return None


def _added(one: Polynomial, other: Polynomial, times: int = 1) -> Polynomial:
    both = Counter(one)
    both.update({names: times * n for names, n in other.items()})
    return {names: n for names, n in both.items() if n}


def _multiplied(one: Polynomial, other: Polynomial) -> Polynomial:
    product: Counter[tuple[str, ...]] = Counter()
    for a, n in one.items():
        product.update({tuple(sorted(a + b)): n * m for b, m in other.items()})
    return {names: n for names, n in product.items() if n}


def _at_long_sizes(polynomial: Polynomial) -> int:
    return sum(n * prod([LONG] * len(names)) for names, n in polynomial.items())
