"""Exact variable elimination: the minimum of a sum of tables.

Source: Dechter 1999 (bucket elimination); Bertele and Brioschi 1972.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Table", "least_by_trial", "least_sum"]


@dataclass(frozen=True, eq=False)
class Table:
    """A cost for every combination of values of some variables.

    Attributes:
        variables: one for each axis of the array.
        costs: infinite where values exclude each other.
    """

    variables: tuple[str, ...]
    costs: NDArray[np.float64]


def least_sum(tables: Sequence[Table]) -> tuple[float, dict[str, int]]:
    """The minimum of the sum of all tables, and the values that attain it.

    Variables are eliminated one after another: the tables that contain a variable are
    combined into one without it. The variable with the smallest combined table comes
    next.

    Complexity: exponential in the width of the elimination order, which is one for
    trees.

    >>> first = Table(("a", "b"), np.array([[3.0, 1.0], [0.0, 5.0]]))
    >>> second = Table(("b",), np.array([4.0, 0.5]))
    >>> least_sum([first, second])
    (1.5, {'b': 1, 'a': 0})
    """
    left = list(tables)
    made: list[tuple[str, Table]] = []
    while variables := _variables(left):
        chosen = min(variables, key=lambda name: _joined_size(name, left))
        joined = _join([t for t in left if chosen in t.variables], last=chosen)
        made.append((chosen, joined))
        rest = Table(joined.variables[:-1], joined.costs.min(axis=-1))
        left = [*(t for t in left if chosen not in t.variables), rest]
    total = float(sum(t.costs for t in left))
    choices: dict[str, int] = {}
    for name, joined in reversed(made):
        at = tuple(choices[v] for v in joined.variables[:-1])
        choices[name] = int(joined.costs[at].argmin())
    return total, choices


def least_by_trial(tables: Sequence[Table]) -> tuple[float, dict[str, int]]:
    """The same by brute force, as a reference for elimination."""
    variables = list(_variables(tables))
    whole = _expanded(tables, variables)
    at = np.unravel_index(int(whole.argmin()), whole.shape)
    return float(whole.min()), dict(zip(variables, map(int, at), strict=True))


def _variables(tables: Sequence[Table]) -> dict[str, None]:
    return dict.fromkeys(v for table in tables for v in table.variables)


def _joined_size(name: str, tables: Sequence[Table]) -> int:
    sizes: dict[str, int] = {}
    for table in tables:
        if name in table.variables:
            sizes.update(zip(table.variables, table.costs.shape, strict=True))
    size = 1
    for n in sizes.values():
        size *= n
    return size


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
