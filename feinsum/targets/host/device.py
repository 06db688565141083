"""The processor with its C compiler as a device, also for kernels in OpenCL C."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from string import Template
from time import perf_counter
from typing import Any

import loopy as lp
import numpy as np
import psutil
from loopy.target.c import CFamilyTarget, ExecutableCTarget

from feinsum.errors import MeasurementError
from feinsum.records import Device, Environment
from feinsum.records.environment import HOST_PLATFORM
from feinsum.result_memory import make_aligned
from feinsum.targets.host.code import (
    POOL,
    UNALIGNED,
    VERSION,
    EmbeddedCTarget,
    HostCTarget,
    StandaloneCTarget,
    declare_vector,
)
from feinsum.targets.host.compiler import INSTALL_HINT, Compiler, find_compiler, load
from feinsum.targets.host.executor import ProgramKernel
from feinsum.targets.host.kernel import HostCode, HostKernel, get_pool
from feinsum.targets.layout import Layout, compute_layout, get_entry_kernel
from feinsum.targets.processor import describe_host_processor
from feinsum.targets.protocol import Array, DeviceMemory, Timer, list_versions
from feinsum.targets.units import convert_to_target
from feinsum.threads import get_n_threads


@dataclass(frozen=True, eq=False)
class HostDevice:
    """The processor; see :class:`feinsum.targets.protocol.OpenDevice`."""

    device: Device

    slot = ""
    timer: Timer = "wall"
    reads_in_place = True
    has_double = True

    @property
    def memory(self) -> DeviceMemory:
        total = psutil.virtual_memory().total
        caches = describe_host_processor().cache_bytes
        return DeviceMemory(total, total // 2, max(caches.values(), default=0))

    @property
    def compiler(self) -> Compiler:
        return find_compiler()

    @cached_property
    def software(self) -> dict[str, str]:
        return list_versions()

    def environment(self, policy: Mapping[str, str | int | float]) -> Environment:
        """Describe the compiler as the driver, and its options as the platform."""
        return Environment(
            device=self.device,
            driver_version=self.compiler.version,
            platform_version=f"{VERSION} {' '.join(self.compiler.flags)}",
            software=self.software,
            policy=policy,
        )

    def prepare(self, t_unit: Any) -> Any:
        return _convert_to_host(t_unit)

    def generate(self, t_unit: Any) -> HostCode:
        """Generate the code of a unit without compiling it."""
        code: HostCode = t_unit.executor().generated(None)
        return code

    def build(self, t_unit: Any) -> HostBuilt:
        info = t_unit.executor().translation_unit_info(None)
        return HostBuilt(t_unit, info.code.n_launches, info.kernel)

    def upload(self, buffer: Array, layout: Layout) -> Array:
        """Return a view, because kernels work on the memory of the caller."""
        return layout.unpack(buffer)

    def download(self, array: Array, layout: Layout) -> Array:
        return _flatten(array, layout.n_entries).copy()

    def overwrite(self, array: Array, buffer: Array) -> None:
        _flatten(array, buffer.size)[:] = buffer

    def program(self, source: str, name: str) -> HostCProgram:
        return HostCProgram(self.compiler, source, name)


def _flatten(array: Array, n_entries: int) -> Array:
    """Return the buffer that an array is a view of."""
    return np.lib.stride_tricks.as_strided(array, (n_entries,), (array.itemsize,))


@dataclass(frozen=True, eq=False)
class HostBuilt:
    """A unit that is built; see :class:`feinsum.targets.protocol.Built`."""

    t_unit: Any
    n_launches: int
    kernel: HostKernel | ProgramKernel

    timer: Timer = "wall"

    def check_figures(self) -> None:
        """Do nothing: C compilers report no figures."""

    def run(self, arguments: Mapping[str, Any], timer: Timer) -> float:
        if timer != "wall":
            raise MeasurementError(f"the host has no clock {timer!r}, only 'wall'")
        run = self.kernel.launch_of(arguments).run
        start = perf_counter()
        run()
        return perf_counter() - start

    def caller(
        self, names: Sequence[str], constants: Mapping[str, Any], _queue: Any = None, /
    ) -> Callable[..., Any]:
        """Return a function that works on arrays in place."""
        (output,) = (arg for arg in get_entry_kernel(self.t_unit).args if arg.is_output)
        layout = compute_layout(output, constants)
        run = self.kernel.caller((*names, output.name), constants)

        def call(arrays: Sequence[Array], out: Array | None = None) -> Array:
            if out is None:
                out = make_aligned(layout.shape, layout.dtype)
            run((*arrays, out))
            return out

        return call


class HostTarget:
    """This machine; see :class:`feinsum.targets.protocol.Target`."""

    name = "host"
    install_hint = INSTALL_HINT
    is_in_process = True

    def serves(self, loopy_target: Any) -> bool:
        is_c = isinstance(loopy_target, CFamilyTarget)
        return is_c and not isinstance(loopy_target, lp.OpenCLTarget | lp.CudaTarget)

    def devices(self) -> tuple[Device, ...]:
        """List the host, if it has a compiler.

        Raises:
            DeviceUnavailableError: if there is no compiler.
        """
        find_compiler()
        return (describe_host(get_n_threads()),)

    def open(self, device: Device) -> HostDevice:
        return _open_once(device)

    def delivered(self, t_unit: Any, loopy_target: Any) -> Any:
        """Convert a unit for this process's threads, or to code for other compilers."""
        if isinstance(loopy_target, StandaloneCTarget):
            return convert_to_target(t_unit, loopy_target)
        if self.runs_programs(loopy_target):
            return _convert_to_host(t_unit)
        return EmbeddedCTarget.embedded(t_unit)

    def runs_programs(self, loopy_target: Any) -> bool:
        is_run_here = isinstance(loopy_target, ExecutableCTarget | HostCTarget)
        return is_run_here and not isinstance(loopy_target, StandaloneCTarget)


