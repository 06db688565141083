"""Operands of equal indices as one: the ways to read a product as fewer functions.

A kernel that multiplies by ``exp(u[e,j])*u[e,j]`` is raised with the two operands
``ej,ej``. Facts know it with one, whose function is the product. So a look-up asks for
every grouping, from the finest to the coarsest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import TypeAlias

import loopy as lp
import numpy as np
from constantdict import constantdict
from pymbolic import primitives as p

from feinsum.ir import (
    BatchedEinsum,
    FunctionalBatchedEinsum,
    IndexList,
    Operand,
    OperandFunction,
)
from feinsum.raising.nest import RaisedNest

MOST_FACTORS = 4
"""Factors of equal indices whose 15 groupings are all tried; of more, none or all are
joined, since the number of groupings explodes: ten factors have 115,975."""
MOST_GROUPINGS = 16
"""Most groupings that are requested."""

Group: TypeAlias = tuple[int, ...]
"""Positions of operands that become one, in their order."""


def regrouped(nest: RaisedNest) -> Iterator[RaisedNest]:
    """The nest with fewer operands, those with the most of them first.

    Operands are joined that have the same indices, in whatever order, each once.
    """
    whole = islice(_groupings(nest.einsum), 1, MOST_GROUPINGS)
    return (_joined(nest, groups) for groups in whole)


def _groupings(einsum: BatchedEinsum) -> Iterator[tuple[Group, ...]]:
    """All of them, the finest first; each has its groups in the order of positions."""
    alike: dict[object, list[int]] = {}
    for at, term in enumerate(einsum.inputs):
        is_array = all(not row[at].storage for row in einsum.rows)
        can_join = is_array and term and len(set(term)) == len(term)
        alike.setdefault(frozenset(term) if can_join else at, []).append(at)
    choices = [[*_ways(positions)] for positions in alike.values()]
    found = [
        tuple(sorted(group for part in parts for group in part))
        for parts in product(*choices)
    ]
    return iter(sorted(found, key=lambda groups: (-len(groups), groups)))


def _ways(positions: Sequence[int]) -> Iterator[list[Group]]:
    """The ways to group operands of equal indices that are tried."""
    if len(positions) <= MOST_FACTORS:
        yield from _partitions(positions)
        return
    yield [(at,) for at in positions]
    yield [tuple(positions)]


def _partitions(positions: Sequence[int]) -> Iterator[list[Group]]:
    """All ways to put positions into groups.

    >>> [*_partitions([0, 1])]
    [[(0,), (1,)], [(0, 1)]]
    """
    if not positions:
        yield []
        return
    *others, last = positions
    for parts in _partitions(others):
        yield [*parts, (last,)]
        for at, part in enumerate(parts):
            yield [*parts[:at], (*part, last), *parts[at + 1 :]]


def _joined(nest: RaisedNest, groups: tuple[Group, ...]) -> RaisedNest:
    """The nest with one operand for each group."""
    old, functions = nest.einsum, dict(nest.functions)
    rules: dict[str, lp.SubstitutionRule] = {}
    inputs = tuple(old.inputs[group[0]] for group in groups)

    def operand_of(row: Sequence[Operand], group: Group) -> Operand:
        factors = [row[at] for at in group]
        if len(factors) == 1:
            return factors[0]
        terms = [old.inputs[at] for at in group]
        name = "_times_".join(factor.name for factor in factors)
        names = [nest.nest.rules[factor.name] for factor in factors]
        # the same factors are another function at other axes
        while rules.get(name, rule := _rule(name, names, terms)) != rule:
            name += "_other"
        rules[name] = rule
        functions[name] = _function([functions[f.name] for f in factors], terms)
        dtype = np.result_type(*(factor.dtype for factor in factors))
        return replace(factors[0], name=name, dtype=np.dtype(dtype))

    rows = tuple(tuple(operand_of(row, group) for group in groups) for row in old.rows)
    einsum = BatchedEinsum(old.output, inputs, rows)
    used = {operand.name for operand in einsum.operands}
    known = {**nest.nest.rules, **{name: name for name in rules}}
    return replace(
        nest,
        nest=replace(
            nest.nest,
            einsum=einsum,
            rules=constantdict({name: known[name] for name in used}),
        ),
        functional=FunctionalBatchedEinsum(
            einsum, constantdict({name: functions[name] for name in used})
        ),
        new_rules=constantdict({**nest.new_rules, **rules}),
    )


def _rule(
    name: str, factors: Sequence[str], terms: Sequence[IndexList]
) -> lp.SubstitutionRule:
    """The product of rules, with the axes of the first."""
    parameters = {index: f"_{axis}" for axis, index in enumerate(terms[0])}
    calls = tuple(
        p.Call(p.Variable(factor), tuple(p.Variable(parameters[i]) for i in term))
        for factor, term in zip(factors, terms, strict=True)
    )
    return lp.SubstitutionRule(name, (*parameters.values(),), p.Product(calls))


def _function(
    factors: Sequence[OperandFunction], terms: Sequence[IndexList]
) -> OperandFunction:
    """The product of functions, with the axes of the first."""
    parameters = {index: f"_{axis}" for axis, index in enumerate(terms[0])}
    bodies = []
    for one, term in zip(factors, terms, strict=True):
        places = (parameters[index] for index in term)
        bodies.append(_renamed(one, dict(zip(one.parameters, places, strict=True))))
    return OperandFunction((*parameters.values(),), "*".join(bodies))


def _renamed(function: OperandFunction, names: Mapping[str, str]) -> str:
    """The body in other names of the parameters, in parentheses unless it is a read."""
    tree = ast.parse(function.body, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    text = ast.unparse(tree)
    return text if isinstance(tree.body, ast.Subscript | ast.Call) else f"({text})"
