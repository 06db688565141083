"""Parts of a stage: its statements at some values of the indices that they share.

numpy evaluates a part statement by statement. If that takes long, the stage is also
compiled, and the faster alternative is used.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, TypeVar

import numpy as np

from feinsum.errors import BuildError
from feinsum.ir.evaluation import evaluate_statement, map_into
from feinsum.ir.statement import Statement
from feinsum.memory import get_remembered
from feinsum.programs.blocks import Box
from feinsum.programs.choice import KernelChoice, Results, get_shared_choice
from feinsum.programs.compiled.source import ENTRY, StageSource
from feinsum.programs.stages import ArrayAccess, Stage, StageLoops, find_loops

Array = np.ndarray[Any, np.dtype[Any]]

PIECE_BYTES = 1 << 19
"""Maximum bytes of an array that numpy computes at once; several fit into L2 caches."""

SHARE_BYTES, SHARES = 1 << 22, 4
"""Bytes of a part, and the maximum number of parts for each thread.

Several parts for each thread balance the work.
"""

MIN_S = 0.005
"""Seconds that a stage takes in total before it is compiled.

This is less than the compiler takes, because programs are run many times.
"""

DTYPES = {"f", "d"}
MAX_SCRATCH_BYTES = 1 << 23
"""Maximum bytes of intermediate results, which have to stay in the caches."""

MAX_STATEMENTS = 50
"""Maximum number of statements: with more, compilers take seconds."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a stage.

    Attributes:
        stage: the stage.
        operands: the operands of each statement, by its result; None for results of the
            stage.
        outs: arrays for the outputs of the stage.
        spent: the number of the operand that a map overwrites, by its result.
        first: the first values of each statement's indices, if not 0.
        extents: the number of values of each statement's indices.
        dtypes: dtypes of all operands and results.
    """

    stage: Stage
    operands: Mapping[str, Sequence[Array | None]]
    outs: Mapping[str, Array]
    spent: Mapping[str, int]
    first: Mapping[str, Mapping[str, int]]
    extents: Mapping[str, Mapping[str, int]]
    dtypes: Mapping[str, np.dtype[Any]]

    @property
    def n_bytes(self) -> int:
        """Bytes of the largest result before its reduction."""
        return max(
            prod(self.extents[statement.result].values())
            * self.dtypes[statement.result].itemsize
            for statement in self.stage.statements
        )

    def shares(self, n_workers: int) -> list[Part]:
        """Split into parts for threads."""
        # waking a thread takes as long as computing a small part
        if n_workers == 1 or self.n_bytes <= PIECE_BYTES:
            return [self]
        n_shares = min(SHARES * n_workers, self.n_bytes // SHARE_BYTES)
        return self.split(max(n_workers, n_shares))

    def split(self, n_parts: int) -> list[Part]:
        """Split into about ``n_parts`` parts, along an index that all results have."""
        cuts = self.stage.cuts
        if n_parts <= 1 or not cuts:
            return [self]
        first = self.stage.statements[0].result
        lengths = [self.extents[first][cut[first]] for cut in cuts]
        n_wanted = min(n_parts, max(lengths))
        # the outermost index that is long enough, so that parts are contiguous
        extent, cut = next(
            (n, cut) for n, cut in zip(lengths, cuts, strict=True) if n >= n_wanted
        )
        length = max(1, -(-extent // n_parts))
        return [
            self._select(cut, slice(low, min(low + length, extent)))
            for low in range(0, max(extent, 1), length)
        ]

    def _select(self, cut: Mapping[str, str], values: slice) -> Part:
        """Return the part at some values of an index."""
        operands, outs, first, extents = {}, {}, {}, {}
        for statement in self.stage.statements:
            name, index = statement.result, cut[statement.result]
            box = {index: values}
            operands[name] = [
                None if array is None else slice_array(array, term, box)
                for array, term in zip(
                    self.operands[name], statement.inputs, strict=True
                )
            ]
            if name in self.outs:
                outs[name] = slice_array(self.outs[name], statement.output, box)
            begin = self.first[name].get(index, 0) + values.start
            first[name] = {**self.first[name], index: begin}
            extents[name] = {**self.extents[name], index: values.stop - values.start}
        return replace(self, operands=operands, outs=outs, first=first, extents=extents)

    def copied(self) -> Part:
        """Return a copy of the part with new arrays for its results.

        Operands that the statements overwrite are copied, too.
        """
        # all memory that is written: a second run must read the same operands
        overwritten = [*self.outs.values()]
        for name, k in self.spent.items():
            if (array := self.operands[name][k]) is not None:
                overwritten.append(array)

        def copy_if_written(array: Array | None) -> Array | None:
            is_shared = array is not None and any(
                np.may_share_memory(array, written) for written in overwritten
            )
            return array.copy("K") if array is not None and is_shared else array

        operands = {
            name: [*map(copy_if_written, arrays)]
            for name, arrays in self.operands.items()
        }
        outs = {name: np.empty_like(out) for name, out in self.outs.items()}
        return replace(self, operands=operands, outs=outs)

    def evaluate(self) -> Results:
        """Compute the part by numpy, statement by statement, a piece at a time."""
        # numpy makes a temporary for each operation, which stays in the cache
        for piece in self.split(-(-self.n_bytes // PIECE_BYTES)):
            piece.evaluate_at_once()
        return dict(self.outs)

    def evaluate_at_once(self) -> None:
        inside: dict[str, Array] = {}
        for statement in self.stage.statements:
            pairs = zip(
                statement.operands, self.operands[statement.result], strict=True
            )
            operands = [inside[name] if a is None else a for name, a in pairs]
            inside[statement.result] = self._evaluate_statement(statement, operands)

    def _evaluate_statement(
        self, statement: Statement, operands: Sequence[Array]
    ) -> Array:
        """Evaluate a statement into its output array or a spent operand, if any."""
        dtype, out = self.dtypes[statement.result], self.outs.get(statement.result)
        first = self.first[statement.result]
        # a reduction needs all products before it writes
        if statement.reduced_indices:
            value = evaluate_statement(statement, operands, first).astype(
                dtype, copy=False
            )
            if out is None:
                return value
            out[...] = value
            return out
        spent = self.spent.get(statement.result)
        if spent is not None:
            out = operands[spent]
        elif out is None:
            out = np.empty(statement.shape_of(operands), dtype)
        map_into(statement, operands, out, first, spent)
        return out

    @property
    def kernel(self) -> StageKernel | None:
        """A kernel for arrays of these extents and strides, not compiled yet.

        None for arrays of several dtypes, not of real numbers, without entries or not
        aligned, and for stages with too many statements or too large intermediate
        results.
        """
        # numpy's promotions between dtypes are not those of C
        dtype, *other_dtypes = {*self.dtypes.values()}
        is_long = len(self.stage.statements) > MAX_STATEMENTS
        if other_dtypes or dtype.char not in DTYPES or is_long:
            return None
        loops = find_loops(self.stage)
        if loops is None:
            return None
        arrays = self.list_arrays(loops)
        # vector loads would fault
        if not all(array.flags.aligned for array in arrays):
            return None
        layouts = tuple((array.shape, array.strides) for array in arrays)
        return _make_kernel(loops, dtype, layouts)

    def run(self) -> Results:
        """Compute the part by its own kernel: a copy of a part has other strides."""
        kernel = self.kernel
        assert kernel is not None
        return kernel.run(self)

    def list_arrays(self, loops: StageLoops) -> list[Array]:
        """Return the arrays from outside of the stage, in the order of accesses."""

        def find_array(access: ArrayAccess) -> Array:
            if access.position is None:
                return self.outs[access.result]
            operand = self.operands[access.result][access.position]
            assert operand is not None
            return operand

        return [find_array(access) for access in loops.accesses]


@dataclass(frozen=True)
class StageKernel:
    """A stage for arrays of one dtype with fixed extents and strides.

    Attributes:
        source: the source in C.
        extents: extent of each loop.
        strides: strides in entries, for each loop of each access.
    """

    source: StageSource
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @cached_property
    def _constants(self) -> tuple[Any, Any]:
        return _make_integers(self.extents), _make_integers(self.strides)

    @cached_property
    def _entry(self) -> Any:
        return get_remembered(_Built)[self.source.text()]

    def run(self, part: Part) -> Results:
        """Compute a part of the stage.

        Raises:
            DeviceUnavailableError: if there is no compiler.
            ProgramError: if a body or reduction has no equivalent in C.
            BuildError: if the stage cannot be compiled.
        """
        loops, entry = self.source.loops, self._entry
        addresses = [a.ctypes.data for a in part.list_arrays(loops)]
        begin = [0] * loops.n_loops
        for result, values in part.first.items():
            for index, value in values.items():
                begin[loops.numbers[result][index]] = value
        # allocated for each run: threads run one kernel at the same time
        n_entries = self.source.count_scratch_entries(self.extents)
        scratch = np.empty(n_entries, self.source.dtype)
        extents, strides = self._constants
        entry(
            (ctypes.c_void_p * len(addresses))(*addresses),
            extents,
            _make_integers(begin),
            strides,
            ctypes.c_void_p(scratch.ctypes.data),
        )
        return dict(part.outs)


@lru_cache(maxsize=1024)
def _make_kernel(
    loops: StageLoops,
    dtype: np.dtype[Any],
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...],
) -> StageKernel | None:
    """Return the kernel for arrays of these shapes and strides, in access order."""
    accesses = loops.accesses
    extents = {
        k: n
        for access, (shape, _) in zip(accesses, layouts, strict=True)
        for k, n in zip(access.axes, shape, strict=True)
    }
    if not 0 < len(extents) == loops.n_loops or 0 in extents.values():
        return None
    strides = [
        {k: n // dtype.itemsize for k, n in access.strides(by_axis).items()}
        for access, (_, by_axis) in zip(accesses, layouts, strict=True)
    ]
    vector = max(
        extents, key=lambda k: (sum(by_loop.get(k) == 1 for by_loop in strides), k)
    )
    # part of the source, so that the compiler sees unit strides
    contiguous = tuple(by_loop.get(vector) == 1 for by_loop in strides)
    source = StageSource(loops, dtype, vector, contiguous)
    ordered = tuple(extents[k] for k in range(loops.n_loops))
    if source.count_scratch_entries(ordered) * dtype.itemsize > MAX_SCRATCH_BYTES:
        return None
    return StageKernel(
        source, ordered, tuple(n for by_loop in strides for n in by_loop.values())
    )


def _make_integers(values: Sequence[int]) -> Any:
    return (ctypes.c_int64 * len(values))(*values)


class _Built(dict[str, Any]):
    """Entry points of compiled stages, by their source."""

    def __missing__(self, text: str) -> Any:
        return self.setdefault(text, _build(text))


def _build(text: str) -> Any:
    from feinsum.targets.host.compiler import (
        find_compiler,  # plans are read without it
        load,
    )

    compiler = find_compiler()
    # fwrapv: integers of bodies wrap around, as those of numpy do
    flags = (*compiler.flags, "-fopenmp-simd", "-fwrapv")
    if compiler.is_clang and platform.machine() == "x86_64":
        flags = (*flags, "-fveclib=libmvec")
    try:
        return getattr(load(compiler, text, flags), ENTRY)
    # the linker did not find a vector function
    except BuildError:  # a library without all of these vector functions
        return getattr(load(compiler, text, (*flags, "-DSCALAR_FUNCTIONS")), ENTRY)


def compute(part: Part) -> None:
    """Compute a part by its kernel or by numpy, whichever is due or faster."""
    kernel = part.kernel
    if kernel is None:
        part.evaluate()
    else:
        choice: KernelChoice[Part] = get_shared_choice(
            kernel, lambda: KernelChoice(lambda: Part.run, MIN_S, Part.copied)
        )
        choice.run(part, part.evaluate)


def slice_array(array: Array, term: Sequence[str], box: Box) -> Array:
    """Return the part of an array at some values of its indices, as a view."""
    if not any(index in box for index in term):
        return array
    return array[tuple(box.get(index, slice(None)) for index in term)]


T = TypeVar("T")


class Workers:
    """Pools of threads by their number, reused by later calls.

    Starting a thread takes as long as reading a megabyte. Pools belong to a process,
    because a forked process does not have its parent's threads.
    """

    def __init__(self) -> None:
        self._pools: dict[tuple[int, int], ThreadPoolExecutor] = {}

    def pool(self, n_threads: int) -> ThreadPoolExecutor:
        key = os.getpid(), n_threads
        if key not in self._pools:
            pool = ThreadPoolExecutor(n_threads, "feinsum-program")
            return self._pools.setdefault(key, pool)
        return self._pools[key]


def run_each(run: Callable[[T], object], parts: Sequence[T], n_workers: int) -> None:
    """Run all parts on ``n_workers`` threads, one of which is the calling thread.

    Waits for all threads, also before it raises the error of a part.

    >>> seen = []
    >>> run_each(seen.append, [1, 2, 3], n_workers=2)
    >>> sorted(seen)
    [1, 2, 3]
    """
    remaining = deque(parts)

    def work() -> None:
        while remaining:
            try:
                item = remaining.popleft()
            except IndexError:  # another thread took the last item after the test
                return
            run(item)

    # the calling thread is one of the workers
    n_helpers = min(n_workers, len(remaining)) - 1
    if n_helpers < 1:
        work()
        return
    pool = get_remembered(Workers).pool(n_helpers)
    running = [pool.submit(work) for _ in range(n_helpers)]
    try:
        work()
    finally:
        # also after an error, because parts write to arrays of the caller
        wait(running)
    for future in running:
        future.result()