HOST = HostTarget()


def _convert_to_host(t_unit: Any) -> Any:
    """Return the unit itself if it is for the host already."""
    is_ours = type(t_unit.target) is HostCTarget
    return t_unit if is_ours else convert_to_target(t_unit, HostCTarget())


@cache
def _open_once(device: Device) -> HostDevice:
    return HostDevice(device)


@cache
def describe_host(threads: int) -> Device:
    """Describe this machine with a number of threads."""
    processor = describe_host_processor()
    return Device(
        platform=HOST_PLATFORM,
        name=_read_name() or processor.microarchitecture,
        vendor=processor.vendor,
        kind="cpu",
        architecture=platform.machine(),
        compute_units=threads,
        processor=processor,
    )


def _read_name() -> str:
    """Read the system's name of the processor; virtual machines may hide it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = (line.partition(":") for line in lines if line.startswith("model name"))
    return next((name.strip() for _, _, name in named), "")


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
    """A kernel, compiled on the first run for each combination of argument types.

    See :class:`feinsum.targets.protocol.SourceKernel`.
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
        """Run over ``n_items`` work-items; return the seconds by the wall clock."""
        if timer not in (None, "wall"):
            raise MeasurementError(f"the host has no clock {timer!r}, only 'wall'")
        launch = self._get_kernel(arguments).launch(
            [n_items, n_local or 1024, *arguments]
        )
        start = perf_counter()
        launch.run()
        return perf_counter() - start

    def _get_kernel(self, arguments: Sequence[Any]) -> HostKernel:
        kinds = tuple(
            None if isinstance(value, np.ndarray) else value.dtype.str
            for value in arguments
        )
        if kinds not in self._built:
            self._built[kinds] = self._compile_for(kinds)
        return self._built[kinds]

    def _compile_for(self, kinds: Sequence[str | None]) -> HostKernel:
        slots = [
            f"slots[{position}]"
            if kind is None
            else f"*(const {_SCALARS[kind]} *) slots[{position}]"
            for position, kind in enumerate(kinds, start=2)
        ]
        source = _SOURCE.substitute(
            types="\n".join((POOL, *map(_declare, _TYPES))),
            kernel=self.source,
            name=self.name,
            arguments=", ".join(slots),
        )
        sizes = [np.dtype(np.int64)] * 2
        dtypes = [None if kind is None else np.dtype(kind) for kind in kinds]
        named = tuple(
            (f"slot{position}", dtype)
            for position, dtype in enumerate([*sizes, *dtypes])
        )
        with ThreadPoolExecutor(1) as executor:
            # compiled meanwhile; errors come at its first use
            executor.submit(get_pool)
            library = load(self.compiler, source, self.compiler.flags)
            return HostKernel(library, named)


def _declare(name: str) -> str:
    """Declare an unaligned vector type, as arrays of these kernels may be unaligned."""
    return f"{declare_vector(name)}\n#define {name} {name}{UNALIGNED}"
