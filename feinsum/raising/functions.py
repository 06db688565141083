"""Operands as functions of indices: which expressions may be one, and their products.

``u[e, j]**2/(1 + u[e, j])`` is a function of ``e`` and ``j``, and so may be an operand.
The grammar excludes expressions that Loopy's C code and the reference evaluator compute
differently: integers that C divides, promotes or wraps, and values other than numbers.

A kernel that multiplies by ``exp(u[e, j])*u[e, j]`` is raised with two operands that
have the indices ``ej``. A fact may be recorded for one operand, whose function is the
product. So a look-up tries every grouping of operands of equal indices, from the finest
to the coarsest (:func:`regrouped`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.kernel.array import ArrayBase, FixedStrideArrayDimTag
from loopy.symbolic import (
    IdentityMapper,
    ResolvedFunction,
    TypeCast,
    UncachedWalkMapper,
)
from pymbolic import primitives as p

from feinsum.contraction.paths import list_partitions
from feinsum.dtypes import is_inexact, is_numeric
from feinsum.ir import (
    FUNCTIONS,
    BatchedEinsum,
    FunctionalBatchedEinsum,
    IndexList,
    Operand,
    OperandFunction,
)
from feinsum.raising.expressions import Expression, collect_nodes
from feinsum.raising.nest import RaisedNest, make_refusal
from feinsum.words import describe_type

DtypeOf = Callable[[Expression], np.dtype[Any]]

_NUMBERS = (int, float, complex, np.number, np.bool_)
_ARITHMETIC = (p.Sum, p.Product, p.Quotient, p.FloorDiv, p.Remainder, p.Power)
_CONDITIONS = (p.Comparison, p.LogicalAnd, p.LogicalOr, p.LogicalNot, p.If)
_GRAMMAR = (
    *_NUMBERS,
    *_ARITHMETIC,
    *_CONDITIONS,
    p.Variable,
    p.Subscript,
    p.Call,
    TypeCast,
    ResolvedFunction,
)
_PLAIN_INTEGERS: frozenset[np.dtype[Any]] = frozenset(
    {np.dtype(np.int32), np.dtype(np.int64)}
)
_COMPARED_INTEGERS = _PLAIN_INTEGERS.union(
    map(np.dtype, (np.bool_, np.int8, np.int16, np.uint8, np.uint16))
)
"""Integers that C compares by value: its conversion to signed ones keeps them."""


def check_function(
    expression: Expression,
    kernel: lp.LoopKernel,
    dtype_of: DtypeOf,
    instruction: str,
) -> None:
    """Refuse an expression, with rules expanded, that is not a function of indices.

    Raises:
        NotAnEinsumError: with the rule ``operand-function``.
    """
    try:
        _Checker(kernel, dtype_of)(expression)
    except _NoFunction as error:
        reason = f"{expression} is not a function of indices: {error}"
        raise make_refusal(instruction, "operand-function", reason) from None


def has_literal(expression: Expression) -> bool:
    """Return whether an expression contains a non-integer literal without a dtype."""
    return bool(collect_nodes(expression, float, complex))


def set_literal_dtypes(expression: Expression, dtype: np.dtype[Any]) -> Expression:
    """Give the literals of an expression a real dtype.

    Outside of sums, Loopy writes literals in the precision of the assignee, although
    its type inference gives them the narrowest dtype that holds them: 0.1 is double.

    >>> from pymbolic import parse
    >>> half, _ = set_literal_dtypes(parse("0.5*a"), np.dtype(np.float32)).children
    >>> half.dtype
    dtype('float32')
    """
    return _Sizer(dtype)(expression)


def write_function(expression: Expression) -> str:
    """Write an expression as the body of a :class:`feinsum.ir.OperandFunction`."""
    return str(_Texter()(expression))


def unresolve(expression: Expression) -> Expression:
    """Replace resolved functions by their names, as in user code."""
    return _Unresolver()(expression)


def without_tags(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """Remove the tags of variables, which do not affect values."""
    untag = _Untagger()
    rules = {
        name: rule.copy(expression=untag(rule.expression))
        for name, rule in kernel.substitutions.items()
    }
    return kernel.copy(
        instructions=[
            i.with_transformed_expressions(untag) for i in kernel.instructions
        ],
        substitutions=constantdict(rules),
    )


class _NoFunction(Exception):  # noqa: N818
    """An expression is outside of the grammar; the message says why."""


class _Checker(UncachedWalkMapper):  # type: ignore[misc]
    """Visits all nodes, and checks the conditions of each kind."""

    def __init__(self, kernel: lp.LoopKernel, dtype_of: DtypeOf) -> None:
        super().__init__()
        self._kernel = kernel
        self._inames = kernel.all_inames()
        self._dtype_of = dtype_of
        self._is_index = False

    def visit(self, expr: Expression, /) -> bool:
        if not isinstance(expr, _GRAMMAR):
            raise _NoFunction(f"{expr} is {describe_type(expr)}")
        return True

    def map_variable(self, expr: p.Variable, /) -> None:
        name = expr.name
        if name in self._inames:
            return
        variable = self._kernel.arg_dict.get(name)
        variable = variable or self._kernel.temporary_variables.get(name)
        if variable is None:
            raise _NoFunction(f"{name} is neither an array, a scalar nor an iname")
        dtype = getattr(variable.dtype, "numpy_dtype", None)
        if dtype is not None and not is_numeric(dtype):
            raise _NoFunction(f"{name} is of the dtype {dtype}, which is no number")
        if isinstance(variable, ArrayBase) and not is_plain_array(variable):
            raise _NoFunction(f"{name} has axes without a stride")

    def map_subscript(self, expr: p.Subscript, /) -> None:
        self.rec(expr.aggregate)
        outer, self._is_index = self._is_index, True
        for index in expr.index_tuple:
            self.rec(index)
            if not self._is_integer(index):
                raise _NoFunction(
                    f"the subscript {index} of {expr.aggregate} is no integer"
                )
        self._is_index = outer

    def map_call(self, expr: p.Call, /) -> None:
        name = getattr(expr.function, "name", None)
        if name not in FUNCTIONS:
            raise _NoFunction(f"the function {name} is not known")
        kinds = "c" if name in ("conj", "real", "imag") else "fc"
        for argument in expr.parameters:
            self.rec(argument)
            if (dtype := self._dtype_of(argument)).kind not in kinds:
                raise _NoFunction(f"{name} is called with a number of dtype {dtype}")

    def map_quotient(self, expr: p.Quotient, /) -> None:
        super().map_quotient(expr)
        if not (
            self._is_integer(expr.numerator) and self._is_integer(expr.denominator)
        ):
            return
        # In a subscript, C drops the remainder. Elsewhere only a quotient of two
        # literals is safe, since Loopy writes it as a floating point number.
        if self._is_index or not all(
            map(_is_number, (expr.numerator, expr.denominator))
        ):
            raise _NoFunction(f"{expr} divides integers")

    def map_floor_div(self, expr: p.FloorDiv | p.Remainder, /) -> None:
        self.rec(expr.numerator)
        self.rec(expr.denominator)
        if not (
            self._is_integer(expr.numerator) and self._is_integer(expr.denominator)
        ):
            raise _NoFunction(f"{expr} is no division of integers")
        self._check_integers((expr.numerator, expr.denominator), expr)

    map_remainder = map_floor_div

    def map_sum(self, expr: p.Sum | p.Product, /) -> None:
        for child in expr.children:
            self.rec(child)
        self._check_integers(expr.children, expr)

    map_product = map_sum

    def map_power(self, expr: p.Power, /) -> None:
        self.rec(expr.base)
        self.rec(expr.exponent)
        if self._is_integer(expr.base):
            # C computes other powers in floating point
            is_natural = isinstance(expr.exponent, int) and expr.exponent >= 0
            if not is_natural:
                raise _NoFunction(f"{expr} is a power of an integer")
            self._check_integers((expr.base,), expr)

    def map_comparison(self, expr: p.Comparison, /) -> None:
        self.rec(expr.left)
        self.rec(expr.right)
        self._check_integers((expr.left, expr.right), expr, _COMPARED_INTEGERS)

    def map_type_cast(self, expr: TypeCast, /) -> None:
        self.rec(expr.child)
        source, target = self._dtype_of(expr.child), expr.type.numpy_dtype
        if not is_inexact(target) or not np.can_cast(source, target, "same_kind"):
            raise _NoFunction(f"{expr.child} is cast from {source} to {target}")

    def _is_integer(self, expr: Expression) -> bool:
        return self._dtype_of(expr).kind in "biu"

    def _check_integers(
        self,
        children: tuple[Expression, ...],
        expr: Expression,
        allowed: frozenset[np.dtype[Any]] = _PLAIN_INTEGERS,
    ) -> None:
        """Refuse small and unsigned integers: C promotes or wraps them, numpy not."""
        # a literal takes the dtype of the other operand
        dtypes = [self._dtype_of(c) for c in children if not _is_number(c)]
        if all(d.kind in "biu" for d in dtypes) and not set(dtypes) <= allowed:
            raise _NoFunction(
                f"{expr} computes with integers of {set(map(str, dtypes))}"
            )


def is_plain_array(array: ArrayBase) -> bool:
    """Return whether every axis of an array has a stride, or none is known yet."""
    tags = array.dim_tags or ()
    return all(isinstance(tag, FixedStrideArrayDimTag) for tag in tags)


def _is_number(expr: Expression) -> bool:
    return isinstance(expr, _NUMBERS)


class _Sizer(IdentityMapper):  # type: ignore[misc]
    """Gives a dtype to literals, except in comparisons, calls and sums.

    There, Loopy writes literals in dtypes that do not depend on the assignee.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__()
        self._dtype = dtype

    def map_constant(self, expr: Any, /) -> Any:
        return self._dtype.type(expr) if isinstance(expr, float) else expr

    def map_comparison(self, expr: Expression, /) -> Expression:
        return expr

    map_call = map_reduction = map_comparison


