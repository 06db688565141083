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

from feinsum.errors import InvalidPathError
from feinsum.words import counted

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
    left, products = list(map(frozenset, inputs)), []
    for step in path:
        chosen = [left[at] for at in step]
        left = [term for at, term in enumerate(left) if at not in step]
        needed = frozenset(output).union(*left)
        left.append(frozenset().union(*chosen) & needed)
        products.append(left[-1])
    return products


def _search(method: PathMethod, n_operands: int) -> Search:
    if method == "auto" and n_operands <= OPTIMAL_UP_TO:
        return _typed(opt_einsum.paths.optimal)
    if method in MINIMIZED and n_operands <= EXACT_UP_TO:
        search = opt_einsum.DynamicProgramming(minimize=method, search_outer=True)
        return _typed(search)
    return _typed(opt_einsum.paths.greedy)


def _typed(search: Search) -> Search:
    """The library has no types."""
    return search


def _as_path(steps: Iterable[Iterable[int]]) -> Path:
    return tuple(tuple(step) for step in steps)


def contract_greedily(*args: Any) -> Any:
    """The result of an einsum of more indices than numpy numbers.

    Args:
        args: operands and the numbers of their indices in turn, and those of the
            result.
    """
    return opt_einsum.contract(*args, optimize="greedy")


def path_within(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    most_entries: int,
) -> Path:
    """An order in which all products ahead of the result together find room.

    A step may take more than two operands then, and the last one all that are left.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> path_within(["ij", "jk", "kl"], "il", extents, most_entries=3)
    ((0, 1, 2),)
    """
    n_products = max(len(inputs) - 2, 1)
    for most in (most_entries, most_entries // n_products):
        path = find_path(inputs, output, extents, max_entries=most)
        if entries_between(inputs, output, extents, path) <= most_entries:
            return path
    return (tuple(range(len(inputs))),)


def entries_between(
    inputs: Sequence[Iterable[str]],
    output: Iterable[str],
    extents: Mapping[str, int],
    path: Path,
) -> int:
    """Entries of all intermediate products.

    >>> extents = {"i": 90, "j": 2, "k": 90, "l": 2}
    >>> entries_between(["ij", "jk", "kl"], "il", extents, ((1, 2), (0, 1)))
    4
    """
    products = path_outputs(inputs, output, path)[:-1]
    return sum(prod(extents[index] for index in term) for term in products)


def check_path(path: Path, n_operands: int) -> None:
    """Refuse a path that does not end with one array.

    Raises:
        InvalidPathError: with the rule ``path``.
    """
    left = n_operands
    for step in path:
        if (
            not step
            or len(set(step)) != len(step)
            or not all(0 <= p < left for p in step)
        ):
            raise InvalidPathError(
                f"contraction path {path}: step {step} does not name distinct "
                f"positions among the {counted(left, 'array')} left",
                rules=("path",),
            )
        left += 1 - len(step)
    if left != 1:
        raise InvalidPathError(
            f"contraction path {path} leaves {counted(left, 'array')}; it must "
            "leave one",
            rules=("path",),
        )


def is_path_name(name: str) -> bool:
    """Whether opt_einsum has a search of that name.

    >>> is_path_name("random-greedy"), is_path_name("fastest")
    (True, False)
    """
    try:
        opt_einsum.paths.get_path_fn(name)
    except KeyError:
        return False
    return True


def index_letter(number: int) -> str:
    """The letter that opt_einsum has for the index of a number.

    >>> index_letter(0), index_letter(27)
    ('a', 'B')
    """
    return str(opt_einsum.get_symbol(number))


def search_path(*arguments: Any, **options: Any) -> tuple[Any, Any]:
    """The path, and what opt_einsum says of it.

    Args:
        arguments, options: as for ``opt_einsum.contract_path``.

    >>> search_path("ij,jk,kl->il", (9, 2), (2, 9), (9, 2), shapes=True)[0]
    [(1, 2), (0, 1)]
    """
    result: tuple[Any, Any] = opt_einsum.contract_path(*arguments, **options)
    return result
