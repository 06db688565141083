"""The per-process cache of calls, and the keys under which it has them.

A call is looked up by three keys, the one that is quickest to compute first::

    quick key    subscripts, options as given, variables, shapes and strides
       | miss    (:func:`feinsum.calling.call.call_einsum`)
    call key     device, options, forms of the operands, which of them are one array
       | miss    (:class:`CallKey`)
    kernel key   the einsum and its named strides: several calls share a kernel

Calls are kept in bounded caches. A kernel is kept as long as one of its calls is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

from cachetools import LRUCache

from feinsum.calling.operands import ArrayForm
from feinsum.errors import DeviceUnavailableError
from feinsum.libraries import is_device_array
from feinsum.memory import forget, get_remembered
from feinsum.options import DATABASE_VARIABLE, DEVICE_VARIABLE, Effort

if TYPE_CHECKING:
    from feinsum.calling.einsum_call import EinsumCall
    from feinsum.db import Database
    from feinsum.records import Policy
    from feinsum.retrieval import OnMiss
    from feinsum.sparse import COO, CSF


@dataclass(frozen=True)
class LookupOptions:
    """How a kernel is looked up; see :func:`feinsum.retrieve`.

    Options are keys of caches, and are equal if they find the same kernels: databases
    are compared by :attr:`database_key`, which has the environment variable's value if
    no database is given.
    """

    database: Database = field(default=None, compare=False)
    policy: Policy | None = None
    on_miss: OnMiss = "return"
    effort: Effort = "amortized"
    database_key: Hashable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "database_key", make_database_key(self.database))

    @property
    def is_usual(self) -> bool:
        """Whether all options but the address of a database have their defaults.

        Then another process can look up the same kernel.
        """
        return has_address(self.database) and self == LookupOptions(self.database)


def make_database_key(database: Database) -> Hashable:
    """Return a key of a database: its address, or else the store itself."""
    if database is None:
        return os.environ.get(DATABASE_VARIABLE, "")
    if isinstance(database, str | os.PathLike):
        return os.fspath(database)
    # prefer the store to its id: another store may get the id once this one is freed
    return database if type(database).__hash__ is not None else id(database)


def has_address(database: Database) -> bool:
    """Return whether another process can open a database: not a store object."""
    return database is None or isinstance(database, str | os.PathLike)


RECORDED = "a recorded recipe"
"""Words for the recipe of a kernel that was tuned."""


class DeviceKey(NamedTuple):
    """Identifies where a call is computed.

    Attributes:
        process: id of this process, since OpenCL contexts do not survive a fork.
        queue: address of the operands' queue; 0 for operands on the host.
        selector: for operands on the host, part of a device name, since any matching
            device will do; for others, the address of the device.
    """

    process: int
    queue: int
    selector: str

    @property
    def is_host(self) -> bool:
        """Whether the operands are on the host."""
        return not self.queue


def make_device_key(arrays: Sequence[Any], device: str | None) -> DeviceKey:
    """Return the key of the device that computes a call of these operands.

    Raises:
        DeviceUnavailableError: if a device is given for operands that are on one.
    """
    if not any(map(is_device_array, arrays)):
        named = os.environ.get(DEVICE_VARIABLE, "") if device is None else device
        return DeviceKey(os.getpid(), 0, named)
    if device is not None:
        raise DeviceUnavailableError(
            f"device={device!r} was given, but the operands are on a device already; "
            "omit it: the einsum is evaluated where they are"
        )
    from feinsum.targets.opencl.device import check_device_arrays

    check_device_arrays(arrays)
    queue = arrays[0].queue
    return DeviceKey(os.getpid(), queue.int_ptr, str(queue.device.int_ptr))


@dataclass(frozen=True)
class CallKey:
    """The properties that calls share if one prepared call computes all of them.

    Attributes:
        forms: shape, strides, dtype and alignment of each operand.
        target: the form of ``out``; None for a new result.
        first: for each operand, the first position with the same array, see
            :func:`feinsum.calling.operands.find_first_uses`.
    """

    subscripts: str
    forms: tuple[ArrayForm, ...]
    target: ArrayForm | None
    first: tuple[int, ...]
    device: DeviceKey
    options: LookupOptions

    @property
    def is_usual(self) -> bool:
        """Whether the call need not wait for a kernel, as its options require none."""
        is_on_host = self.device.is_host and not self.device.selector
        return is_on_host and self.options.is_usual

    def parse(self) -> EinsumCall:
        """Return the call as an einsum."""
        from feinsum.calling.einsum_call import parse_call  # steps need no einsum

        shapes = [(form.shape, form.dtype) for form in self.forms]
        return parse_call(self.subscripts, shapes, self.first)


CACHE_BOUND = 256
"""Calls whose kernels are kept, distinguished by notation, shapes and dtypes."""
GENERAL_BOUND = 1 << 14
"""Calls without a kernel that are kept; each takes two or three kilobytes."""
BUILD_S = 4.0
"""Expected seconds of the first build of a process: imports, code generation for the
best recipe and its rivals, and their comparison."""


class Builds:
    """Builds of kernels while calls go on.

    Attributes:
        expected_s: expected seconds of the next build: those of the last one; infinite
            after a failure.
        lock: held by the build that is running.
    """

    def __init__(self) -> None:
        self.expected_s = BUILD_S
        self.lock = Lock()


class Calls:
    """The cache of calls.

    Attributes:
        builds: builds of kernels that are expected to pay off.
        prepared: calls by call key.
        kernels: kernels by kernel key, kept as long as one of their calls is.
        quick: calls with a kernel, by quick key; all are dropped when there are many.
        general: calls without a kernel, by quick key; likewise.
        families: families of calls, by subscripts, dtypes and options.
        shared: kernels that another process has built, by the key of their structure.
        gpu: calls of arrays on a GPU, by their key.
        ready: calls on a GPU, by quick key.
        forms: for each type of arrays on a GPU, the function that returns the form of
            an array, as part of a quick key.
        sparse: nests and kernels of calls with a sparse operand, and level orders.
        choices: choices between kernels and statements of programs.
        trees: prepared calls with a sparse operand, by tree, as long as it lives.
        matrices: trees of compressed matrices, by the id of the matrix, while it lives.
        coordinates: trees of coordinates, by the coordinates and level order.
    """

    def __init__(self) -> None:
        self.builds = Builds()
        self.prepared: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.kernels: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        self.quick: dict[Hashable, Any] = {}
        self.general: dict[Hashable, Any] = {}
        self.families: dict[Hashable, Any] = {}
        self.shared: BoundedCache[str, Any] = BoundedCache(CACHE_BOUND)
        self.gpu: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.ready: dict[Hashable, Any] = {}
        self.forms: dict[type | None, Callable[[Any], Hashable]] = {}
        self.sparse: BoundedCache[Hashable, Any] = BoundedCache(CACHE_BOUND)
        self.choices: BoundedCache[Hashable, Any] = BoundedCache(2 * CACHE_BOUND)
        self.trees: WeakKeyDictionary[CSF, dict[Hashable, Any]] = WeakKeyDictionary()
        self.matrices: dict[int, Any] = {}
        self.coordinates: WeakKeyDictionary[COO, dict[Any, Any]] = WeakKeyDictionary()

    def clear(self) -> None:
        """Forget all calls, but not how to form the keys of arrays on a GPU."""
        for name, cache in vars(self).items():
            if name not in ("builds", "forms"):
                cache.clear()
        self.builds = Builds()


if hasattr(os, "register_at_fork"):
    # kernels do not survive a fork; a thread that the child lacks may hold the locks
    os.register_at_fork(after_in_child=lambda: forget(Calls))


T = TypeVar("T")


def clear_call_cache() -> None:
    """Clear the cached kernels of calls and programs; the next ones query new facts."""
    get_remembered(Calls).clear()


def get_cached_kernel(key: Hashable, make: Callable[[], T | None]) -> T | None:
    """Return the cached kernel, or make it; it is kept as long as one of its calls."""
    kernels = get_remembered(Calls).kernels
    kernel: T | None = kernels.get(key)
    if kernel is None and (kernel := make()) is not None:
        kernels[key] = kernel
    return kernel


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
        # two locks, so that calls in the cache do not wait for one that is being built
        self._using = RLock()
        # reentrant, since making a value may request another one
        self._making = RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, made once for all threads that request it."""
        value = self.find(key)
        if value is not None:
            return value
        with self._making:
            value = self.find(key)
            if value is None:
                value = make()
                with self._using:
                    self._entries[key] = value
        return value

    def find(self, key: K) -> V | None:
        """Return the value of a key if it was made and kept."""
        with self._using:
            return self._entries.get(key)

    def values(self) -> list[V]:
        with self._using:
            return [*self._entries.values()]

    def clear(self) -> None:
        with self._using:
            self._entries.clear()