class _Unresolver(IdentityMapper):  # type: ignore[misc]
    """Undoes the resolution of functions by Loopy's type inference."""

    def map_resolved_function(self, expr: ResolvedFunction, /) -> p.Variable:
        return p.Variable(expr.name)


class _Untagger(IdentityMapper):  # type: ignore[misc]
    """Replaces tagged variables by plain ones."""

    def map_tagged_variable(self, expr: p.Variable, /) -> p.Variable:
        return p.Variable(expr.name)


class _Texter(_Unresolver):
    """Writes numpy's numbers as Python's, and casts and powers of powers as calls."""

    def map_power(self, expr: p.Power, /) -> Expression:
        base, exponent = self.rec(expr.base), self.rec(expr.exponent)
        # pymbolic would write (a**b)**c as a**b**c, which means another value
        if isinstance(base, p.Power):
            return p.Call(p.Variable("pow"), (base, exponent))
        return p.Power(base, exponent)

    def map_constant(self, expr: Any, /) -> Any:
        return expr.item() if isinstance(expr, np.generic) else expr

    def map_type_cast(self, expr: TypeCast, /) -> p.Call:
        dtype = expr.type.numpy_dtype
        return p.Call(p.Variable(dtype.name), (self.rec(expr.child),))


MOST_FACTORS = 4
"""Maximum factors of equal indices for which all groupings are tried, 15 of four. Of
more factors, none or all are joined: ten factors have 115,975 groupings."""
MOST_GROUPINGS = 16
"""Maximum groupings to try."""

