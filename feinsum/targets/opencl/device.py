"""OpenCL devices: listing, opening, building, timing, and their arrays."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import median
from threading import Lock
from time import perf_counter
from typing import Any

import loopy as lp
import numpy as np

from feinsum.errors import DeviceUnavailableError, MeasurementError
from feinsum.libraries import is_device_array
from feinsum.records import Device, Environment
from feinsum.records.environment import DeviceKind
from feinsum.targets.layout import Layout
from feinsum.targets.opencl import executors  # noqa: F401  (registers itself)
from feinsum.targets.opencl.door import (
    INSTALL_HINT,
    convert_opencl_errors,
    is_intel_platform,
    load_pyopencl,
    silence_builds,
)
from feinsum.targets.processor import describe_host_processor
from feinsum.targets.protocol import Array, DeviceMemory, Timer, list_versions
from feinsum.targets.units import convert_to_target
from feinsum.words import describe_type


@dataclass(frozen=True, eq=False)
class OpenCLDevice:
    """An open device: its description, a context, an in-order queue.

    Attributes:
        device: the description that goes into records.
        context: a :class:`pyopencl.Context` of this device alone.
        queue: a :class:`pyopencl.CommandQueue` with profiling enabled.
    """

    device: Device
    context: Any
    queue: Any

    @property
    def handle(self) -> Any:
        """The :class:`pyopencl.Device`."""
        return self.queue.device

    reads_in_place = False

    @property
    def slot(self) -> str:
        """The address on the PCI bus, if the driver reports it."""
        names = ("pci_domain_id_nv", "pci_bus_id_nv", "pci_slot_id_nv")
        try:
            return ":".join(str(getattr(self.handle, name)) for name in names)
        except (
            AttributeError,
            load_pyopencl().Error,
        ):  # other vendors have no such names
            return ""

    @property
    def memory(self) -> DeviceMemory:
        handle = self.handle
        return DeviceMemory(
            handle.global_mem_size,
            handle.max_mem_alloc_size,
            handle.global_mem_cache_size,
        )

    @property
    def timer(self) -> Timer:
        return choose_timer(self.queue)

    @property
    def has_double(self) -> bool:
        return bool(self.handle.double_fp_config)

    @cached_property
    def software(self) -> dict[str, str]:
        return list_versions("pyopencl")

    def environment(self, policy: Mapping[str, str | int | float]) -> Environment:
        """Describe the device by OpenCL's strings, verbatim."""
        with convert_opencl_errors("cannot query the device", DeviceUnavailableError):
            return Environment(
                device=self.device,
                driver_version=self.handle.driver_version,
                platform_version=self.handle.platform.version,
                software=self.software,
                policy=policy,
            )

    def prepare(self, t_unit: Any) -> Any:
        """Return the unit itself if it is for OpenCL already."""
        is_ours = isinstance(t_unit.target, lp.PyOpenCLTarget)
        return t_unit if is_ours else convert_to_target(t_unit, lp.PyOpenCLTarget())

    def build(self, t_unit: Any) -> _Built:
        with silence_builds():
            executor = t_unit.executor(self.context)
            info = executor.translation_unit_info(None)
        return _Built(self, t_unit, executor, len(vars(info.cl_kernels)))

    def upload(self, buffer: Array, layout: Layout) -> Any:
        cl_array = load_pyopencl().array
        with convert_opencl_errors(f"an array of {buffer.nbytes} bytes"):
            flat = cl_array.to_device(self.queue, buffer)
            return cl_array.Array(
                self.queue,
                layout.shape,
                layout.dtype,
                strides=layout.strides_bytes,
                data=flat.base_data,
            )

    def download(self, array: Any, layout: Layout) -> Array:
        buffer = np.empty(layout.n_entries, layout.dtype)
        with convert_opencl_errors("an array cannot be read"):
            # pyopencl blocks by default until a copy from or to the host is complete
            load_pyopencl().enqueue_copy(self.queue, buffer, array.base_data)
        return buffer

    def overwrite(self, array: Any, buffer: Array) -> None:
        with convert_opencl_errors("an array cannot be written"):
            load_pyopencl().enqueue_copy(self.queue, array.base_data, buffer)

    def program(self, source: str, name: str) -> OpenCLProgram:
        return OpenCLProgram.of(self.queue, source, name)


