"""Calls in steps of one or two arrays, until a kernel of their own pays off.

To import Loopy, generate a kernel, compile and check it takes seconds. So a call is
computed without one, by :mod:`feinsum.contraction`, until the calls have taken so long
that a kernel would have saved what building it costs: like renting skis until they
could have been bought. Then another process builds it while the calls go on, see
:mod:`feinsum.calling.host.builder`, and some calls are computed in turns with and
without it; the faster way computes the others. However long a program runs, it waits
for no kernel.

Source: Karlin, Manasse, Rudolph and Sleator 1988 (when to rent, when to buy).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from feinsum.calling.by_numpy import StepsCall, extents_of
from feinsum.calling.fallback import build_in_background, report_fallback
from feinsum.calling.kernel_cache import Calls
from feinsum.contraction.by_numpy import MAX_LETTERS
from feinsum.memory import remembered
from feinsum.variables import INTERMEDIATE_VARIABLE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from feinsum.calling.fallback import FallbackCall
    from feinsum.calling.host.amortized import AmortizedCall
    from feinsum.calling.host.builder import BuildRequest
    from feinsum.calling.host.prepared import PreparedCall
    from feinsum.calling.reading import Reading
    from feinsum.paths import Path

__all__ = ["GeneralCall", "path_for_numpy"]

MAX_POINTS = 1e8
"""Maximum products of a call that waits for its kernel: with more, the steps may take
longer than the build."""
MAX_BYTES = 1 << 28
"""Maximum bytes of its operands and result, which the steps may copy."""
GAIN = 0.3
"""Share of the time of calls that a kernel of their own is expected to save."""
SHORT_S = 30e-6
"""Calls that take less consist of what a call does ahead of any kernel."""

LOOK_UP_S = 0.05
"""Seconds of calls after which a kernel of an earlier process is looked for."""
ROUNDS = 18
"""Calls with a kernel and without before one of them is chosen."""

Arrays = Sequence[Any]
Built: TypeAlias = "PreparedCall | AmortizedCall | FallbackCall"


@dataclass(eq=False)
class GeneralCall:
    """A call without a kernel of its own, as long as that has not paid off.

    Attributes:
        read: the call as an einsum, which a kernel needs.
        steps: computes the call without one; None if even the first call is to have a
            kernel.
        build: starts to build the call with a kernel in this process, for operands with
            this memory layout.
        request: what another process needs to build it; None if that cannot.
        waits: whether the second call waits for the kernel: where a database was given
            that other processes do not have.
        built: the call with a kernel, once it exists and is faster.
        spent_s: seconds that the calls have taken.
        trial: of a kernel that may be faster.
        has_looked: whether one of an earlier process was looked for.
    """

    read: Callable[[], Reading]
    steps: StepsCall | None
    build: Callable[[Arrays], Future[Built]]
    request: Callable[[], BuildRequest | None]
    waits: bool = True
    built: Built | None = None
    spent_s: float = 0.0
    n_calls: int = 0
    trial: Trial | None = None
    has_looked: bool = False
    _due_s: float = 0.0
    _building: Future[Built] | None = None
    _full: Built | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)

    @cached_property
    def reading(self) -> Reading:
        """The call as an einsum."""
        return self.read()

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """The result of :meth:`PreparedCall.run`."""
        if self.steps is None or (self.waits and self.n_calls):
            return self.with_kernel(arrays).run(arrays, out)
        if (trial := self.trial) is not None:
            return self._try(trial, arrays, out)
        start_s = perf_counter()
        result = self.steps.run(arrays, out)
        self.spent_s += perf_counter() - start_s
        self.n_calls += 1
        if not self.waits:
            if self.spent_s >= LOOK_UP_S and not self.has_looked:
                self._look_up()
            if self.spent_s >= self._due_s:
                self._invest()
        return result

    def with_kernel(self, arrays: Arrays) -> Built:
        """The call with a kernel, built unless it already was.

        An interrupt ends the waiting; the next call waits for the same kernel.
        """
        with self._lock:
            if self._full is None:
                if self._building is None or self._building.done():
                    self._building = self.build(arrays)
                self.built = self._full = self._building.result()
            return self._full

    def _try(self, trial: Trial, arrays: Arrays, out: Any) -> Any:
        """The result of one turn; the last one decides."""
        try:
            return trial.run(arrays, out)
        except Exception:  # a kernel is an improvement, never a condition
            import logging  # takes as long as a hundred calls

            logger = logging.getLogger(__name__)
            logger.exception("dropped a kernel of %s", self.reading.einsum)
            trial.has_failed = True
            assert self.steps is not None
            return self.steps.run(arrays, out)
        finally:
            if trial.is_over:
                self.trial = None
                self.built = trial.kernel if trial.is_faster else None

    def _look_up(self) -> None:
        """Try a kernel that was built for an earlier process: it costs nothing."""
        from feinsum.calling.host.builder import built_before

        self.has_looked = True
        request, steps = self.request(), self.steps
        if request is None or steps is None or self.spent_s < SHORT_S * self.n_calls:
            return

        def adopt(loading: Future[PreparedCall | None]) -> None:
            if loading.exception() is None and (kernel := loading.result()) is not None:
                self._due_s = inf
                self.trial = Trial(steps, kernel)

        build_in_background(lambda: built_before(request)).add_done_callback(adopt)

    def _invest(self) -> None:
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
        request, steps = self.request(), self.steps
        if request is None or steps is None:
            builds.lock.release()
            return
        import logging

        from feinsum.calling.host.builder import build_elsewhere

        logging.getLogger(__name__).info(
            "a kernel is built for calls that took %.3g s", self.spent_s
        )
        start_s = perf_counter()

        def adopt(building: Future[PreparedCall | None]) -> None:
            try:
                if (error := building.exception()) is None:
                    builds.expected_s = perf_counter() - start_s
                    if (kernel := building.result()) is not None:
                        self.trial = Trial(steps, kernel)
                else:
                    builds.expected_s = inf  # what is missing here others miss, too
                    if isinstance(error, Exception):
                        report_fallback(error)
            finally:
                builds.lock.release()

        building = build_in_background(lambda: build_elsewhere(request))
        building.add_done_callback(adopt)


@dataclass(eq=False)
class Trial:
    """Calls in turns with a kernel and without.

    Attributes:
        steps, kernel: the two ways.
        steps_s, kernel_s: their times.
    """

    steps: StepsCall
    kernel: PreparedCall
    steps_s: list[float] = field(default_factory=list)
    kernel_s: list[float] = field(default_factory=list)
    has_failed: bool = False

    def run(self, arrays: Arrays, out: Any) -> Any:
        """The result of the way whose turn it is."""
        is_kernel = len(self.kernel_s) < len(self.steps_s)
        call, times = (
            (self.kernel, self.kernel_s) if is_kernel else (self.steps, self.steps_s)
        )
        start_s = perf_counter()
        result = call.run(arrays, out)
        times.append(perf_counter() - start_s)
        return result

    @property
    def is_over(self) -> bool:
        return self.has_failed or len(self.kernel_s) >= ROUNDS

    @cached_property
    def is_faster(self) -> bool:
        """Whether the kernel certainly takes less time."""
        from feinsum.measure.turns import time_ratio

        if self.has_failed:
            return False
        n = min(len(self.steps_s), len(self.kernel_s))
        # the first run of a kernel starts its threads
        return time_ratio(self.steps_s[1:n], self.kernel_s[1:n]).is_faster


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
