"""The first call of its kind, which numpy answers without building a kernel.

Building and checking a kernel takes about half a second, which a single call does not
recover. A call that is repeated once may be repeated again, so the second call builds:
like renting skis on the first day and buying them on the second.

Source: Karlin, Manasse, Rudolph and Sleator 1988 (when to rent, when to buy).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from feinsum.calling.by_numpy import evaluate_by_numpy, extents_of
from feinsum.calling.reading import Reading
from feinsum.contraction.by_numpy import MAX_LETTERS
from feinsum.paths import Path, find_path, path_outputs
from feinsum.variables import INTERMEDIATE_VARIABLE

if TYPE_CHECKING:
    from concurrent.futures import Future

    from feinsum.calling.fallback import FallbackCall
    from feinsum.calling.host.amortized import AmortizedCall
    from feinsum.calling.host.prepared import PreparedCall

__all__ = ["FirstCall", "path_for_numpy"]

MOST_POINTS = 1e8
"""Maximum products: with more, numpy may take longer than building a kernel."""
MOST_BYTES = 1 << 28
"""Maximum bytes of operands and result, which numpy may copy."""
Arrays = Sequence[Any]
Built: TypeAlias = "PreparedCall | AmortizedCall | FallbackCall"


@dataclass(eq=False)
class FirstCall:
    """A call that numpy evaluates the first time, and a kernel after that.

    Attributes:
        path: the contraction order for numpy; None if the first call builds, too.
        build: starts to build the call with a kernel, for operands with this memory
            layout.
        built: that call, once it exists.
    """

    reading: Reading
    path: Path | None
    build: Callable[[Arrays], Future[Built]]
    built: Built | None = None
    _building: Future[Built] | None = None
    _is_first: bool = True
    _lock: Lock = field(default_factory=Lock, repr=False)

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """The result of :meth:`PreparedCall.run`."""
        if self.path is None or not self._is_first:
            return self.with_kernel(arrays).run(arrays, out)
        self._is_first = False
        result = evaluate_by_numpy(self.reading, arrays, self.path)
        return np.array(result, order="C", copy=None)

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


def path_for_numpy(reading: Reading) -> Path | None:
    """The order in which numpy contracts the operands of a first call.

    Returns:
        None if numpy is not used: for views and zeros, for calls that may take it much
        time or memory, and for half precision and booleans.

    >>> from feinsum.calling.reading import read_shapes
    >>> dtype = np.dtype(float)
    >>> def path(n):
    ...     shapes = [((n, n), dtype)] * 2
    ...     return path_for_numpy(read_shapes("ij,jk->ik", shapes, (0, 1)))
    >>> path(100), path(1000)
    (((0, 1),), None)
    """
    einsum, extents = reading.einsum, extents_of(reading)
    terms = [*einsum.inputs, einsum.output]
    entries = [prod(extents[i] for i in dict.fromkeys(term)) for term in terms]
    is_view = len(einsum.inputs) == 1 and set(einsum.inputs[0]) == {*einsum.output}
    if reading.is_empty or is_view:
        return None
    is_large = sum(entries) * reading.dtype.itemsize > MOST_BYTES
    if reading.dtype != reading.work_dtype or is_large or len(extents) > MAX_LETTERS:
        return None
    # numpy does not know of that limit
    if len(einsum.inputs) > 2 and os.environ.get(INTERMEDIATE_VARIABLE):
        return None
    path = find_path(einsum.inputs, einsum.output, extents, max_entries=max(entries))
    return path if _points(reading, path, extents) <= MOST_POINTS else None


def _points(reading: Reading, path: Path, extents: dict[str, int]) -> int:
    """Iterations of the nests of all steps."""
    left = [frozenset(term) for term in reading.einsum.inputs]
    made = path_outputs(left, reading.einsum.output, path)
    total = 0
    for step, product in zip(path, made, strict=True):
        joint = frozenset().union(*(left[at] for at in step))
        left = [term for at, term in enumerate(left) if at not in step] + [product]
        total += prod(extents[index] for index in joint)
    return total
