"""Searches of orders: the one door to the library that has them.

The count of operations is a convention, so up to eight operands it has an exhaustive
search of its own that no release of a library changes (:mod:`feinsum.paths.counted`);
recipes of ``element_blocked`` rely on it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any, Literal, TypeAlias

import opt_einsum

__all__ = [
    "EXACT_UP_TO",
    "MINIMIZED",
    "Path",
    "PathMethod",
    "contract_greedily",
    "find_path",
    "path_outputs",
]

Path: TypeAlias = tuple[tuple[int, ...], ...]
"""Positions to contract at each step; the result is appended at the end."""

PathMethod: TypeAlias = Literal["auto", "greedy", "flops", "combo", "write", "size"]

OPTIMAL_UP_TO = 6
"""Most operands for which ``auto`` tries all orders; six have 2700."""
EXACT_UP_TO = 7
"""Most operands for which something is minimized; for more, the order is greedy."""
MINIMIZED: tuple[PathMethod, ...] = ("flops", "combo", "write", "size")
"""Quantities to minimize: operations, operations and entries written, entries written,
the largest product.
"""

Search: TypeAlias = Callable[..., Any]
"""A search of opt_einsum: from index sets of operands and result, and extents."""


def find_path(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    *,
    method: PathMethod = "auto",
    max_entries: int | None = None,
) -> Path:
    """An order in which to multiply operands.

    What takes long is done for few operands only, whatever the method: for more, the
    search is greedy.

    Args:
        inputs: the indices of each operand.
        output: those of the result.
        extents: of the indices. Their order decides between equals, and not that of
            sets of text, which is another in every process.
        method: ``auto`` for few operations, ``greedy``, or what is made as small as
            possible; see :data:`MINIMIZED`.
        max_entries: of any product ahead of the result. Where no product is that
            small, one step takes all that is left.

    Source: Smith and Gray 2018 (opt_einsum), which searches; Pfeifer, Haegeman and
    Verstraete 2014.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> find_path(["ij", "jk", "kl"], "il", extents)
    ((1, 2), (0, 1))
    >>> find_path(["ij", "jk", "kl"], "il", extents, max_entries=3)
    ((0, 1, 2),)
    """
    number = {index: k for k, index in enumerate(extents)}
    sizes = {number[index]: extent for index, extent in extents.items()}
    sets = [frozenset(sorted(number[i] for i in term)) for term in inputs]
    result = frozenset(sorted(number[i] for i in output))
    if len(sets) < 2:
        return ((0,),) * len(sets)
    path = _as_path(_search(method, len(sets))(sets, result, sizes))
    if max_entries is None or _largest(sets, result, sizes, path) <= max_entries:
        return path
    # whatever is made small: dynamic programming under a limit may never end
    search = _search("auto", len(sets))
    path = _as_path(search(sets, result, sizes, max_entries))
    if _largest(sets, result, sizes, path) <= max_entries:
        return path
    return (tuple(range(len(sets))),)


def _largest(
    inputs: Sequence[frozenset[int]],
    output: frozenset[int],
    sizes: Mapping[int, int],
    path: Path,
) -> int:
    """Entries of the largest product ahead of the result."""
    products = path_outputs(inputs, output, path)[:-1]
    return max((prod(sizes[i] for i in term) for term in products), default=0)


def path_outputs(
    inputs: Sequence[Iterable[Any]], output: Iterable[Any], path: Path
) -> list[frozenset[Any]]:
    """The indices of the product of every step; the last one is the result.

    >>> [*map(sorted, path_outputs(["ij", "jk", "kl"], "il", ((1, 2), (0, 1))))]
    [['j', 'l'], ['i', 'l']]
    """
    left, made = list(map(frozenset, inputs)), []
    for step in path:
        chosen = [left[at] for at in step]
        left = [term for at, term in enumerate(left) if at not in step]
        needed = frozenset(output).union(*left)
        left.append(frozenset().union(*chosen) & needed)
        made.append(left[-1])
    return made


def _search(method: PathMethod, n_operands: int) -> Search:
    if method == "auto" and n_operands <= OPTIMAL_UP_TO:
        return _typed(opt_einsum.paths.optimal)
    if method in MINIMIZED and n_operands <= EXACT_UP_TO:
        made = opt_einsum.DynamicProgramming(minimize=method, search_outer=True)
        return _typed(made)
    return _typed(opt_einsum.paths.greedy)


def _typed(search: Search) -> Search:
    """The library has no types."""
    return search


def _as_path(found: Iterable[Iterable[int]]) -> Path:
    return tuple(tuple(step) for step in found)


def contract_greedily(*args: Any) -> Any:
    """The result of an einsum of more indices than numpy numbers.

    Args:
        args: operands and the numbers of their indices in turn, and those of the
            result.
    """
    return opt_einsum.contract(*args, optimize="greedy")
