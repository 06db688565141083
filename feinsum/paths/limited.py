"""Paths whose products find room, and paths that are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from feinsum.errors import InvalidPathError
from feinsum.paths.search import Path, find_path, path_outputs
from feinsum.words import counted

__all__ = ["check_path", "entries_between", "path_within"]


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
