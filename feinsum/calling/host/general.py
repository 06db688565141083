"""Calls in steps of one or two arrays, until a kernel of their own pays off.

To import Loopy, generate a kernel, compile and check it takes seconds. So a call is
computed without one, by :mod:`feinsum.contraction`, until the calls have taken so long
that a kernel would have saved what building it costs: like renting skis until they
could have been bought. Then a thread builds it while the calls go on; it is used if it
is faster. However long a program runs, it waits for no kernel.

Source: Karlin, Manasse, Rudolph and Sleator 1988 (when to rent, when to buy).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from feinsum.calling.by_numpy import StepsCall, extents_of
from feinsum.calling.fallback import report_fallback
from feinsum.calling.kernel_cache import Calls
from feinsum.contraction.by_numpy import MAX_LETTERS
from feinsum.memory import remembered
from feinsum.variables import INTERMEDIATE_VARIABLE

if TYPE_CHECKING:
    from feinsum.calling.fallback import FallbackCall
    from feinsum.calling.host.amortized import AmortizedCall
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.reading import Reading
    from feinsum.paths import Path

__all__ = ["GeneralCall", "path_for_numpy"]

logger = logging.getLogger(__name__)

MAX_POINTS = 1e8
"""Maximum products of a call that waits for its kernel: with more, the steps may take
longer than the build."""
MAX_BYTES = 1 << 28
"""Maximum bytes of its operands and result, which the steps may copy."""
GAIN = 0.3
"""Share of the time of calls that a kernel of their own is expected to save."""
SHORT_S = 30e-6
"""Calls that take less consist of what a call does ahead of any kernel."""

Arrays = Sequence[Any]
Built: TypeAlias = "PreparedCall | AmortizedCall | FallbackCall"


@dataclass(eq=False)
class GeneralCall:
    """A call without a kernel of its own, as long as that has not paid off.

    Attributes:
        read: the call as an einsum, which a kernel needs.
        steps: computes the call without one; None if even the first call is to have a
            kernel.
        build: starts to build the call with a kernel, for operands with this memory
            layout; for a second argument, this call, the result is None if the kernel
            is not faster, and no call waits for it.
        waits: whether the second call waits for the kernel: where a database was given
            that other processes do not have.
        built: the call with a kernel, once it exists and is faster.
        spent_s: seconds that the calls have taken.
    """

    read: Callable[[], Reading]
    steps: StepsCall | None
    build: Callable[..., Future[Any]]
    waits: bool = True
    built: Built | None = None
    spent_s: float = 0.0
    n_calls: int = 0
    _due_s: float = 0.0
    _building: Future[Built] | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)

    @cached_property
    def reading(self) -> Reading:
        """The call as an einsum."""
        return self.read()

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """The result of :meth:`PreparedCall.run`."""
        if self.steps is None or (self.waits and self.n_calls):
            return self.with_kernel(arrays).run(arrays, out)
        start_s = perf_counter()
        result = self.steps.run(arrays, out)
        self.spent_s += perf_counter() - start_s
        self.n_calls += 1
        if not self.waits and self.spent_s >= self._due_s:
            self._invest(arrays)
        return result

    def with_kernel(self, arrays: Arrays) -> Built:
        """The call with a kernel, built unless it already was.

        An interrupt ends the waiting; the next call waits for the same kernel.
        """
        with self._lock:
            if self.built is None:
                if self._building is None or self._building.done():
                    self._building = self.build(arrays)
                self.built = self._building.result()
            return self.built

    def _invest(self, arrays: Arrays) -> None:
        """Start to build if the calls have taken long enough, or say when they will."""
        if self.spent_s < SHORT_S * self.n_calls:
            self._due_s = 2 * self.spent_s
            return
        builds = remembered(Calls).builds
        self._due_s = builds.expected_s / GAIN
        # one at a time: builds share the cores with the calls
        if self.spent_s < self._due_s or not builds.lock.acquire(blocking=False):
            return
        self._due_s = inf
        logger.info("a kernel is built for calls that took %.3g s", self.spent_s)
        start_s = perf_counter()

        def adopt(building: Future[Built | None]) -> None:
            try:
                if (error := building.exception()) is None:
                    self.built = building.result()
                    builds.expected_s = perf_counter() - start_s
                else:
                    builds.expected_s = inf  # what is missing here others miss, too
                    if isinstance(error, Exception):
                        report_fallback(error)
            finally:
                builds.lock.release()

        building = self.build(arrays, self)
        building.add_done_callback(adopt)


def path_for_numpy(reading: Reading) -> Path | None:
    """The order in which a call is computed that has a kernel from the second one on.

    Returns:
        None if even the first call has one: for views and zeros, for calls that may
        take much time or memory, and for half precision and truth values.

    >>> import numpy as np
    >>> from feinsum.calling.reading import read_shapes
    >>> dtype = np.dtype(float)
    >>> def path(n):
    ...     shapes = [((n, n), dtype)] * 2
    ...     return path_for_numpy(read_shapes("ij,jk->ik", shapes, (0, 1)))
    >>> path(100), path(1000)
    (((0, 1),), None)
    """
    from feinsum.paths import find_path  # loads opt_einsum

    einsum, extents = reading.einsum, extents_of(reading)
    terms = [*einsum.inputs, einsum.output]
    entries = [prod(extents[i] for i in dict.fromkeys(term)) for term in terms]
    is_view = len(einsum.inputs) == 1 and set(einsum.inputs[0]) == {*einsum.output}
    if reading.is_empty or is_view:
        return None
    is_large = sum(entries) * reading.dtype.itemsize > MAX_BYTES
    if reading.dtype != reading.work_dtype or is_large or len(extents) > MAX_LETTERS:
        return None
    # numpy does not know of that limit
    if len(einsum.inputs) > 2 and os.environ.get(INTERMEDIATE_VARIABLE):
        return None
    path = find_path(einsum.inputs, einsum.output, extents, max_entries=max(entries))
    return path if _points(reading, path, extents) <= MAX_POINTS else None


def _points(reading: Reading, path: Path, extents: dict[str, int]) -> int:
    """Iterations of the nests of all steps."""
    from feinsum.paths import path_outputs

    left = [frozenset(term) for term in reading.einsum.inputs]
    made = path_outputs(left, reading.einsum.output, path)
    total = 0
    for step, product in zip(path, made, strict=True):
        joint = frozenset().union(*(left[at] for at in step))
        left = [term for at, term in enumerate(left) if at not in step] + [product]
        total += prod(extents[index] for index in joint)
    return total
