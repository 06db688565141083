"""Kernels of fusions: retrieved, checked, and used if they are faster.

The kernel is that of a functional batched einsum, with a recorded or predicted recipe.
The first run does not use it; the second builds it and compares its results. Both ways
then take turns until it is known which is faster.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np

from feinsum.errors import FeinsumError
from feinsum.ir import Extent, Operand, SizeParam
from feinsum.memory import remembered
from feinsum.programs.fusion import Fusion, array_name
from feinsum.programs.program import Program

__all__ = ["Race", "kept_race", "race_of"]

logger = logging.getLogger(__name__)

N_TURNS = 3
"""Timed runs of each way before one is chosen."""
TOLERANCE = {"f": 1e-4, "d": 1e-10}
"""Allowed difference of two orders of a sum, over the largest entry, by dtype."""

Array = np.ndarray[Any, np.dtype[Any]]
Results = dict[str, Array]
Kernel = Callable[[Mapping[str, Array]], Results]


@dataclass(eq=False)
class Race:
    """Two ways to compute the same: by one kernel, or statement by statement.

    Attributes:
        build: builds the kernel.
        kernel: the built kernel; None before that, and if it is unusable.
        seconds: times of each way, ``fused`` and ``plain``.
        is_over: whether the better way is known.
    """

    build: Callable[[], Kernel]
    kernel: Kernel | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    is_over: bool = False
    _n_runs: int = 0
    _lock: Lock = field(default_factory=Lock, repr=False)

    def run(self, arrays: Mapping[str, Array], plain: Callable[[], Results]) -> Results:
        """Compute the results, by the way that is or may be the better one."""
        if self.is_over and self.kernel is not None:
            return self.kernel(arrays)
        if self.is_over or not self._lock.acquire(blocking=False):
            return plain()
        try:
            return self._turn(arrays, plain)
        finally:
            self._lock.release()

    def _turn(
        self, arrays: Mapping[str, Array], plain: Callable[[], Results]
    ) -> Results:
        self._n_runs += 1
        if self._n_runs == 1:
            return plain()
        if self.kernel is None:
            results = plain()
            self.kernel = self._checked(arrays, results)
            self.is_over = self.kernel is None
            return results
        kernel = self.kernel
        is_ours = len(self.seconds.get("fused", ())) <= len(
            self.seconds.get("plain", ())
        )
        begun_s = perf_counter()
        results = kernel(arrays) if is_ours else plain()
        way = "fused" if is_ours else "plain"
        self.seconds.setdefault(way, []).append(perf_counter() - begun_s)
        if all(len(self.seconds.get(w, ())) >= N_TURNS for w in ("fused", "plain")):
            self.is_over = True
            if min(self.seconds["plain"]) < min(self.seconds["fused"]):
                self.kernel = None
        return results

    def _checked(self, arrays: Mapping[str, Array], right: Results) -> Kernel | None:
        """The kernel, if it can be built and computes the same."""
        try:
            kernel = self.build()
            found = kernel(arrays)
        except FeinsumError as error:
            logger.info("not fused: %s", error)
            return None
        except Exception:  # no kernel may break a program
            logger.exception("not fused")
            return None
        for name, results in right.items():
            if not _are_close(found[name], results):
                logger.error("the fused kernel of %s is wrong", name)
                return None
        return kernel


def _are_close(found: Array, right: Array) -> bool:
    """Whether results differ by no more than another order of sums makes."""
    is_finite = np.isfinite(right)
    if not np.array_equal(found[~is_finite], right[~is_finite], equal_nan=True):
        return False
    scale = np.abs(right[is_finite]).max(initial=0.0)
    error = np.abs(found[is_finite] - right[is_finite]).max(initial=0.0)
    return bool(error <= TOLERANCE[right.dtype.char] * scale)


def race_of(program: Program, fusion: Fusion, sizes: Mapping[str, int]) -> Race:
    """The race of a fusion, shared by programs with the same statements."""
    arrays = tuple(program.arrays[name] for name in (*fusion.operands, *fusion.results))
    key = fusion.rows, arrays, tuple(sorted(sizes.items()))
    return kept_race(key, lambda: _kernel(program, fusion, dict(sizes)))


def kept_race(key: Hashable, build: Callable[[], Kernel]) -> Race:
    """The race with a key, kept until :func:`feinsum.calling.clear_call_cache`."""
    from feinsum.calling.kernel_cache import Calls  # plans are read without it

    found: Race = remembered(Calls).fused.get(key, lambda: Race(build))
    return found


def _kernel(program: Program, fusion: Fusion, sizes: dict[str, int]) -> Kernel:
    """The kernel with the best recipe that is known or predicted.

    Raises:
        FeinsumError: if there is none, or if it cannot be built.
    """
    # loads Loopy, for a second
    from feinsum.codegen.rows import Row, generate_rows
    from feinsum.measure import compile_kernel, open_device
    from feinsum.retrieval import retrieve
    from feinsum.targets.host.results import aligned_empty

    first = fusion.rows[0]
    extents = {
        first.indices[i]: n for i, n in program.extents(first.contraction).items()
    }
    rows = [
        Row(
            _in_kernel(program.arrays[row.last.result]),
            _output(row),
            row.factors(),
            *row.scale_and_shift(),
        )
        for row in fusion.rows
    ]
    arrays = [_in_kernel(program.arrays[name]) for name in fusion.operands]
    opened = open_device("")
    unit = opened.prepare(generate_rows(rows, arrays, extents))
    used = {x.name: sizes[x.name] for x in extents.values() if isinstance(x, SizeParam)}
    found = retrieve(unit, arguments=used, on_miss="raise")
    built = compile_kernel(found, opened).built
    shapes = {
        name: tuple(_value(n, sizes) for n in program.arrays[name].shape)
        for name in fusion.results
    }

    def kernel(given: Mapping[str, Array]) -> Results:
        results = {
            name: aligned_empty(shapes[name], program.arrays[name].dtype)
            for name in fusion.results
        }
        values = {
            array_name(name): np.ascontiguousarray(array)
            for name, array in {**given, **results}.items()
        }
        built.run({**values, **used}, "wall")
        return results

    return kernel


def _output(row: Any) -> tuple[str, ...]:
    """The output indices in the order of the result's axes, in names of the batch."""
    if row.finish is None:
        return tuple(row.indices[i] for i in row.contraction.output)
    one = row.finish
    term = one.inputs[one.operands.index(row.contraction.result)]
    names = dict(zip(term, row.contraction.output, strict=True))
    return tuple(row.indices[names[i]] for i in one.output)


def _in_kernel(operand: Operand) -> Operand:
    return Operand(array_name(operand.name), operand.shape, operand.dtype)


def _value(extent: Extent, sizes: Mapping[str, int]) -> int:
    return sizes[extent.name] if isinstance(extent, SizeParam) else extent