Group: TypeAlias = tuple[int, ...]
"""Positions of operands that become one operand, in increasing order."""


def regrouped(nest: RaisedNest) -> Iterator[RaisedNest]:
    """Yield the nest with joined operands, variants with the most operands first.

    Operands join if they have the same indices, in any order and without repetition.
    """
    # the first grouping is the nest itself
    groupings = islice(_list_groupings(nest.einsum), 1, MOST_GROUPINGS)
    return (_join_operands(nest, groups) for groups in groupings)


def _list_groupings(einsum: BatchedEinsum) -> Iterator[tuple[Group, ...]]:
    """Yield all groupings, the finest first, with groups in the order of positions."""
    alike: dict[object, list[int]] = {}
    for position, term in enumerate(einsum.inputs):
        is_array = all(not row[position].storage for row in einsum.rows)
        # a diagonal is a function of fewer arguments; the storage of a tree is fixed
        can_join = is_array and term and len(set(term)) == len(term)
        alike.setdefault(frozenset(term) if can_join else position, []).append(position)
    choices = [[*_list_ways(positions)] for positions in alike.values()]
    groupings = [
        tuple(sorted(group for partition in partitions for group in partition))
        for partitions in product(*choices)
    ]
    return iter(sorted(groupings, key=lambda groups: (-len(groups), groups)))


