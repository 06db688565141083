"""Variable elimination: the minimum of a sum of tables.

The sum of ``f(a, b) + g(b, c)`` over all a, b, c has as many terms as there are
combinations. Eliminating a first costs |a| |b|, and leaves a table of b alone::

    min over a, b, c of f(a,b) + g(b,c)
    = min over b, c of f'(b) + g(b,c)        f'(b)  = min over a of f(a,b)
    = min over c of g'(c)                    g'(c)  = min over b of f'(b) + g(b,c)

Then values are chosen in the opposite order: c, from it b, from it a. If tables form
cycles, elimination may need tables that are too large. :func:`find_low_sum` then
fixes the values of some variables first, and improves these choices afterwards.

Source: Dechter 1999 (bucket elimination); Bertele and Brioschi 1972.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_FINITE = 0.25
"""Share of finite costs in a table up to which it is handled as sparse."""

MIN_GAIN = 1e-9
"""Relative gain from which a change is an improvement, and not rounding."""


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

    Complexity: exponential in the width of the elimination order, which is one for
    trees.

    >>> first = Table(("a", "b"), np.array([[3.0, 1.0], [0.0, 5.0]]))
    >>> second = Table(("b",), np.array([4.0, 0.5]))
    >>> least_sum([first, second])
    (1.5, {'b': 1, 'a': 0})
    """
    least = _eliminate_all(tables, (), inf)
    return least.total, least.choices


class LeastSum(NamedTuple):
    """The least sum of tables that a search reached.

    Attributes:
        total: the sum.
        choices: the value of every variable.
        is_exact: whether no other values have a lower sum.
    """

    total: float
    choices: dict[str, int]
    is_exact: bool


def find_low_sum(
    tables: Sequence[Table], blocks: Sequence[Sequence[str]], max_entries: int
) -> LeastSum:
    """Return a low sum of tables, without making a table above ``max_entries``.

    Where an elimination would need a larger table, the first variable of a block gets
    the value with the least lower bound of its costs. Then each block, and each pair of
    blocks with a common table, is optimized while all other variables are fixed, until
    nothing improves.

    Args:
        tables: the tables to sum.
        blocks: variables that are optimized together; every value of the first variable
            is compatible with at least one value of each of the others.
        max_entries: maximum number of entries of a table.

    >>> ring = [Table((a, b), np.array([[1.0, 0.0], [0.0, 2.0]]))
    ...         for a, b in ("ab", "bc", "cd", "da")]
    >>> find_low_sum(ring, ["a", "b", "c", "d"], max_entries=4).total
    0.0
    """
    least = _eliminate_all(tables, [block[0] for block in blocks], max_entries)
    if least.is_exact or least.total == inf:
        return least
    neighborhoods = _list_neighborhoods(tables, blocks)
    choices, is_better = least.choices, True
    while is_better:
        is_better = False
        for variables, touching in neighborhoods:
            values_outside = {
                v: choices[v]
                for sliced_table in touching
                for v in sliced_table.variables
            }
            for v in variables:
                values_outside.pop(v, None)
            sliced = [_restrict(table, values_outside) for table in touching]
            total_before = sum(
                float(_restrict(sliced_table, choices).costs) for sliced_table in sliced
            )
            least_joined = _eliminate_all(sliced, (), max_entries)
            if least_joined.total < total_before - MIN_GAIN * (1 + abs(total_before)):
                choices, is_better = choices | least_joined.choices, True
    total = sum(float(_restrict(table, choices).costs) for table in tables)
    return LeastSum(total, choices, is_exact=False)


def _list_neighborhoods(
    tables: Sequence[Table], blocks: Sequence[Sequence[str]]
) -> list[tuple[set[str], list[Table]]]:
    """Return the variables of each block and pair of blocks, with their tables."""
    block_of = {v: k for k, block in enumerate(blocks) for v in block}
    pairs = {
        pair
        for table in tables
        for pair in combinations(sorted({block_of[v] for v in table.variables}), 2)
    }
    chosen = [*((k,) for k in range(len(blocks))), *sorted(pairs)]
    neighborhoods = []
    for numbers in chosen:
        variables = {v for k in numbers for v in blocks[k]}
        touching = [table for table in tables if variables & {*table.variables}]
        neighborhoods.append((variables, touching))
    return neighborhoods


