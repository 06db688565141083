"""Variable elimination: the minimum of a sum of tables.

The sum of ``f(a, b) + g(b, c)`` over all a, b, c has as many terms as there are
combinations. Eliminating a first costs |a| |b|, and leaves a table of b alone::

    min over a, b, c of f(a,b) + g(b,c)
    = min over b, c of f'(b) + g(b,c)        f'(b)  = min over a of f(a,b)
    = min over c of g'(c)                    g'(c)  = min over b of f'(b) + g(b,c)

Then the choices follow in the opposite order: c, from it b, from it a. Where tables are
joined in cycles, those that result may be too large: :func:`bounded_least_sum` gives
some variables a value first, and improves the choices afterwards.

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
"""Share of finite values of a table below which it is worth listing these."""

MIN_GAIN = 1e-9
"""Relative gain of an improvement: no rounding."""


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
    """The least sum of tables that was found.

    Attributes:
        choices: the value of every variable.
        is_exact: whether no other values have a lower sum.
    """

    total: float
    choices: dict[str, int]
    is_exact: bool


def bounded_least_sum(
    tables: Sequence[Table], blocks: Sequence[Sequence[str]], max_entries: int
) -> LeastSum:
    """Return a low sum of tables, without a table of more than so many entries.

    Where an elimination would need a larger table, the first variable of a block gets
    the value that looks best by itself. From the values that result, each block and
    each pair of blocks with a common table is optimized, with all others as they are,
    until nothing improves.

    Args:
        tables: the tables to sum.
        blocks: variables that belong together; the value of the first one leaves at
            least one for each of the others.
        max_entries: maximum number of entries of a table.

    >>> ring = [Table((a, b), np.array([[1.0, 0.0], [0.0, 2.0]]))
    ...         for a, b in ("ab", "bc", "cd", "da")]
    >>> bounded_least_sum(ring, ["a", "b", "c", "d"], max_entries=4).total
    0.0
    """
    least = _eliminate_all(tables, [block[0] for block in blocks], max_entries)
    if least.is_exact or least.total == inf:
        return least
    neighborhoods = _neighborhoods(tables, blocks)
    choices, is_better = least.choices, True
    while is_better:
        is_better = False
        for variables, joined in neighborhoods:
            others = {v: choices[v] for t in joined for v in t.variables}
            for v in variables:
                others.pop(v, None)
            sliced = [_restrict(table, others) for table in joined]
            before = sum(float(_restrict(t, choices).costs) for t in sliced)
            after = _eliminate_all(sliced, (), max_entries)
            if after.total < before - MIN_GAIN * (1 + abs(before)):
                choices, is_better = choices | after.choices, True
    total = sum(float(_restrict(table, choices).costs) for table in tables)
    return LeastSum(total, choices, is_exact=False)


def _neighborhoods(
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
        joined = [table for table in tables if variables & {*table.variables}]
        neighborhoods.append((variables, joined))
    return neighborhoods


def _eliminate_all(
    tables: Sequence[Table], fixable: Sequence[str], max_entries: float
) -> LeastSum:
    """Eliminate one variable after another, the one with the least work first.

    The tables that contain a variable are combined into one without it.

    Args:
        tables: the tables to sum.
        fixable: variables that get a value where elimination needs larger tables.
        max_entries: maximum number of entries of a table.
    """
    containing = {
        name: [table for table in tables if name in table.variables]
        for name in variables_of(tables)
    }
    total: Any = sum(float(table.costs) for table in tables if not table.variables)
    work = {name: _elimination_work(name, of) for name, of in containing.items()}
    fixed, eliminated = dict[str, int](), list[tuple[str, list[Table]]]()
    while work:
        # greedy: of a tree, a leaf comes first, which leaves no larger table
        chosen = min(work, key=work.__getitem__)
        new_tables: list[Table]
        if work[chosen] <= max_entries:
            parts = containing.pop(chosen)
            new_tables = [_eliminate(parts, chosen)]
            eliminated.append((chosen, parts))
        else:
            wide = [name for name in fixable if name in work]
            if not wide:
                return LeastSum(inf, {}, is_exact=False)
            # where the most tables meet, so that few variables are fixed
            chosen = max(wide, key=work.__getitem__)
            parts = containing.pop(chosen)
            fixed[chosen] = _best_value(chosen, parts)
            new_tables = [_restrict(table, fixed) for table in parts]
        del work[chosen]
        total += sum(float(t.costs) for t in new_tables if not t.variables)
        # only these have other neighbors now
        for name in variables_of(new_tables):
            others = [table for table in containing[name] if table not in parts]
            containing[name] = others + [t for t in new_tables if name in t.variables]
            work[name] = _elimination_work(name, containing[name])
    is_exact, choices = not fixed, fixed
    # the last variable eliminated depends on none; each one before, on later ones
    for name, parts in reversed(eliminated):
        costs: Any = sum(_costs_along(table, name, choices) for table in parts)
        choices[name] = int(costs.argmin())
    return LeastSum(float(total), choices, is_exact)


def _best_value(name: str, tables: Sequence[Table]) -> int:
    """Return the value with the least sum of what each table costs at least."""
    total: Any = 0.0
    for table in tables:
        costs = np.moveaxis(table.costs, table.variables.index(name), 0)
        total = total + costs.reshape(len(costs), -1).min(axis=1)
    return int(total.argmin())


def _restrict(table: Table, values: Mapping[str, int]) -> Table:
    """Return a table for given values of some variables, without these."""
    free = tuple(v for v in table.variables if v not in values)
    if len(free) == len(table.variables):
        return table
    index = tuple(values.get(v, slice(None)) for v in table.variables)
    return Table(free, np.asarray(table.costs[index]))


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


def _elimination_work(name: str, parts: Sequence[Table]) -> int:
    """Return the number of sums that it takes to eliminate a variable.

    Args:
        name: the variable.
        parts: the tables that contain it.
    """
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
        sparse: the table with few finite entries.
        rest: the other table, with this variable last.
        name: the variable to eliminate.
    """
    other_variables = tuple(v for v in sparse.variables if v != name)
    costs = np.moveaxis(sparse.costs, sparse.variables.index(name), -1)
    rows = costs.reshape(-1, costs.shape[-1])
    row, value = np.nonzero(np.isfinite(rows))
    # only rows with a finite value: np.minimum.reduceat allows no empty segment
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
