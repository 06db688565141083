"""Affine subscripts, such as of flattened arrays; and iteration domains that are boxes.

An affine subscript is a sum of inames times strides. A stride is a number, or a product
of numbers and of sizes that only a call determines. In ``v[(e*n + i)*3 + r]``, ``e``
has the stride ``3*n``, ``i`` the stride 3 and ``r`` the stride 1. All iterations write
distinct entries if each stride exceeds the reach of all smaller ones, for every value
of the sizes: here, if ``r < 3`` and ``i < n`` (:func:`are_distinct_places`).

Einsums sum over boxes: each iname runs from 0 to an extent that no other iname changes
(:func:`find_box_extents`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any, TypeAlias

import islpy as isl
import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.symbolic import get_dependencies, pw_aff_to_expr
from pymbolic import parse
from pymbolic import primitives as p

from feinsum.ir import Extent, SizeParam
from feinsum.raising.expressions import Expression, make_sum
from feinsum.raising.nest import AffineSize, express_in_kernel, make_refusal, names_of


@dataclass(frozen=True)
class Affine:
    """``constant + sum(coefficient*iname)``."""

    constant: int
    coefficients: constantdict[str, int]

    @property
    def inames(self) -> tuple[str, ...]:
        """The inames by decreasing step, as in an array with these axes."""
        steps = self.coefficients
        return tuple(sorted(steps, key=lambda name: -abs(steps[name])))

    def expression(self) -> Expression:
        """Return the shortest equivalent expression."""
        terms = [
            p.Variable(name) if n == 1 else p.Product((n, p.Variable(name)))
            for name, n in self.coefficients.items()
        ]
        if self.constant or not terms:
            terms.append(self.constant)
        return make_sum(terms)

    def text(self) -> str:
        """Return the text that isl and Loopy parse.

        >>> Affine(-2, constantdict({"start": -1, "end": 2})).text()
        '2*end - start - 2'
        """
        by_sign = sorted(self.coefficients.items(), key=lambda term: term[1] < 0)
        terms = [
            (n, name if abs(n) == 1 else f"{abs(n)}*{name}") for name, n in by_sign
        ]
        if self.constant or not terms:
            terms.append((self.constant, str(abs(self.constant))))
        (first, begin), *later = terms
        text = begin if first >= 0 else f"-{begin}"
        return text + "".join(f" {'-' if n < 0 else '+'} {x}" for n, x in later)


def parse_affine(expression: Expression, inames: Collection[str]) -> Affine | None:
    """Write an expression as a sum of multiples of inames; None if it is not affine.

    >>> from pymbolic import parse
    >>> found = parse_affine(parse("0 + i*16 + (j + 1)*4"), {"i", "j"})
    >>> print(found.expression())
    16*i + 4*j + 4
    >>> parse_affine(parse("i*j"), {"i", "j"}) is None
    True
    """
    polynomial = expand_polynomial(expression)
    if polynomial is None:
        return None
    constant = polynomial.pop((), 0)
    if not all(len(names) == 1 and names[0] in inames for names in polynomial):
        return None
    return Affine(constant, constantdict({i: n for (i,), n in polynomial.items()}))


Polynomial: TypeAlias = dict[tuple[Any, ...], int]
"""The coefficient of each product of names; the names of a product are sorted."""

CONSTANT_ONE: Polynomial = {(): 1}

LONG = 2**20
"""The value of all sizes by which strides are sorted."""


@dataclass(frozen=True)
class Strides:
    """``offset + sum(stride*iname)``.

    Attributes:
        strides: the stride of each iname, in decreasing order.
    """

    offset: Polynomial
    strides: constantdict[str, Polynomial]

    @property
    def inames(self) -> tuple[str, ...]:
        return tuple(self.strides)

    @property
    def is_positive(self) -> bool:
        """Whether all strides are positive, and the offset is not negative."""
        return _evaluate_at_long_sizes(self.offset) >= 0 and all(
            _evaluate_at_long_sizes(stride) > 0 for stride in self.strides.values()
        )


def find_strides(
    subscript: Expression, inames: Collection[str], sizes: Collection[str] = ()
) -> Strides | None:
    """Return the strides of the inames in a subscript; None if it is not affine.

    >>> found = find_strides(parse("(i*m + j)*n + k + 2"), {*"ijk"}, {*"mn"})
    >>> dict(found.strides)
    {'i': {('m', 'n'): 1}, 'j': {('n',): 1}, 'k': {(): 1}}
    >>> found.offset
    {(): 2}
    >>> find_strides(parse("i*j"), {*"ij"}) is None
    True
    """
    polynomial = expand_polynomial(subscript)
    if polynomial is None:
        return None
    offset: Polynomial = {}
    strides: dict[str, Polynomial] = {}
    for names, n in polynomial.items():
        loops = [name for name in names if name in inames]
        if len(loops) > 1 or not {*names} <= {*loops, *sizes}:
            return None
        target = strides.setdefault(loops[0], {}) if loops else offset
        target[tuple(name for name in names if name not in loops)] = n
    # in the order of axes in memory, as far as it is known before the call
    by_length = sorted(
        strides, key=lambda name: -abs(_evaluate_at_long_sizes(strides[name]))
    )
    return Strides(offset, constantdict({name: strides[name] for name in by_length}))


def are_distinct_places(subscript: Strides, extents: Mapping[str, Extent]) -> bool:
    """Return whether all points have distinct subscripts.

    They do if each stride exceeds the reach of all smaller ones, at all sizes.

    >>> flat = find_strides(parse("10*e + i"), {*"ei"})
    >>> are_distinct_places(flat, {"e": 5, "i": 10})
    True
    >>> are_distinct_places(flat, {"e": 5, "i": 11})
    False
    >>> flat = find_strides(parse("n*e + i"), {*"ei"}, {"n"})
    >>> are_distinct_places(flat, {"e": 5, "i": SizeParam("n")})
    True
    """
    lengths = [extents[name] for name in subscript.inames]
    positive = {length.name for length in lengths if isinstance(length, SizeParam)}
    reach: Polynomial = {}
    # from the innermost axis outwards, as in a positional number system
    for name in reversed(subscript.inames):
        stride = subscript.strides[name]
        # without negative terms, stride - reach - 1 is nonnegative at all sizes
        margin = _add_polynomials(_add_polynomials(stride, reach, -1), CONSTANT_ONE, -1)
        if not all(n >= 0 and {*names} <= positive for names, n in margin.items()):
            return False
        length = expand_polynomial(parse(str(express_in_kernel(extents[name]))))
        assert length is not None
        reach = _add_polynomials(
            reach,
            _multiply_polynomials(stride, _add_polynomials(length, CONSTANT_ONE, -1)),
        )
    return True


def expand_polynomial(
    expression: Expression, *, has_entries: bool = False
) -> Polynomial | None:
    """Multiply out an expression; None if it is not a sum of products of names.

    Args:
        expression: the expression to multiply out.
        has_entries: whether its names may be other expressions, such as array entries.

    >>> expand_polynomial(parse("2*(i + 1)*n - n"))
    {('i', 'n'): 2, ('n',): 1}
    """
    match expression:
        case bool():
            return None
        case int() | np.integer():
            return {(): int(expression)} if expression else {}
        case p.Variable(name) if not has_entries:
            return {(name,): 1}
        case p.Sum(children) | p.Product(children):
            operands = [expand_polynomial(x, has_entries=has_entries) for x in children]
            sums = [polynomial for polynomial in operands if polynomial is not None]
            is_sum = isinstance(expression, p.Sum)
            combine = _add_polynomials if is_sum else _multiply_polynomials
            return reduce(combine, sums) if len(sums) == len(operands) else None
    return {(expression,): 1} if has_entries else None


def _add_polynomials(
    first: Polynomial, second: Polynomial, times: int = 1
) -> Polynomial:
    total = dict(first)
    for names, n in second.items():
        total[names] = total.get(names, 0) + times * n
    return {names: n for names, n in total.items() if n}


def _multiply_polynomials(first: Polynomial, second: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for a, n in first.items():
        for b, m in second.items():
            names = tuple(sorted(a + b, key=str)) if a and b else a + b
            product[names] = product.get(names, 0) + n * m
    return {names: n for names, n in product.items() if n}


def _evaluate_at_long_sizes(polynomial: Polynomial) -> int:
    return sum(n * prod([LONG] * len(names)) for names, n in polynomial.items())


def find_box_extents(
    kernel: lp.LoopKernel, inames: Collection[str], instruction: str
) -> dict[str, Extent]:
    """Return the extent of each iname, if their domain is the box ``[0, extent)``.

    Raises:
        NotAnEinsumError: with the rule ``extent`` if an extent is neither a
            number nor a parameter; with ``domain`` if the domain is not a box
            (triangular, strided, shifted, empty).
    """
    # sorted, so that every process reports the same refusal
    extents = {name: _find_extent(kernel, name, instruction) for name in sorted(inames)}
    domain = kernel.get_inames_domain(frozenset(inames))
    other_loops = [
        name for name in domain.get_var_names(isl.dim_type.set) if name not in extents
    ]
    domain = (
        isl.Set.from_basic_set(domain) if isinstance(domain, isl.BasicSet) else domain
    )
    # related loops share a set; project out those of other instructions
    for name in other_loops:
        axis = domain.find_dim_by_name(isl.dim_type.set, name)
        domain = domain.project_out(isl.dim_type.set, axis, 1)
    if not _is_box(domain, extents, kernel):
        box = " x ".join(f"0 <= {name} < {extent}" for name, extent in extents.items())
        raise make_refusal(
            instruction,
            "domain",
            f"the domain {domain} of its inames is not the box {box}",
        )
    return extents


def _find_extent(kernel: lp.LoopKernel, iname: str, instruction: str) -> Extent:
    try:
        size = pw_aff_to_expr(kernel.get_iname_bounds(iname).size, int_ok=True)
    except (lp.LoopyError, isl.Error, NotImplementedError) as error:
        reason = f"iname {iname!r} has no bounds: {error}"
        raise make_refusal(instruction, "extent", reason) from None
    if isinstance(size, int):
        return size
    extent = find_parameter(size, kernel)
    if extent is not None:
        return extent
    raise make_refusal(
        instruction,
        "extent",
        f"iname {iname!r} has extent {size}; expected a number, a size parameter, or a "
        "sum of multiples of these",
    )


def find_parameter(size: Expression, kernel: lp.LoopKernel) -> SizeParam | None:
    """Return the size parameter of an extent, or a new one for an affine extent."""
    names = get_dependencies(size)
    if names & (kernel.temporary_variables.keys() | kernel.all_inames()):
        return None
    if isinstance(size, p.Variable):
        return SizeParam(size.name)
    sum_ = parse_affine(size, names)
    if sum_ is None:
        return None
    text = sum_.text()
    name = "_".join(["size", *re.findall(r"\w+", text.replace("-", " minus "))])
    return AffineSize(name, f"({text})")


def _is_box(domain: isl.Set, extents: dict[str, Extent], kernel: lp.LoopKernel) -> bool:
    names = domain.get_var_names(isl.dim_type.set)
    sizes = {name: express_in_kernel(extents[name]) for name in names}
    params = frozenset(domain.get_var_names(isl.dim_type.param))
    params = params.union(*map(names_of, sizes.values()))
    bounds = " and ".join(f"0 <= {name} < {sizes[name]}" for name in names) or "true"
    box = isl.Set.read_from_str(
        domain.get_ctx(),
        f"[{', '.join(sorted(params))}] -> {{ [{', '.join(names)}] : {bounds} }}",
    )
    box, domain = isl.align_two(box, domain)
    # compare at the sizes that the kernel assumes; at others, loops may be empty
    assumed = isl.Set.from_params(isl.Set.from_basic_set(kernel.assumptions).params())
    assumed, box = isl.align_two(assumed, box)
    context = assumed.params()
    return bool(
        domain.intersect_params(context).is_equal(box.intersect_params(context))
    )