@dataclass(frozen=True, eq=False)
class _Built:
    """A unit with Loopy's executor; see :class:`feinsum.targets.protocol.Built`."""

    opened: OpenCLDevice
    t_unit: Any
    executor: Any
    n_launches: int

    @property
    def timer(self) -> Timer:
        """``wall`` if a run makes several events, else the timer of the device."""
        return "wall" if self.n_launches != 1 else self.opened.timer

    def check_figures(self) -> None:
        """Do nothing: drivers report no figures."""

    def run(self, arguments: Mapping[str, Any], timer: Timer) -> float:
        """Run, and return the seconds; events give those of the last launch."""
        queue = self.opened.queue
        with silence_builds(), convert_opencl_errors("the kernel failed to run"):
            queue.finish()  # earlier work is not timed
            start = perf_counter()
            event, _ = self.executor(queue, **arguments)
            queue.finish()
            elapsed_s = perf_counter() - start
            return elapsed_s if timer == "wall" else get_event_seconds(event)

    def caller(
        self, names: Sequence[str], constants: Mapping[str, Any], queue: Any = None, /
    ) -> Callable[..., Any]:
        """Return a function of arrays; a lock makes threads call it in turn.

        Loopy's executor is not thread-safe: it sets arguments, and then launches.
        """
        turn, queue = Lock(), queue or self.opened.queue

        def call(arrays: Sequence[Any], out: Any = None) -> Any:
            arguments = {**constants, **dict(zip(names, arrays, strict=True))}
            with turn, convert_opencl_errors("the kernel failed to run"):
                _, (result,) = self.executor(queue, **arguments)
            if out is None:
                return result
            out[...] = result
            return out

        return call


class OpenCL:
    """The devices of pyopencl; see :class:`feinsum.targets.protocol.Target`."""

    name = "opencl"
    install_hint = INSTALL_HINT
    is_in_process = False

    def serves(self, loopy_target: Any) -> bool:
        return isinstance(loopy_target, lp.OpenCLTarget)

    def devices(self) -> tuple[Device, ...]:
        """List devices in pyopencl's order, those of Intel's package last."""
        return tuple(describe_device(handle) for handle in _list_handles())

    def open(self, device: Device) -> OpenCLDevice:
        """Open a device, with one context per device and process."""
        for handle in _list_handles():
            if describe_device(handle) == device:
                return _open(device, handle)
        raise DeviceUnavailableError(f"{device} is not available; {INSTALL_HINT}")

    def delivered(self, t_unit: Any, _loopy_target: Any) -> Any:
        """Return the unit unchanged."""
        return t_unit

    def runs_programs(self, loopy_target: Any) -> bool:
        return isinstance(loopy_target, lp.PyOpenCLTarget)


OPENCL = OpenCL()

_OPEN: dict[tuple[int, int], OpenCLDevice] = {}
"""Open devices by process and device handle; contexts do not survive a fork."""


def _open(device: Device, handle: Any) -> OpenCLDevice:
    key = os.getpid(), handle.int_ptr
    if key not in _OPEN:
        cl = load_pyopencl()
        with convert_opencl_errors(f"cannot open {device}", DeviceUnavailableError):
            context = cl.Context([handle])
            profiling = cl.command_queue_properties.PROFILING_ENABLE
            queue = cl.CommandQueue(context, handle, properties=profiling)
        _OPEN[key] = OpenCLDevice(device, context, queue)
    return _OPEN[key]


def describe_device(handle: Any) -> Device:
    """Describe a :class:`pyopencl.Device`."""
    with convert_opencl_errors("cannot query the device", DeviceUnavailableError):
        kind = _classify(handle.type)
        return Device(
            platform=handle.platform.name,
            name=handle.name,
            vendor=handle.vendor,
            kind=kind,
            architecture=platform.machine() if kind == "cpu" else handle.vendor,
            compute_units=handle.max_compute_units,
            processor=describe_host_processor() if kind == "cpu" else None,
        )


def _list_handles() -> Iterator[Any]:
    """Yield every device; a platform without devices is skipped."""
    cl = load_pyopencl()
    try:
        platforms = sorted(cl.get_platforms(), key=is_intel_platform)
    except cl.Error as error:
        # without any driver, the ICD loader raises this instead of returning no
        # platforms
        if error.code == cl.status_code.PLATFORM_NOT_FOUND_KHR:
            return
        raise DeviceUnavailableError(
            f"OpenCL cannot list its platforms: {error}; {INSTALL_HINT}"
        ) from error
    for entry in platforms:
        try:
            yield from entry.get_devices()
        except cl.Error as error:
            if error.code != cl.status_code.DEVICE_NOT_FOUND:
                raise DeviceUnavailableError(
                    f"platform {entry.name!r} cannot list its devices: {error}"
                ) from error


def _classify(flags: int) -> DeviceKind:
    types = load_pyopencl().device_type
    if flags & types.CPU:
        return "cpu"
    if flags & types.GPU:
        return "gpu"
    return "accelerator" if flags & types.ACCELERATOR else "other"


PREAMBLE = """\
#define KERNEL(name, ...) __kernel void name(__VA_ARGS__)
#define SPLAT(type, x) ((type) (x))
"""


