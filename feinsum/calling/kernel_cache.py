"""The per-process cache of calls: how they are computed, and their shared kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from cachetools import LRUCache

from feinsum.memory import forget, remembered

if TYPE_CHECKING:
    from feinsum.calling.by_numpy import StepsCall
    from feinsum.calling.fallback import FallbackCall
    from feinsum.calling.host.general import GeneralCall
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.kernel import CallKernel
    from feinsum.sparse import COO, CSF

CACHE_BOUND = 256
"""Calls, told apart by notation, shapes and dtypes, whose kernels are kept."""
GENERAL_BOUND = 1 << 14
"""Calls without a kernel that are kept; each takes two or three kilobytes."""

Call: TypeAlias = "PreparedCall | FallbackCall | GeneralCall | StepsCall"


BUILD_S = 4.0
"""Seconds that the first build of a process is expected to take, with imports, the next
recipes that may be faster, and the comparison."""


class Builds:
    """Builds that no call waits for.

    Attributes:
        expected_s: what the next one takes: as long as the last; infinite after one
            that failed.
        lock: held by the one that is running.
    """

    def __init__(self) -> None:
        self.expected_s = BUILD_S
        self.lock = Lock()


class Calls:
    """The cache of calls.

    Attributes:
        builds: of kernels that pay off.
        kernels: kernels shared by several calls, kept as long as one of those is.
        quick: the same calls under keys that are cheaper to compute; dropped when there
            are many.
        general: those of them that have no kernel.
        gpu: calls of arrays on a GPU.
        ready: the quick ones among them.
        forms: by the type of an array there, the function that makes its key.
        sparse: nests and kernels of calls with a sparse operand.
        fused: races of fused kernels of programs.
        stages: races of their compiled stages.
        trees: such calls, ready to be repeated, kept as long as their tree lives.
        matrices: trees of compressed matrices, by the id of the matrix, while it lives.
        coordinates: trees of coordinates, by level order.
    """

    def __init__(self) -> None:
        self.builds = Builds()
        self.prepared: BoundedCache[Hashable, Call] = BoundedCache(CACHE_BOUND)
        self.kernels: WeakValueDictionary[Hashable, CallKernel] = WeakValueDictionary()
        self.quick: dict[Hashable, Call] = {}
        self.general: dict[Hashable, GeneralCall | StepsCall] = {}
        self.gpu: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.ready: dict[Hashable, Any] = {}
        self.forms: dict[type | None, Callable[[Any], Hashable]] = {}
        self.sparse: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.fused: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.stages: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.trees: WeakKeyDictionary[CSF, dict[Hashable, Any]] = WeakKeyDictionary()
        self.matrices: dict[int, Any] = {}
        self.coordinates: WeakKeyDictionary[COO, dict[Any, Any]] = WeakKeyDictionary()


if hasattr(os, "register_at_fork"):
    # kernels do not survive a fork, and a lost thread may hold the locks of the caches
    os.register_at_fork(after_in_child=lambda: forget(Calls))


def clear_call_cache() -> None:
    """Clear all cached kernels of calls and programs: the next ones query new facts."""
    calls = remembered(Calls)
    calls.builds = Builds()
    calls.prepared.clear()
    calls.kernels.clear()
    calls.quick.clear()
    calls.general.clear()
    calls.gpu.clear()
    calls.ready.clear()
    calls.sparse.clear()
    calls.fused.clear()
    calls.stages.clear()
    calls.trees.clear()
    calls.matrices.clear()
    calls.coordinates.clear()


Make: TypeAlias = "Callable[[], CallKernel | None]"


def cached_kernel(key: Hashable, make: Make) -> CallKernel | None:
    """A kernel shared by calls, kept as long as one of them is."""
    kernels = remembered(Calls).kernels
    kernel = kernels.get(key)
    if kernel is None:
        kernel = make()
        if kernel is not None:
            kernels[key] = kernel
    return kernel


@dataclass(frozen=True)
class SharedKernels:
    """The kernels of calls with the same look-up options."""

    where: Hashable

    def get(self, key: Hashable, /) -> CallKernel | None:
        return remembered(Calls).kernels.get((key, self.where))

    def __setitem__(self, key: Hashable, kernel: CallKernel, /) -> None:
        remembered(Calls).kernels[key, self.where] = kernel


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Values created on demand, one at a time; evicts the least recently used.

    >>> squares = BoundedCache(2)
    >>> [squares.get(n, lambda n=n: n * n) for n in (1, 2, 3)], len(squares)
    ([1, 4, 9], 2)
    """

    def __init__(self, bound: int) -> None:
        self._entries: LRUCache[K, V] = LRUCache(bound)
        # two locks: calls that are known do not wait for one that is being built
        self._using = RLock()
        # reentrant: what makes a value may ask for another one
        self._making = RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of a key; ``make`` runs once for all threads that request it."""
        value = self._known(key)
        if value is not None:
            return value
        with self._making:
            value = self._known(key)
            if value is None:
                value = make()
                self._keep(key, value)
        return value

    def values(self) -> list[V]:
        with self._using:
            return [*self._entries.values()]

    def clear(self) -> None:
        with self._using:
            self._entries.clear()

    def _known(self, key: K) -> V | None:
        with self._using:
            return self._entries.get(key)

    def _keep(self, key: K, value: V) -> None:
        with self._using:
            self._entries[key] = value
