"""Loopy's cache of operations on loop domains, safe for domains that look alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import islpy as isl
from loopy.kernel.tools import SetOperationCacheManager

__all__ = ["NamedSetCache", "tell_sets_apart"]


class NamedSetCache(SetOperationCacheManager):  # type: ignore[misc]
    """A cache that tells ``{ [i, j] : ... }`` from ``{ [j, i] : ... }``.

    For isl, sets that differ only in the names of their dimensions are equal.
    Loopy's own cache, which all kernels share that were made from one, then
    gives the bounds of one loop to another one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.of_names: dict[tuple[str, ...], SetOperationCacheManager] = {}

    def op(self, set_: Any, op: Callable[..., Any], *args: Any) -> Any:
        names = tuple(set_.get_var_names(isl.dim_type.set))
        own = self.of_names.setdefault(names, SetOperationCacheManager())
        return own.op(set_, op, *args)


def tell_sets_apart(kernel: Any) -> None:
    """Give a new kernel such a cache; copies of the kernel share it."""
    object.__setattr__(kernel, "_cache_manager", NamedSetCache())
