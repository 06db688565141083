"""Exact variable elimination: the minimum of a sum of tables.

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

MOST_FINITE = 0.25
"""Share of the values of a table that is worth listing the finite ones."""


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
    """The minimum of the sum of all tables, and the values that attain it.

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
    work = {name: _work(name, left) for name in _variables(left)}
    made: list[tuple[str, list[Table]]] = []
    while work:
        chosen = min(work, key=work.__getitem__)
        parts = [t for t in left if chosen in t.variables]
        rest = _least(parts, chosen)
        made.append((chosen, parts))
        left = [*(t for t in left if chosen not in t.variables), rest]
        del work[chosen]
        work |= {name: _work(name, left) for name in rest.variables}
    total = float(sum(t.costs for t in left))
    choices: dict[str, int] = {}
    for name, parts in reversed(made):
        costs: Any = sum(_along(table, name, choices) for table in parts)
        choices[name] = int(costs.argmin())
    return total, choices


def _along(table: Table, name: str, choices: Mapping[str, int]) -> NDArray[np.float64]:
    """The costs of all values of a variable, with all others chosen."""
    at = tuple(slice(None) if v == name else choices[v] for v in table.variables)
    found: NDArray[np.float64] = table.costs[at]
    return found


def _variables(tables: Sequence[Table]) -> dict[str, None]:
    return dict.fromkeys(v for table in tables for v in table.variables)


def _work(name: str, tables: Sequence[Table]) -> int:
    """The number of sums that it takes to eliminate a variable."""
    parts = [table for table in tables if name in table.variables]
    sizes: dict[str, int] = {}
    for table in parts:
        sizes.update(zip(table.variables, table.costs.shape, strict=True))
    whole = prod(sizes.values())
    sparse = _sparse(parts, name)
    return whole if sparse is None else whole // sparse.costs.size * sparse.n_finite


def _least(parts: Sequence[Table], name: str) -> Table:
    """The minimum over a variable of the sum of the tables that contain it."""
    sparse = _sparse(parts, name)
    if sparse is None:
        joined = _join(parts, name)
        return Table(joined.variables[:-1], joined.costs.min(axis=-1))
    rest = _join([table for table in parts if table is not sparse], name)
    return _least_of_few(sparse, rest, name)


def _sparse(parts: Sequence[Table], name: str) -> Table | None:
    """The table of a variable most of whose values exclude each other, if any.

    All others must have no variable in common with it but this one.
    """
    if len(parts) < 2:
        return None
    found = min(parts, key=lambda table: table.n_finite / max(1, table.costs.size))
    if found.n_finite > MOST_FINITE * found.costs.size:
        return None
    others = {v for table in parts if table is not found for v in table.variables}
    return found if others & {*found.variables} == {name} else None


def _least_of_few(sparse: Table, rest: Table, name: str) -> Table:
    """The minimum over a variable, from what is finite in one of two tables.

    Args:
        rest: with this variable last.
    """
    own = tuple(v for v in sparse.variables if v != name)
    costs = np.moveaxis(sparse.costs, sparse.variables.index(name), -1)
    rows = costs.reshape(-1, costs.shape[-1])
    row, value = np.nonzero(np.isfinite(rows))
    # only rows with a finite value: np.minimum.reduceat knows no empty segment
    there, begins = np.unique(row, return_index=True)
    shape = rest.costs.shape[:-1]
    found = np.full((*shape, len(rows)), inf)
    if len(there):
        sums = rest.costs[..., value] + rows[row, value]
        found[..., there] = np.minimum.reduceat(sums, begins, axis=-1)
    whole = found.reshape((*shape, *costs.shape[:-1]))
    return Table((*rest.variables[:-1], *own), whole)


def _join(tables: Sequence[Table], last: str) -> Table:
    variables = [v for v in _variables(tables) if v != last] + [last]
    return Table(tuple(variables), _expanded(tables, variables))


def _expanded(tables: Sequence[Table], variables: Sequence[str]) -> Any:
    """The sum of tables, small ones first: few sums are as large as the result."""
    total: Any = 0.0
    for table in sorted(tables, key=lambda one: one.costs.size):
        order = sorted(
            range(len(table.variables)),
            key=lambda k: variables.index(table.variables[k]),
        )
        shape = [1] * len(variables)
        for v, n in zip(table.variables, table.costs.shape, strict=True):
            shape[variables.index(v)] = n
        total = total + table.costs.transpose(order).reshape(shape)
    return total