def _list_ways(positions: Sequence[int]) -> Iterator[list[Group]]:
    """Yield the groupings to try of operands with equal indices."""
    if len(positions) <= MOST_FACTORS:
        yield from map(list, list_partitions(positions))
        return
    yield [(position,) for position in positions]
    yield [tuple(positions)]


def _join_operands(nest: RaisedNest, groups: tuple[Group, ...]) -> RaisedNest:
    """Build the nest that has one operand for each group."""
    einsum_before, functions = nest.einsum, dict(nest.functions)
    rules: dict[str, lp.SubstitutionRule] = {}
    inputs = tuple(einsum_before.inputs[group[0]] for group in groups)

    def build_operand(row: Sequence[Operand], group: Group) -> Operand:
        factors = [row[k] for k in group]
        if len(factors) == 1:
            return factors[0]
        terms = [einsum_before.inputs[k] for k in group]
        name = "_times_".join(factor.name for factor in factors)
        names = [nest.nest.rules[factor.name] for factor in factors]
        # the same factors with other axes are another function
        while rules.get(name, rule := _build_rule(name, names, terms)) != rule:
            name += "_other"
        rules[name] = rule
        functions[name] = _build_function([functions[f.name] for f in factors], terms)
        dtype = np.result_type(*(factor.dtype for factor in factors))
        return replace(factors[0], name=name, dtype=np.dtype(dtype))

    rows = tuple(
        tuple(build_operand(row, group) for group in groups)
        for row in einsum_before.rows
    )
    einsum = BatchedEinsum(einsum_before.output, inputs, rows)
    used = {operand.name for operand in einsum.operands}
    all_rules = {**nest.nest.rules, **{name: name for name in rules}}
    return replace(
        nest,
        nest=replace(
            nest.nest,
            einsum=einsum,
            rules=constantdict({name: all_rules[name] for name in used}),
        ),
        functional=FunctionalBatchedEinsum(
            einsum, constantdict({name: functions[name] for name in used})
        ),
        new_rules=constantdict({**nest.new_rules, **rules}),
    )


def _build_rule(
    name: str, factors: Sequence[str], terms: Sequence[IndexList]
) -> lp.SubstitutionRule:
    """Build the rule for a product of rules, with the axes of the first one."""
    parameters = {index: f"_{axis}" for axis, index in enumerate(terms[0])}
    calls = tuple(
        p.Call(p.Variable(factor), tuple(p.Variable(parameters[i]) for i in term))
        for factor, term in zip(factors, terms, strict=True)
    )
    return lp.SubstitutionRule(name, (*parameters.values(),), p.Product(calls))


def _build_function(
    factors: Sequence[OperandFunction], terms: Sequence[IndexList]
) -> OperandFunction:
    """Build the product of functions, with the axes of the first one."""
    parameters = {index: f"_{axis}" for axis, index in enumerate(terms[0])}
    bodies = []
    for factor, term in zip(factors, terms, strict=True):
        new_names = (parameters[index] for index in term)
        bodies.append(
            _rename_parameters(
                factor, dict(zip(factor.parameters, new_names, strict=True))
            )
        )
    return OperandFunction((*parameters.values(),), "*".join(bodies))


def _rename_parameters(function: OperandFunction, names: Mapping[str, str]) -> str:
    """Rename the parameters in a body; parenthesize it unless it is a read or call."""
    tree = ast.parse(function.body, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    text = ast.unparse(tree)
    return text if isinstance(tree.body, ast.Subscript | ast.Call) else f"({text})"
