"""GPUs of NVIDIA as devices."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod
from threading import Lock
from time import perf_counter
from typing import Any

import loopy as lp
import numpy as np
from pymbolic.mapper.evaluator import evaluate

from feinsum.errors import BuildError, DeviceUnavailableError, MeasurementError
from feinsum.records import Device, Environment
from feinsum.records.environment import CUDA_PLATFORM
from feinsum.targets.cuda.code import CudaCode, CudaLaunch, CudaTarget, generated
from feinsum.targets.cuda.driver import Driver, GpuFacts, Session, find_driver
from feinsum.targets.cuda.figures import (
    MOST_THREADS,
    KernelFigures,
    figures_of,
    multiprocessor_of,
)
from feinsum.targets.cuda.nvrtc import INSTALL_HINT, CudaBinary, find_nvrtc
from feinsum.targets.cuda.program import CudaProgram
from feinsum.targets.layout import Layout, array_layout, entry_kernel
from feinsum.targets.protocol import Array, Memory, Timer
from feinsum.targets.software import software
from feinsum.targets.units import for_target
from feinsum.variables import CUDA_CACHE_VARIABLE

__all__ = ["CUDA", "CudaBuilt", "CudaDevice", "DeviceArray", "describe"]

CACHES = ("warm", "flushed")
"""What a timed run finds in the cache of the GPU; the first is the default."""


def cache_state() -> str:
    """What the variable says.

    Raises:
        MeasurementError: if it is neither.
    """
    named = os.environ.get(CUDA_CACHE_VARIABLE, "").strip() or CACHES[0]
    if named not in CACHES:
        raise MeasurementError(
            f"{CUDA_CACHE_VARIABLE} is {named!r}; expected one of {list(CACHES)}"
        )
    return named


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """A flat array of a GPU that has the entries of a layout."""

    flat: Any
    layout: Layout


@dataclass(frozen=True, eq=False)
class CudaDevice:
    """An open GPU; see :class:`feinsum.targets.protocol.OpenDevice`."""

    device: Device
    facts: GpuFacts
    session: Session
    _flusher: list[Any] = field(default_factory=list)

    timer: Timer = "cuda-events"
    reads_in_place = False
    has_double = True

    @property
    def slot(self) -> str:
        return self.facts.slot

    @property
    def memory(self) -> Memory:
        total = self.facts.memory_bytes
        return Memory(total, total, self.facts.cache_bytes)

    @property
    def capability(self) -> int:
        """As a number, such as 90."""
        major, minor = self.facts.capability
        return 10 * major + minor

    @cached_property
    def software(self) -> dict[str, str]:
        return software("cupy") | {"nvrtc": find_nvrtc().version}

    def environment(self, policy: Mapping[str, str | int | float]) -> Environment:
        """The driver by its version of CUDA; clocks are a part of the platform."""
        return Environment(
            device=self.device,
            driver_version=self.facts.driver,
            platform_version=f"sm_{self.capability} {self.facts.clock_khz // 1000} MHz",
            software=self.software,
            policy={**policy, "cache": cache_state()},
        )

    def prepare(self, t_unit: Any) -> Any:
        is_ours = type(t_unit.target) is CudaTarget
        return t_unit if is_ours else for_target(t_unit, CudaTarget())

    def compiled(self, source: str) -> CudaBinary:
        """For the compute capability of the device.

        Raises:
            BuildError: if it cannot be compiled.
        """
        compiler = find_nvrtc()
        architecture = compiler.architecture_for(self.facts.capability)
        return compiler.compile(source, architecture)

    def build(self, t_unit: Any) -> CudaBuilt:
        code = generated(t_unit)
        for launch in code.launches:
            check_launch(launch, self.capability)
        binary = self.compiled(code.source)
        functions = tuple(
            self.session.function(binary, launch.name, launch.shared_bytes)
            for launch in code.launches
        )
        return CudaBuilt(self, t_unit, code, binary, functions)

    def upload(self, buffer: Array, layout: Layout) -> DeviceArray:
        self.check_room(buffer.nbytes)
        flat = self.session.allocate(buffer.size, buffer.dtype)
        self.session.write(flat, buffer)
        return DeviceArray(flat, layout)

    def check_room(self, n_bytes: int) -> None:
        """Refuse what the memory of the GPU cannot hold, before anything is launched.

        Raises:
            MeasurementError: if it does not fit what is free.
        """
        free = self.session.free_bytes()
        if n_bytes > free:
            raise MeasurementError(
                f"an array of {n_bytes / 1e9:.2f} GB does not fit the memory of "
                f"{self.device}, of which {free / 1e9:.2f} GB are free: compute it in "
                "parts, or free arrays of other libraries"
            )

    def download(self, array: DeviceArray, layout: Layout) -> Array:
        return self.session.read(array.flat)[: layout.n_entries]

    def overwrite(self, array: DeviceArray, buffer: Array) -> None:
        self.session.write(array.flat, buffer)

    def program(self, source: str, name: str) -> CudaProgram:
        return CudaProgram.of(self.session, self.compiled, source, name)

    def flush(self) -> None:
        """Fill the cache with something else."""
        if not self._flusher:
            n_bytes = 2 * max(self.facts.cache_bytes, 1 << 20)
            flat = self.session.allocate(n_bytes, np.dtype(np.uint8))
            self._flusher.append(flat)
        self.session.clear(self._flusher[0])


def check_launch(launch: CudaLaunch, capability: int) -> None:
    """Refuse a work-group that no multiprocessor of the device holds.

    Raises:
        BuildError: naming the figure.
    """
    has = multiprocessor_of(capability)
    n_bytes = launch.shared_bytes + launch.static_bytes
    if n_bytes > has.group_shared_bytes:
        raise BuildError(
            f"a work-group of {launch.name!r} takes {n_bytes} bytes of shared memory; "
            f"sm_{capability} has {has.group_shared_bytes}; take smaller tiles"
        )
    if all(isinstance(n, (int, np.integer)) for n in launch.block):
        n_threads = prod(int(n) for n in launch.block)
        if n_threads > MOST_THREADS:
            raise BuildError(
                f"a work-group of {launch.name!r} has {n_threads} work-items; expected "
                f"at most {MOST_THREADS}"
            )


@dataclass(frozen=True, eq=False)
class CudaBuilt:
    """A unit that is built and loaded; see :class:`feinsum.targets.protocol.Built`."""

    opened: CudaDevice
    t_unit: Any
    code: CudaCode
    binary: CudaBinary
    functions: tuple[Any, ...]

    timer: Timer = "cuda-events"

    @property
    def n_launches(self) -> int:
        return len(self.functions)

    def figures(self) -> tuple[KernelFigures, ...]:
        """Registers, spills and shared memory of each launch."""
        return tuple(figures_of(self.binary.log, x.name) for x in self.code.launches)

    def run(self, arguments: Mapping[str, Any], timer: Timer) -> float:
        """By events, or by the wall clock around launch and end."""
        session = self.opened.session
        launch = self.launcher(arguments)
        if cache_state() == "flushed":
            self.opened.flush()
        session.synchronize()
        if timer == "cuda-events":
            return session.timed(launch)
        if timer != "wall":
            raise MeasurementError(
                f"a GPU has no clock {timer!r}, only 'cuda-events' and 'wall'"
            )
        return _by_wall(session, launch)

    def launcher(
        self, arguments: Mapping[str, Any], stream: Any = None
    ) -> Callable[[], None]:
        """All launches of one run, ready to be made any number of times."""
        scalars = {name: arguments[name] for name in self.code.scalars}
        values = {**dict(arguments), **self._temporaries(scalars)}
        steps = []
        for launch, function in zip(self.code.launches, self.functions, strict=True):
            grid, block = launch.sizes(scalars)
            if prod(grid) == 0:
                continue
            given = [self._passed(name, values[name]) for name in launch.arguments]
            steps.append(
                partial(
                    self.opened.session.launch,
                    function, grid, block, given, launch.shared_bytes, stream,
                )
            )  # fmt: skip

        def run() -> None:
            for step in steps:
                step()

        return run

    def repeated(self, arguments: Mapping[str, Any], n: int) -> Callable[[], None]:
        """``n`` runs as one graph, which the GPU starts without the host."""
        return self.opened.session.repeated(self.launcher(arguments), n)

    def caller(
        self, names: Sequence[str], constants: Mapping[str, Any], place: Any = None
    ) -> Callable[..., Any]:
        """Arrays of numpy are copied; those of a GPU are read where they are.

        Results are where the operands were, on the stream of the caller.
        """
        (output,) = (arg for arg in entry_kernel(self.t_unit).args if arg.is_output)
        layout, turn = array_layout(output, constants), Lock()
        session = self.opened.session

        def call(arrays: Sequence[Any], out: Any = None) -> Any:
            is_host = all(isinstance(array, np.ndarray) for array in arrays)
            given, stream = self._given(names, arrays, place, is_host=is_host)
            with turn:
                result = session.allocate(layout.n_entries, layout.dtype)
                everything = {**constants, **given, output.name: result}
                self.launcher(everything, stream)()
                if not is_host:
                    return _delivered(result, layout, out)
                session.synchronize()
                found = layout.unpack(session.read(result))
            if out is None:
                return found.copy()
            out[...] = found
            return out

        return call

    def _given(
        self, names: Sequence[str], arrays: Sequence[Any], place: Any, *, is_host: bool
    ) -> tuple[dict[str, Any], Any]:
        """The operands on the GPU, and the stream on which they are ready."""
        if not is_host:
            return dict(zip(names, arrays, strict=True)), place
        given = {}
        for name, array in zip(names, arrays, strict=True):
            flat = np.ascontiguousarray(array).reshape(-1)
            layout = Layout(flat.shape, (1,), flat.dtype)
            given[name] = self.opened.upload(flat, layout).flat
        return given, None

    def _temporaries(self, scalars: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays that one launch hands to the next."""
        made = {}
        for name, (shape, dtype) in self.code.temporaries.items():
            n_entries = int(prod(int(evaluate(n, dict(scalars))) for n in shape))
            self.opened.check_room(n_entries * dtype.itemsize)
            made[name] = self.opened.session.allocate(max(n_entries, 1), dtype)
        return made

    def _passed(self, name: str, value: Any) -> Any:
        dtype = self.code.scalars.get(name)
        if dtype is not None:
            return dtype.type(value)
        return value.flat if isinstance(value, DeviceArray) else value


