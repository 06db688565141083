"""Kernels that are written in OpenCL C, run by the host."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from string import Template
from time import perf_counter
from typing import Any

import numpy as np

from feinsum.errors import MeasurementError
from feinsum.targets.host.code import POOL, UNALIGNED, declared
from feinsum.targets.host.compiler import Compiler
from feinsum.targets.host.kernel import HostKernel
from feinsum.targets.host.pool import pool
from feinsum.targets.protocol import Timer

__all__ = ["HostCProgram"]

ITEMS = 1024
"""Work-items of a group, where that is left open."""

_TYPES = [f"{base}{n}" for base in ("float", "double") for n in (2, 4, 8, 16)]
_SCALARS = {"<f4": "float", "<f8": "double", "<u4": "uint32_t", "<i4": "int32_t"}

_SOURCE = Template("""\
$types
typedef uint32_t uint;
#define __global
#define restrict __restrict__
#define SPLAT(type, x) ((x) - (type) {0})
#define KERNEL(name, ...) static inline __attribute__((always_inline)) void name( \\
  size_t global_id, size_t group_id, size_t local_id, __VA_ARGS__)
#define get_global_id(axis) global_id
#define get_group_id(axis) group_id
#define get_local_id(axis) local_id
$kernel

static void groups(void *const *slots, int64_t first, int64_t past, char *scratch)
{
  const int64_t n_items = *(const int64_t *) slots[0];
  const int64_t n_local = *(const int64_t *) slots[1];
  for (int64_t group = first; group < past; ++group)
    for (int64_t item = 0; item < n_local; ++item)
      if (group * n_local + item < n_items)
        $name(group * n_local + item, group, item, $arguments);
}

__attribute__((visibility("default"))) int feinsum_entry(
  void *const *slots, feinsum_parallel_t parallel, feinsum_arena_t arena)
{
  static _Atomic int64_t work_ns;
  const int64_t n_items = *(const int64_t *) slots[0];
  const int64_t n_local = *(const int64_t *) slots[1];
  return parallel(groups, slots, (n_items + n_local - 1) / n_local, 0, &work_ns);
}
""")


@dataclass(frozen=True)
class HostCProgram:
    """A kernel, compiled for the arguments that it is first run with.

    See :class:`feinsum.targets.protocol.Program`.
    """

    compiler: Compiler
    source: str
    name: str
    _built: dict[tuple[str | None, ...], HostKernel] = field(default_factory=dict)

    def run(
        self,
        arguments: Sequence[Any],
        n_items: int,
        n_local: int | None = None,
        timer: Timer | None = None,
    ) -> float:
        """Seconds of a run over ``n_items`` work-items, by the wall clock."""
        if timer not in (None, "wall"):
            raise MeasurementError(f"the host has no clock {timer!r}, only 'wall'")
        launch = self._kernel(arguments).launch([n_items, n_local or ITEMS, *arguments])
        start = perf_counter()
        launch.run()
        return perf_counter() - start

    def _kernel(self, arguments: Sequence[Any]) -> HostKernel:
        kinds = tuple(
            None if isinstance(value, np.ndarray) else value.dtype.str
            for value in arguments
        )
        if kinds not in self._built:
            self._built[kinds] = self._compiled(kinds)
        return self._built[kinds]

    def _compiled(self, kinds: Sequence[str | None]) -> HostKernel:
        slots = [
            f"slots[{at}]"
            if kind is None
            else f"*(const {_SCALARS[kind]} *) slots[{at}]"
            for at, kind in enumerate(kinds, start=2)
        ]
        source = _SOURCE.substitute(
            types="\n".join((POOL, *map(_declared, _TYPES))),
            kernel=self.source,
            name=self.name,
            arguments=", ".join(slots),
        )
        sizes = [np.dtype(np.int64)] * 2
        given = [None if kind is None else np.dtype(kind) for kind in kinds]
        named = tuple((f"slot{at}", dtype) for at, dtype in enumerate([*sizes, *given]))
        with ThreadPoolExecutor(1) as other:
            other.submit(pool)  # compiled meanwhile; errors come at its first use
            return HostKernel.compiled(self.compiler, source, (), named)


def _declared(name: str) -> str:
    """A vector that may lie anywhere, for the arrays of such kernels do."""
    return f"{declared(name)}\n#define {name} {name}{UNALIGNED}"