@dataclass(frozen=True)
class OpenCLProgram:
    """A kernel with its queue; see :class:`feinsum.targets.protocol.SourceKernel`."""

    queue: Any
    kernel: Any

    @classmethod
    def of(cls, queue: Any, source: str, name: str) -> OpenCLProgram:
        with (
            silence_builds(),
            convert_opencl_errors(f"the kernel {name!r} cannot be built"),
        ):
            program = load_pyopencl().Program(queue.context, PREAMBLE + source).build()
        return cls(queue, getattr(program, name))

    def run(
        self,
        arguments: Sequence[Any],
        n_items: int,
        n_local: int | None = None,
        timer: Timer | None = None,
    ) -> float:
        """Run over ``n_items`` work-items; return the seconds by the chosen clock."""
        cl, queue = load_pyopencl(), self.queue
        clock = timer or choose_timer(queue)
        values = (x.base_data if hasattr(x, "base_data") else x for x in arguments)
        local = None if n_local is None else (n_local,)
        with convert_opencl_errors("the kernel failed to run"):
            self.kernel.set_args(*values)
            queue.finish()
            start = perf_counter()
            event = cl.enqueue_nd_range_kernel(queue, self.kernel, (n_items,), local)
            queue.finish()
            elapsed_s = perf_counter() - start
        return elapsed_s if clock == "wall" else get_event_seconds(event)


_AGREEMENT = (0.5, 1.05)
"""Range of ratios of two clocks that agree; see :func:`are_times_consistent`."""

# the xor with k prevents a closed form, so that no compiler removes the loop
_SOURCE = """
__kernel void spin(__global uint *out, uint n) {
    uint x = get_global_id(0);
    for (uint k = 0; k < n; ++k) x = x * 1664525u + (1013904223u ^ k);
    out[get_global_id(0)] = x;
}
"""


@cache
def choose_timer(queue: Any) -> Timer:
    """Choose ``opencl-profiling`` if the device's events agree with the wall clock.

    A kernel of at least 5 ms is timed five times with both clocks; see
    :func:`are_times_consistent`. If they disagree, or events have no times, the choice
    is ``wall``. It is cached for the process.
    """
    try:
        is_honest = are_times_consistent(_compare_clocks(queue))
    except MeasurementError:
        return "wall"
    return "opencl-profiling" if is_honest else "wall"


def are_times_consistent(pairs_s: list[tuple[float, float]]) -> bool:
    """Return whether profiling times agree with the wall clock, except for the launch.

    Args:
        pairs_s: profiling and wall time of the same runs, in seconds.

    Returns:
        Whether the median ratio is between 0.5 and 1.05: an event that reports more
        than the wall clock, or far less, does not time the kernel.

    >>> (are_times_consistent([(0.9, 1.0)] * 3), are_times_consistent([(0.0, 1.0)] * 3),
    ...  are_times_consistent([(2.0, 1.0)] * 3))
    (True, False, False)
    """
    low, high = _AGREEMENT
    return low <= median(event / wall for event, wall in pairs_s) <= high


def get_event_seconds(event: Any) -> float:
    """Return the device seconds of a finished event; at least one nanosecond."""
    # the resolution of the clock may be coarser than a kernel, and times are divided
    return float(max(event.profile.end - event.profile.start, 1)) * 1e-9


def _compare_clocks(queue: Any) -> list[tuple[float, float]]:
    cl = load_pyopencl()
    with silence_builds(), convert_opencl_errors("cannot compare the clocks"):
        spin = cl.Program(queue.context, _SOURCE).build().spin
        n_items = 64 * queue.device.max_compute_units
        out = cl.Buffer(queue.context, cl.mem_flags.WRITE_ONLY, 4 * n_items)
        spin.set_scalar_arg_dtypes([None, "uint32"])

        def time_both(n_iterations: int) -> tuple[float, float]:
            queue.finish()
            start = perf_counter()
            event = spin(queue, (n_items,), None, out, n_iterations)
            queue.finish()
            return get_event_seconds(event), perf_counter() - start

        n_steps = 1 << 12
        time_both(n_steps)  # the first call compiles
        # 5 ms are much longer than a launch, which only the wall clock includes
        while time_both(n_steps)[1] < 5e-3 and n_steps < 1 << 30:
            n_steps *= 2
        return [time_both(n_steps) for _ in range(5)]


def check_device_arrays(arrays: Sequence[Any]) -> None:
    """Refuse arrays that cannot be passed to a kernel of one context.

    Raises:
        MeasurementError: if an array is on the host, in another context than the first,
            without a queue, of booleans, or not C-contiguous from the start of its
            buffer.
    """
    for position, array in enumerate(arrays):
        if not is_device_array(array):
            raise MeasurementError(
                f"operand {position} is {describe_type(array)} on the host, while "
                "others are on a device; pass arrays of one kind"
            )
        if array.queue is None or array.context != arrays[0].context:
            raise MeasurementError(
                f"operand {position} has no queue, or a different context than operand "
                "0; see pyopencl.array.Array.with_queue"
            )
        if not array.flags.c_contiguous or array.offset:
            raise MeasurementError(
                f"operand {position} has strides {array.strides} and offset "
                f"{array.offset} on the device; give a C-contiguous copy"
            )
        if array.dtype.kind == "b":
            raise MeasurementError(
                f"operand {position} has booleans on the device, which pyopencl does "
                "not convert; pass integers"
            )


def get_device(array: Any) -> OpenCLDevice:
    """Return the device of an array, with the array's context and queue."""
    queue = array.queue
    return OpenCLDevice(describe_device(queue.device), queue.context, queue)


def allocate_zeros(queue: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Allocate an array of zeros on a device."""
    return load_pyopencl().array.zeros(queue, shape, dtype)