def _eliminate_all(
    tables: Sequence[Table], fixable: Sequence[str], max_entries: float
) -> LeastSum:
    """Eliminate the variables one by one, the one with the least work first.

    The tables that contain a variable are combined into one without it.

    Args:
        tables: the tables to sum.
        fixable: variables that may be fixed if their elimination needs larger tables.
        max_entries: maximum number of entries of a table.
    """
    containing = {
        name: [table for table in tables if name in table.variables]
        for name in list_variables(tables)
    }
    total: Any = sum(float(table.costs) for table in tables if not table.variables)
    work = {name: _count_sums(name, joined) for name, joined in containing.items()}
    fixed, eliminated = dict[str, int](), list[tuple[str, list[Table]]]()
    while work:
        # greedy; in a tree, this eliminates leaves first, which makes no larger table
        chosen = min(work, key=work.__getitem__)
        new_tables: list[Table]
        if work[chosen] <= max_entries:
            joined_tables = containing.pop(chosen)
            new_tables = [_eliminate(joined_tables, chosen)]
            eliminated.append((chosen, joined_tables))
        else:
            wide = [name for name in fixable if name in work]
            if not wide:
                return LeastSum(inf, {}, is_exact=False)
            # where the most tables meet, so that few variables are fixed
            chosen = max(wide, key=work.__getitem__)
            joined_tables = containing.pop(chosen)
            fixed[chosen] = _choose_value(chosen, joined_tables)
            new_tables = [_restrict(table, fixed) for table in joined_tables]
        del work[chosen]
        total += sum(float(t.costs) for t in new_tables if not t.variables)
        # only the variables of the new tables have other neighbors now
        for name in list_variables(new_tables):
            unchanged = [
                table for table in containing[name] if table not in joined_tables
            ]
            containing[name] = unchanged + [
                t for t in new_tables if name in t.variables
            ]
            work[name] = _count_sums(name, containing[name])
    is_exact, choices = not fixed, fixed
    # the value of a variable depends only on those eliminated after it
    for name, joined_tables in reversed(eliminated):
        # all other variables are chosen
        costs: Any = sum(_restrict(table, choices).costs for table in joined_tables)
        choices[name] = int(costs.argmin())
    return LeastSum(float(total), choices, is_exact)


def _choose_value(name: str, tables: Sequence[Table]) -> int:
    """Return the value with the least lower bound: the sum of the tables' minima."""
    total: Any = 0.0
    for table in tables:
        costs = np.moveaxis(table.costs, table.variables.index(name), 0)
        total = total + costs.reshape(len(costs), -1).min(axis=1)
    return int(total.argmin())


def _restrict(table: Table, values: Mapping[str, int]) -> Table:
    """Fix the values of some variables, which the returned table no longer has."""
    free = tuple(v for v in table.variables if v not in values)
    if len(free) == len(table.variables):
        return table
    index = tuple(values.get(v, slice(None)) for v in table.variables)
    return Table(free, np.asarray(table.costs[index]))


def list_variables(tables: Sequence[Table]) -> dict[str, None]:
    """Return all variables once, in order."""
    return dict.fromkeys(v for table in tables for v in table.variables)


def _count_sums(name: str, tables: Sequence[Table]) -> int:
    """Count the sums that it takes to eliminate a variable from the tables with it."""
    sizes: dict[str, int] = {}
    for table in tables:
        sizes.update(zip(table.variables, table.costs.shape, strict=True))
    n_combinations = prod(sizes.values())
    sparse = _find_sparse_table(tables, name)
    # combinations with an infinite cost are never summed
    return (
        n_combinations
        if sparse is None
        else n_combinations // sparse.costs.size * sparse.n_finite
    )


def _eliminate(tables: Sequence[Table], name: str) -> Table:
    """Minimize over a variable the sum of the tables that contain it."""
    sparse = _find_sparse_table(tables, name)
    if sparse is None:
        joined = _join(tables, name)
        return Table(joined.variables[:-1], joined.costs.min(axis=-1))
    dense = _join([table for table in tables if table is not sparse], name)
    return _eliminate_sparse(sparse, dense, name)


def _find_sparse_table(tables: Sequence[Table], name: str) -> Table | None:
    """Return the table with few finite costs, if there is one.

    Such a table links a map to the few distributions that fit it. It qualifies only if
    ``name`` is the only variable that it shares with the other tables.
    """
    if len(tables) < 2:
        return None
    sparsest = min(tables, key=lambda table: table.n_finite / max(1, table.costs.size))
    if sparsest.n_finite > MAX_FINITE * sparsest.costs.size:
        return None
    other_variables = {
        v for table in tables if table is not sparsest for v in table.variables
    }
    return sparsest if other_variables & {*sparsest.variables} == {name} else None


def _eliminate_sparse(sparse: Table, dense: Table, name: str) -> Table:
    """Minimize the sum of two tables over a variable, at the finite costs of one.

    Args:
        sparse: the table with few finite costs.
        dense: the other table, with this variable last.
        name: the variable to eliminate.
    """
    other_variables = tuple(v for v in sparse.variables if v != name)
    costs = np.moveaxis(sparse.costs, sparse.variables.index(name), -1)
    rows = costs.reshape(-1, costs.shape[-1])
    row, value = np.nonzero(np.isfinite(rows))
    # only rows with a finite value: np.minimum.reduceat allows no empty segment
    finite_rows, begins = np.unique(row, return_index=True)
    shape = dense.costs.shape[:-1]
    minimum = np.full((*shape, len(rows)), inf)
    if len(finite_rows):
        sums = dense.costs[..., value] + rows[row, value]
        minimum[..., finite_rows] = np.minimum.reduceat(sums, begins, axis=-1)
    costs_left = minimum.reshape((*shape, *costs.shape[:-1]))
    return Table((*dense.variables[:-1], *other_variables), costs_left)


def _join(tables: Sequence[Table], last: str) -> Table:
    variables = [v for v in list_variables(tables) if v != last] + [last]
    return Table(tuple(variables), sum_tables(tables, variables))


def sum_tables(tables: Sequence[Table], variables: Sequence[str]) -> Any:
    """Return the sum with an axis for each variable.

    Small tables are added first, so that few intermediate sums are as large as the
    result.
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
