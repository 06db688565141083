"""Compiled stages, and their calls."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from feinsum.errors import BuildError
from feinsum.memory import get_remembered
from feinsum.programs.compiled.source import ENTRY, StageSource
from feinsum.programs.stages import ArrayAccess, Stage, StageLoops, find_loops

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES = {"f", "d"}
MAX_SCRATCH_BYTES = 1 << 23
"""Maximum bytes of intermediate results, which have to stay in the caches."""

MAX_STATEMENTS = 50
"""Maximum number of statements: with more, compilers take seconds."""


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

    def run(
        self,
        operands: Mapping[str, Sequence[Array | None]],
        outs: Mapping[str, Array],
        first: Mapping[str, Mapping[str, int]],
    ) -> None:
        """Compute the stage.

        Args:
            operands: the operands of each statement, by its result; None for results of
                the stage.
            outs: arrays for the outputs of the stage.
            first: the first values of each statement's indices; 0 by default.

        Raises:
            DeviceUnavailableError: if there is no compiler.
            ProgramError: if a body or reduction has no equivalent in C.
            BuildError: if the stage cannot be compiled.
        """
        loops, entry = self.source.loops, self._entry
        addresses = [a.ctypes.data for a in _list_arrays(loops, operands, outs)]
        begin = [0] * loops.n_loops
        for result, values in first.items():
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


def make_kernel(
    stage: Stage,
    operands: Mapping[str, Sequence[Array | None]],
    outs: Mapping[str, Array],
    dtypes: Mapping[str, np.dtype[Any]],
) -> StageKernel | None:
    """Return the kernel of a stage for arrays of these strides, not compiled yet.

    None for arrays of several dtypes, not of real numbers, without entries or not
    aligned, and for stages with too many statements or too large intermediate results.
    """
    # numpy's promotions between dtypes are not those of C
    dtype, *other_dtypes = {*dtypes.values()}
    is_long = len(stage.statements) > MAX_STATEMENTS
    if other_dtypes or dtype.char not in DTYPES or is_long:
        return None
    loops = find_loops(stage)
    if loops is None:
        return None
    arrays = _list_arrays(loops, operands, outs)
    # vector loads would fault
    if not all(array.flags.aligned for array in arrays):
        return None
    layouts = tuple((array.shape, array.strides) for array in arrays)
    return _make_kernel(loops, dtype, layouts)


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


def _list_arrays(
    loops: StageLoops,
    operands: Mapping[str, Sequence[Array | None]],
    outs: Mapping[str, Array],
) -> list[Array]:
    def find_array(access: ArrayAccess) -> Array:
        if access.position is None:
            return outs[access.result]
        operand = operands[access.result][access.position]
        assert operand is not None
        return operand

    return [find_array(access) for access in loops.accesses]


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
