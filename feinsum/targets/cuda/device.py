"""NVIDIA GPUs as devices.

A process that only runs kernels opens devices, too. So what generates code is imported
by the methods that need it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.errors import DeviceUnavailableError, MeasurementError
from feinsum.targets.cuda.cupy_session import CupySession
from feinsum.targets.cuda.nvrtc import INSTALL_HINT, CudaBinary, find_nvrtc
from feinsum.targets.cuda.session import Driver, GpuFacts, find_driver
from feinsum.targets.protocol import Array, DeviceMemory, Timer, list_versions

if TYPE_CHECKING:
    from feinsum.records import Device, Environment
    from feinsum.targets.cuda.built import CudaBuilt, DeviceArray
    from feinsum.targets.cuda.programs import CudaProgram
    from feinsum.targets.layout import Layout


@dataclass(frozen=True, eq=False)
class CudaDevice:
    """An open GPU; see :class:`feinsum.targets.protocol.OpenDevice`.

    Attributes:
        flushes_cache: whether the second-level cache is flushed before a timed run;
            otherwise it has the data of the previous run.
    """

    facts: GpuFacts
    session: CupySession
    flushes_cache: bool = False
    _flusher: list[Any] = field(default_factory=list)

    timer: Timer = "cuda-events"
    reads_in_place = False
    has_double = True

    @cached_property
    def device(self) -> Device:
        """The description that goes into records."""
        return describe_gpu(self.facts)

    @property
    def slot(self) -> str:
        return self.facts.slot

    @property
    def memory(self) -> DeviceMemory:
        # a single array may take the whole memory
        total = self.facts.memory_bytes
        return DeviceMemory(total, total, self.facts.cache_bytes)

    @property
    def capability(self) -> int:
        """The compute capability as a number, such as 90."""
        major, minor = self.facts.capability
        return 10 * major + minor

    @cached_property
    def software(self) -> dict[str, str]:
        return list_versions("cupy") | {"nvrtc": find_nvrtc().version}

    def environment(self, policy: Mapping[str, str | int | float]) -> Environment:
        """Describe the driver by its CUDA version, and the platform with its clock."""
        from feinsum.records import Environment

        return Environment(
            device=self.device,
            driver_version=self.facts.driver,
            platform_version=f"sm_{self.capability} {self.facts.clock_khz // 1000} MHz",
            software=self.software,
            policy={**policy, "cache": "flushed" if self.flushes_cache else "warm"},
        )

    def prepare(self, t_unit: Any) -> Any:
        from feinsum.targets.cuda.code import CudaTarget
        from feinsum.targets.units import convert_to_target

        # Loopy's own CUDA target has neither vectors nor dynamic shared memory
        is_ours = type(t_unit.target) is CudaTarget
        return t_unit if is_ours else convert_to_target(t_unit, CudaTarget())

    def compiled(self, source: str) -> CudaBinary:
        """Compile for the compute capability of the device.

        Raises:
            BuildError: if it cannot be compiled.
        """
        compiler = find_nvrtc()
        architecture = compiler.choose_architecture(self.facts.capability)
        return compiler.compile(source, architecture)

    def build(self, t_unit: Any) -> CudaBuilt:
        from feinsum.targets.cuda.built import CudaBuilt, check_launch
        from feinsum.targets.cuda.code import generate_cuda

        code = generate_cuda(t_unit)
        for launch in code.launches:
            check_launch(launch, self.capability)
        binary = self.compiled(code.source)
        for launch in code.launches:
            # refused here, and not at the first launch
            self.session.function(binary, launch.name, launch.shared_bytes)
        return CudaBuilt(self, t_unit, code, binary)

    def upload(self, buffer: Array, layout: Layout) -> DeviceArray:
        from feinsum.targets.cuda.built import DeviceArray

        self.check_room(buffer.nbytes)
        flat = self.session.allocate(buffer.size, buffer.dtype)
        self.session.write(flat, buffer)
        return DeviceArray(flat, layout)

    def check_room(self, n_bytes: int, purpose: str = "an array") -> None:
        """Check that the GPU has enough free memory, before anything is launched.

        Args:
            n_bytes: size in bytes.
            purpose: the name of the data in the message.

        Raises:
            MeasurementError: if the free memory is too small.
        """
        free = self.session.free_bytes()
        if n_bytes > free:
            raise MeasurementError(
                f"{purpose} of {n_bytes / 1e9:.2f} GB does not fit the memory of "
                f"{self.device}, of which {free / 1e9:.2f} GB are free: compute it in "
                "parts, or free memory of other libraries, such as by "
                "torch.cuda.empty_cache()"
            )

    def download(self, array: DeviceArray, layout: Layout) -> Array:
        return self.session.read(array.flat)[: layout.n_entries]

    def overwrite(self, array: DeviceArray, buffer: Array) -> None:
        self.session.write(array.flat, buffer)

    def program(self, source: str, name: str) -> CudaProgram:
        from feinsum.targets.cuda.programs import DIALECT, CudaProgram

        return CudaProgram(self.session, self.compiled(DIALECT + source), name)

    def flush(self) -> None:
        """Fill the cache with other data."""
        if not self._flusher:
            # twice the size of the cache, so that any policy evicts all other data
            n_bytes = 2 * max(self.facts.cache_bytes, 1 << 20)
            flat = self.session.allocate(n_bytes, np.dtype(np.uint8))
            self._flusher.append(flat)
        self.session.clear(self._flusher[0])


class Cuda:
    """The target ``cuda``; see :class:`feinsum.targets.protocol.Target`."""

    name = "cuda"
    install_hint = INSTALL_HINT
    is_in_process = True

    def serves(self, loopy_target: Any) -> bool:
        import loopy as lp

        return isinstance(loopy_target, lp.CudaTarget)

    def devices(self) -> tuple[Device, ...]:
        """List the GPUs in the order of the driver.

        Raises:
            DeviceUnavailableError: saying whether a driver, a GPU or CuPy is missing.
        """
        gpus = find_driver().gpus()
        if gpus:
            # without a compiler, the GPUs cannot be used
            find_nvrtc()
        return tuple(dict.fromkeys(map(describe_gpu, gpus)))

    def open(self, device: Device) -> CudaDevice:
        """Open a device once per process; of equal ones, the first."""
        driver = find_driver()
        for opened in [*_open_devices(driver).values()]:  # other threads may open more
            if opened.device == device:
                return opened
        # equal GPUs of one machine have one description: take the first
        for facts in driver.gpus():
            if describe_gpu(facts) == device:
                return _open_once(driver, facts)
        raise DeviceUnavailableError(f"{device} was not found; {INSTALL_HINT}")

    def open_ordinal(self, ordinal: int) -> CudaDevice:
        """Open the GPU with a number, as other libraries count them.

        An open GPU is returned without a call of the driver, because every call on
        arrays needs it, and listing the GPUs takes a millisecond or two.

        Raises:
            DeviceUnavailableError: if there is no GPU with that number.
        """
        driver = find_driver()
        opened = _open_devices(driver).get(ordinal)
        if opened is not None:
            return opened
        for facts in driver.gpus():
            if facts.ordinal == ordinal:
                return _open_once(driver, facts)
        raise DeviceUnavailableError(f"there is no GPU {ordinal}; {INSTALL_HINT}")

    def delivered(self, t_unit: Any, loopy_target: Any) -> Any:
        """Convert a unit to the user's CUDA target; the user compiles it."""
        from feinsum.targets.cuda.code import CudaTarget
        from feinsum.targets.units import convert_to_target

        ours = isinstance(loopy_target, CudaTarget)
        return convert_to_target(t_unit, loopy_target if ours else CudaTarget())

    def runs_programs(self, _loopy_target: Any) -> bool:
        return False


CUDA = Cuda()

_OPEN: dict[tuple[int, Driver], dict[int, CudaDevice]] = {}
"""Open GPUs by process and driver, then by ordinal; contexts do not survive a fork."""

_OPENING = Lock()


def _open_devices(driver: Driver) -> dict[int, CudaDevice]:
    return _OPEN.setdefault((os.getpid(), driver), {})


def _open_once(driver: Driver, facts: GpuFacts) -> CudaDevice:
    devices = _open_devices(driver)
    with _OPENING:
        if facts.ordinal not in devices:
            session = driver.open(facts.ordinal)
            devices[facts.ordinal] = CudaDevice(facts, session)
        return devices[facts.ordinal]


def describe_gpu(facts: GpuFacts) -> Device:
    """Return the description that goes into records."""
    from feinsum.records import Device
    from feinsum.records.environment import CUDA_PLATFORM

    major, minor = facts.capability
    return Device(
        platform=CUDA_PLATFORM,
        name=facts.name,
        vendor="NVIDIA Corporation",
        kind="gpu",
        architecture=f"sm_{major}{minor}",
        compute_units=facts.multiprocessors,
    )
