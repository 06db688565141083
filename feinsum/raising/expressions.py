"""Queries and rewrites of pymbolic expressions: accesses, terms, substitution.

An *access* is a variable, or a subscript with its array. The accesses of ``x`` in
``2*x[i] + A[x[j], k]`` are ``x[i]`` and ``x[j]``; those of ``A`` are ``A[x[j], k]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import loopy as lp
from loopy.symbolic import IdentityMapper, Reduction, SubstitutionMapper, WalkMapper
from pymbolic import primitives as p
from pymbolic.mapper import Mapper
from pymbolic.mapper.substitutor import make_subst_func

Expression: TypeAlias = Any
"""A pymbolic expression."""

Subscripts: TypeAlias = tuple[Expression, ...]
"""The subscripts of one access; none for a scalar."""

T = TypeVar("T")


class EveryNode(WalkMapper):  # type: ignore[misc]
    """A walk through all nodes, including repeated ones.

    Loopy's ``UncachedWalkMapper`` does cache: it visits the two ``x`` of ``x*x`` once.
    """

    def __call__(self, expr: Any, /) -> None:
        Mapper.__call__(self, expr)

    rec = __call__


class _Collector(WalkMapper):  # type: ignore[misc]
    """Collects the distinct nodes of some classes, outer ones first."""

    def __init__(self, kinds: tuple[type, ...]) -> None:
        super().__init__()
        self.kinds = kinds
        self.nodes: list[Any] = []

    def visit(self, expr: Expression, /) -> bool:
        if isinstance(expr, self.kinds):
            self.nodes.append(expr)
        return True


def collect_nodes(expression: Expression, *kinds: type[T]) -> list[T]:
    """Return the distinct nodes of some classes in an expression, outer ones first.

    >>> from pymbolic import parse
    >>> [str(node) for node in collect_nodes(parse("x[i] + A[x[i], k]"), p.Subscript)]
    ['x[i]', 'A[x[i], k]']
    """
    collector = _Collector(kinds)
    collector(expression)
    return collector.nodes


def has_reduction(expression: Expression) -> bool:
    """Return whether an expression contains a reduction."""
    return bool(collect_nodes(expression, Reduction))


def has_quotient(expression: Expression) -> bool:
    """Return whether an expression contains a quotient."""
    return bool(collect_nodes(expression, p.Quotient))


class _AccessFinder(EveryNode):
    """Collects all accesses, with repetitions."""

    def __init__(self) -> None:
        super().__init__()
        self.accesses: list[Expression] = []

    def map_variable(self, expr: p.Variable, /) -> None:
        self.accesses.append(expr)

    def map_subscript(self, expr: p.Subscript, /) -> None:
        # an aggregate may be an expression, such as a call
        if isinstance(expr.aggregate, p.Variable):
            self.accesses.append(expr)
        else:
            self.rec(expr.aggregate)
        for index in expr.index_tuple:
            self.rec(index)


def list_accesses(expression: Expression) -> list[Expression]:
    """Return every access in an expression without rules, repetitions included."""
    finder = _AccessFinder()
    finder(expression)
    return finder.accesses


def list_accesses_of(expression: Expression, name: str) -> list[Expression]:
    """Return every access of one array or scalar in an expression without rules."""
    return [
        access for access in list_accesses(expression) if get_array_name(access) == name
    ]


def get_array_name(access: Expression) -> str:
    """Return the name of the array or scalar of an access or an assignee."""
    return str(getattr(getattr(access, "aggregate", access), "name", ""))


def get_subscripts(access: Expression) -> Subscripts:
    """Return the subscripts of a read or an assignee; none for a scalar."""
    return access.index_tuple if isinstance(access, p.Subscript) else ()


class _AccessRewriter(IdentityMapper):  # type: ignore[misc]
    """Replaces the accesses of one name; subscripts inside it come first."""

    def __init__(self, name: str, rewrite: Callable[[Subscripts], Expression]) -> None:
        super().__init__()
        self.name, self.rewrite = name, rewrite

    def map_variable(self, expr: p.Variable, /) -> Expression:
        return self.rewrite(()) if expr.name == self.name else expr

    map_tagged_variable = map_variable

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        indices = tuple(self.rec(index) for index in expr.index_tuple)
        if getattr(expr.aggregate, "name", None) == self.name:
            return self.rewrite(indices)
        return p.Subscript(self.rec(expr.aggregate), indices)

    def map_reduction(self, expr: Reduction, /) -> Reduction:
        # Loopy's mapper would also rewrite the inames of the sum, as variables
        return Reduction(
            expr.operation, expr.inames, self.rec(expr.expr), expr.allow_simultaneous
        )


def rewrite_accesses(
    expression: Expression, name: str, rewrite: Callable[[Subscripts], Expression]
) -> Expression:
    """Replace every access of ``name`` in an expression.

    Args:
        expression: the expression to rewrite.
        name: the array or scalar whose accesses are replaced.
        rewrite: maps the subscripts of an access to the expression that replaces it.
    """
    return _AccessRewriter(name, rewrite)(expression)


def substitute(expression: Expression, values: Mapping[str, Expression]) -> Expression:
    """Substitute values for variables in an expression.

    >>> from pymbolic import parse
    >>> print(substitute(parse("v[p] + q"), {"p": 2 * p.Variable("k")}))
    v[2*k] + q
    """
    return SubstitutionMapper(make_subst_func(values))(expression)


def rename(expression: Expression, names: Mapping[str, str]) -> Expression:
    """Rename variables in an expression.

    >>> from pymbolic import parse
    >>> print(rename(parse("v[p] + q"), {"p": "k"}))
    v[k] + q
    """
    return substitute(
        expression, {name: p.Variable(new_name) for name, new_name in names.items()}
    )


def make_product(factors: Sequence[Expression]) -> Expression:
    """Return the product of factors; 1 if there are none."""
    if not factors:
        return 1
    return factors[0] if len(factors) == 1 else p.Product(tuple(factors))


def make_sum(terms: Sequence[Expression]) -> Expression:
    """Return the sum of terms; 0 if there are none."""
    if not terms:
        return 0
    return terms[0] if len(terms) == 1 else p.Sum(tuple(terms))


def list_terms(expression: Expression) -> list[Expression]:
    """Return the terms of nested sums.

    >>> from pymbolic import parse
    >>> [str(term) for term in list_terms(parse("a + (b + c*d)"))]
    ['a', 'b', 'c*d']
    """
    # pymbolic has no differences: a - b is a sum of a and -1*b
    if not isinstance(expression, p.Sum):
        return [expression]
    return [term for child in expression.children for term in list_terms(child)]


def find_added_term(assignee: Expression, value: Expression) -> Expression | None:
    """Return the term that an assignment adds to its assignee; None if it adds none.

    >>> from pymbolic import parse
    >>> print(find_added_term(parse("y[i]"), parse("y[i] + 2*x[i]")))
    2*x[i]
    """
    terms = list_terms(value)
    # the assignee must occur once: y = y + y + x doubles y
    added = [term for term in terms if term != assignee]
    return make_sum(added) if added and len(added) == len(terms) - 1 else None


def is_zero(expression: Expression) -> bool:
    """Return whether an expression is the number zero.

    >>> is_zero(0.0), is_zero(p.Variable("x"))
    (True, False)
    """
    return isinstance(expression, (int, float, complex)) and expression == 0


class _NodeCounter(EveryNode):
    """Counts the nodes of an expression, until there are too many."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.n_nodes = 0

    def visit(self, _expr: Expression, /) -> bool:
        self.n_nodes += 1
        return self.n_nodes <= self.limit


def count_expression_nodes(expression: Expression, limit: int) -> int:
    """Count the nodes, stopping once there are more than ``limit``."""
    counter = _NodeCounter(limit)
    counter(expression)
    return counter.n_nodes


def collect_loops(*instructions: lp.InstructionBase) -> frozenset[str]:
    """Return the loops of instructions and of the sums in them."""
    return frozenset[str]().union(
        *(insn.within_inames | insn.reduction_inames() for insn in instructions)
    )


def find_writers(kernel: lp.LoopKernel) -> Mapping[str, tuple[str, ...]]:
    """Return the instructions that assign to each variable, by variable name."""
    writers: dict[str, tuple[str, ...]] = {}
    for insn in kernel.instructions:
        for name in insn.assignee_var_names():
            writers[name] = (*writers.get(name, ()), insn.id)
    return writers
