"""Names that users of opt_einsum know: its searches, and its reports of paths."""

from __future__ import annotations

from typing import Any

import opt_einsum

__all__ = ["index_letter", "is_path_name", "search_path"]


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
    found: tuple[Any, Any] = opt_einsum.contract_path(*arguments, **options)
    return found
