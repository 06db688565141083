"""What a process keeps of calls: how they are made, and the kernels they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from feinsum.calling.cache import BoundedCache
from feinsum.memory import remembered

if TYPE_CHECKING:
    from feinsum.calling.amortized import AmortizedCall
    from feinsum.calling.first import FirstCall
    from feinsum.calling.kernel import CallKernel
    from feinsum.calling.prepared import PreparedCall
    from feinsum.sparse import CSF

__all__ = [
    "CACHE_BOUND",
    "Call",
    "Calls",
    "SharedKernels",
    "clear_call_cache",
    "kept",
]

CACHE_BOUND = 256
"""Calls, told apart by notation, shapes and dtypes, whose kernels are kept."""

Call: TypeAlias = "PreparedCall | AmortizedCall | FirstCall"


class Calls:
    """What is kept of calls.

    Attributes:
        kernels: those that several calls share, for as long as one of these is kept.
        quick: the same calls under keys that are made sooner; dropped when there are
            many.
        gpu: calls of arrays on a GPU.
        sparse: nests and kernels of calls with a sparse operand.
        trees: such calls, ready to be repeated, for as long as their tree lives.
    """

    def __init__(self) -> None:
        self.prepared: BoundedCache[Hashable, Call] = BoundedCache(CACHE_BOUND)
        self.kernels: WeakValueDictionary[Hashable, CallKernel] = WeakValueDictionary()
        self.quick: dict[Hashable, Call] = {}
        self.gpu: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.sparse: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.trees: WeakKeyDictionary[CSF, dict[Hashable, Any]] = WeakKeyDictionary()


def clear_call_cache() -> None:
    """Forget all kernels of calls, so that new facts are asked for."""
    calls = remembered(Calls)
    calls.prepared.clear()
    calls.kernels.clear()
    calls.quick.clear()
    calls.gpu.clear()
    calls.sparse.clear()
    calls.trees.clear()


Make: TypeAlias = "Callable[[], CallKernel | None]"


def kept(key: Hashable, make: Make) -> CallKernel | None:
    """A kernel that calls share, for as long as one of them is kept."""
    kernels = remembered(Calls).kernels
    kernel = kernels.get(key)
    if kernel is None:
        kernel = make()
        if kernel is not None:
            kernels[key] = kernel
    return kernel


@dataclass(frozen=True)
class SharedKernels:
    """The kernels of calls that are looked up in the same way."""

    where: Hashable

    def get(self, key: Hashable, /) -> CallKernel | None:
        return remembered(Calls).kernels.get((key, self.where))

    def __setitem__(self, key: Hashable, kernel: CallKernel, /) -> None:
        remembered(Calls).kernels[key, self.where] = kernel
