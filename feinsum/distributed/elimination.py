"""Exact variable elimination: the minimum of a sum of tables.

The sum of ``f(a, b) + g(b, c)`` over all a, b, c has as many terms as there are
combinations. Eliminating a first costs |a| |b|, and leaves a table of b alone::

    min over a, b, c of f(a,b) + g(b,c)
    = min over b, c of f'(b) + g(b,c)        f'(b)  = min over a of f(a,b)
    = min over c of g'(c)                    g'(c)  = min over b of f'(b) + g(b,c)

Then the choices follow in the opposite order: c, from it b, from it a.

Source: Dechter 1999 (bucket elimination); Bertele and Brioschi 1972.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_FINITE = 0.25
"""Share of finite values of a table below which it is worth listing these."""


@dataclass(frozen=True, eq=False)
class Table:
    """A cost for every combination of values of some variables.

    Attributes:
        variables: one for each axis of the array.
        costs: infinite for values that exclude each other.
    """

    variables: tuple[str, ...]
    costs: NDArray[np.float64]

    @cached_property
    def n_finite(self) -> int:
        """The number of combinations that do not exclude each other."""
        return int(np.isfinite(self.costs).sum())


def least_sum(tables: Sequence[Table]) -> tuple[float, dict[str, int]]:
    """Return the minimum of the sum of all tables, and the values that attain it.

    Variables are eliminated one after another: the tables that contain a variable are
    combined into one without it. The variable with the least work comes next.

    Complexity: exponential in the width of the elimination order, which is one for
    trees.

    >>> first = Table(("a", "b"), np.array([[3.0, 1.0], [0.0, 5.0]]))
    >>> second = Table(("b",), np.array([4.0, 0.5]))
    >>> least_sum([first, second])
    (1.5, {'b': 1, 'a': 0})
    """
    left = list(tables)
    work = {name: _elimination_work(name, left) for name in variables_of(left)}
    eliminated: list[tuple[str, list[Table]]] = []
    while work:
        # greedy: of a tree, a leaf comes first, which leaves no larger table
        chosen = min(work, key=work.__getitem__)
        parts = [t for t in left if chosen in t.variables]
        rest = _eliminate(parts, chosen)
        eliminated.append((chosen, parts))
        left = [*(t for t in left if chosen not in t.variables), rest]
        del work[chosen]
        # only the variables of the new table have other neighbors now
        work |= {name: _elimination_work(name, left) for name in rest.variables}
    total = float(sum(t.costs for t in left))
    choices: dict[str, int] = {}
    # the last variable eliminated depends on none; each one before, on later ones
    for name, parts in reversed(eliminated):
        costs: Any = sum(_costs_along(table, name, choices) for table in parts)
        choices[name] = int(costs.argmin())
    return total, choices


def _costs_along(
    table: Table, name: str, choices: Mapping[str, int]
) -> NDArray[np.float64]:
    """Return the costs of all values of a variable, with all others chosen."""
    index = tuple(slice(None) if v == name else choices[v] for v in table.variables)
    costs: NDArray[np.float64] = table.costs[index]
    return costs


def variables_of(tables: Sequence[Table]) -> dict[str, None]:
    """Return all variables once, in order."""
    return dict.fromkeys(v for table in tables for v in table.variables)


def _elimination_work(name: str, tables: Sequence[Table]) -> int:
    """Return the number of sums that it takes to eliminate a variable."""
    parts = [table for table in tables if name in table.variables]
    sizes: dict[str, int] = {}
    for table in parts:
        sizes.update(zip(table.variables, table.costs.shape, strict=True))
    whole = prod(sizes.values())
    sparse = _sparse_table(parts, name)
    # combinations with an infinite cost are never summed
    return whole if sparse is None else whole // sparse.costs.size * sparse.n_finite


def _eliminate(parts: Sequence[Table], name: str) -> Table:
    """Return the minimum over a variable of the sum of the tables that contain it."""
    sparse = _sparse_table(parts, name)
    if sparse is None:
        joined = _join(parts, name)
        return Table(joined.variables[:-1], joined.costs.min(axis=-1))
    rest = _join([table for table in parts if table is not sparse], name)
    return _eliminate_sparse(sparse, rest, name)


def _sparse_table(parts: Sequence[Table], name: str) -> Table | None:
    """Return the table of a variable most of whose values exclude each other, if any.

    Such a table links a map to the few distributions that fit it. All others must have
    no variable in common with it but this one.
    """
    if len(parts) < 2:
        return None
    sparsest = min(parts, key=lambda table: table.n_finite / max(1, table.costs.size))
    if sparsest.n_finite > MAX_FINITE * sparsest.costs.size:
        return None
    others = {v for table in parts if table is not sparsest for v in table.variables}
    return sparsest if others & {*sparsest.variables} == {name} else None


def _eliminate_sparse(sparse: Table, rest: Table, name: str) -> Table:
    """Return the minimum over a variable, from what is finite in one of two tables.

    Args:
        rest: with this variable last.
    """
    other_variables = tuple(v for v in sparse.variables if v != name)
    costs = np.moveaxis(sparse.costs, sparse.variables.index(name), -1)
    rows = costs.reshape(-1, costs.shape[-1])
    row, value = np.nonzero(np.isfinite(rows))
    # only rows with a finite value: np.minimum.reduceat knows no empty segment
    finite_rows, begins = np.unique(row, return_index=True)
    shape = rest.costs.shape[:-1]
    minimum = np.full((*shape, len(rows)), inf)
    if len(finite_rows):
        sums = rest.costs[..., value] + rows[row, value]
        minimum[..., finite_rows] = np.minimum.reduceat(sums, begins, axis=-1)
    whole = minimum.reshape((*shape, *costs.shape[:-1]))
    return Table((*rest.variables[:-1], *other_variables), whole)


def _join(tables: Sequence[Table], last: str) -> Table:
    variables = [v for v in variables_of(tables) if v != last] + [last]
    return Table(tuple(variables), sum_tables(tables, variables))


def sum_tables(tables: Sequence[Table], variables: Sequence[str]) -> Any:
    """Return the sum with an axis for each variable.

    Small tables come first: few sums are as large as the result.
    """
    total: Any = 0.0
    for table in sorted(tables, key=lambda table: table.costs.size):
        order = sorted(
            range(len(table.variables)),
            key=lambda k: variables.index(table.variables[k]),
        )
        shape = [1] * len(variables)
        for v, n in zip(table.variables, table.costs.shape, strict=True):
            shape[variables.index(v)] = n
        total = total + table.costs.transpose(order).reshape(shape)
    return total