def _by_wall(session: Session, launch: Callable[[], None]) -> float:
    start = perf_counter()
    launch()
    session.synchronize()
    return perf_counter() - start


def _delivered(result: Any, layout: Layout, out: Any) -> Any:
    """The result in its shape, or in ``out``."""
    shaped = result.reshape(layout.shape)
    if out is None:
        return shaped
    out[...] = shaped
    return out


class Cuda:
    """All that the driver finds; see :class:`feinsum.targets.protocol.Target`."""

    name = "cuda"
    install_hint = INSTALL_HINT
    is_in_process = True

    def serves(self, loopy_target: Any) -> bool:
        return isinstance(loopy_target, lp.CudaTarget)

    def devices(self) -> tuple[Device, ...]:
        """In the order of the driver.

        Raises:
            DeviceUnavailableError: saying whether a driver, a GPU or CuPy is missing.
        """
        found = find_driver().gpus()
        if found:
            find_nvrtc()
        return tuple(dict.fromkeys(map(describe, found)))

    def open(self, device: Device) -> CudaDevice:
        """One session per device and process; of equal ones the first."""
        driver = find_driver()
        for facts in driver.gpus():
            if describe(facts) == device:
                return _opened(driver, facts)
        raise DeviceUnavailableError(f"{device} is not there; {INSTALL_HINT}")

    def open_ordinal(self, ordinal: int) -> CudaDevice:
        """The GPU of a number, as other libraries count them.

        Raises:
            DeviceUnavailableError: if there is none of that number.
        """
        driver = find_driver()
        for facts in driver.gpus():
            if facts.ordinal == ordinal:
                return _opened(driver, facts)
        raise DeviceUnavailableError(f"there is no GPU {ordinal}; {INSTALL_HINT}")

    def delivered(self, t_unit: Any, loopy_target: Any) -> Any:
        """For the target that it came with, completed, which is compiled by others."""
        ours = isinstance(loopy_target, CudaTarget)
        return for_target(t_unit, loopy_target if ours else CudaTarget())

    def runs_programs(self, _loopy_target: Any) -> bool:
        return False


CUDA = Cuda()

_OPEN: dict[tuple[int, Driver, int], CudaDevice] = {}
"""By process, since a context does not survive a fork, driver and ordinal."""


def _opened(driver: Driver, facts: GpuFacts) -> CudaDevice:
    key = os.getpid(), driver, facts.ordinal
    if key not in _OPEN:
        session = driver.open(facts.ordinal)
        _OPEN[key] = CudaDevice(describe(facts), facts, session)
    return _OPEN[key]


def describe(facts: GpuFacts) -> Device:
    """The description that goes into records."""
    major, minor = facts.capability
    return Device(
        platform=CUDA_PLATFORM,
        name=facts.name,
        vendor="NVIDIA Corporation",
        kind="gpu",
        architecture=f"sm_{major}{minor}",
        compute_units=facts.multiprocessors,
    )
