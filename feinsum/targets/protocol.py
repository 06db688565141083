"""The protocol of targets: code for a kind of machine, built, run and timed.

A :class:`Target` finds devices and opens them. An :class:`OpenDevice` prepares a
translation unit, builds it, holds arrays and says what it runs on. A :class:`Built`
unit runs on arrays and is timed. :mod:`feinsum.targets.host`,
:mod:`feinsum.targets.cuda` and :mod:`feinsum.targets.opencl` implement all three::

    Target.devices() -> Device          what records name
    Target.open(Device) -> OpenDevice   prepare(t_unit) -> build(t_unit) -> Built
                                        upload(buffer)  -> array --.
    Built.run({name: array or scalar}, timer) -> seconds  <--------'
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from feinsum.records import Device, Environment
    from feinsum.targets.layout import Layout

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Timer: TypeAlias = Literal["cuda-events", "opencl-profiling", "wall"]
"""``cuda-events``: between two events on the stream of the GPU.
``opencl-profiling``: end minus start of the kernel's event, device clock.
``wall``: host clock from before the launch until the device has nothing to do."""


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a device.

    Attributes:
        total_bytes: bytes of its global memory.
        allocation_bytes: maximum bytes of an array.
        cache_bytes: bytes of the last-level cache; 0 if unknown.
    """

    total_bytes: int
    allocation_bytes: int
    cache_bytes: int


class Caller(Protocol):
    """A kernel with fixed scalars, as a function of arrays."""

    def __call__(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """Return the output: a new array where the operands are, or ``out``.

        Raises:
            MeasurementError: if the device refuses or fails.
        """
        ...


class Built(Protocol):
    """A translation unit with one entry point that is built for a device.

    Attributes:
        t_unit: the translation unit, with all dtypes.
        n_launches: number of kernels that one run launches; 0 if a library of the host
            computes the results.
    """

    @property
    def t_unit(self) -> Any: ...

    @property
    def n_launches(self) -> int: ...

    def check_figures(self) -> None:
        """Refuse a kernel that is too slow by its compiler's figures.

        Raises:
            BuildError: naming the figures.
        """
        ...

    def run(self, arguments: Mapping[str, Any], timer: Timer) -> float:
        """Run once, wait for the end, and return the duration in seconds.

        Args:
            arguments: scalars, and arrays that the device holds, by name.
            timer: how to time the run.

        Raises:
            MeasurementError: if the device refuses or fails.
        """
        ...

    def caller(
        self, names: Sequence[str], constants: Mapping[str, Any], queue: Any = None, /
    ) -> Caller:
        """Return a function that computes the kernel's only output from arrays.

        Several threads may call it.

        Args:
            names: names of the arrays, in the order of the function's arguments.
            constants: the other arguments, which are scalars, by name.
            queue: the queue to use, on a device with queues.
        """
        ...

    @property
    def timer(self) -> Timer:
        """The clock that is accurate for this unit."""
        ...


class SourceKernel(Protocol):
    """A kernel that is written by hand, such as those that measure a device."""

    def run(
        self,
        arguments: Sequence[Any],
        n_items: int,
        n_local: int | None = None,
        timer: Timer | None = None,
    ) -> float:
        """Run once over ``n_items`` work-items; see :meth:`Built.run`.

        Args:
            arguments: numpy scalars, and arrays that the device holds.
            n_items: number of work-items.
            n_local: work-items of a group; by default the device chooses.
            timer: how to time the run; by default the device chooses.
        """
        ...


class OpenDevice(Protocol):
    """A device that kernels can be built for and run on.

    Attributes:
        device: the description that goes into records.
        slot: distinguishes equal devices of a machine; empty if unknown.
    """

    def __hash__(self) -> int: ...

    @property
    def device(self) -> Device: ...

    @property
    def slot(self) -> str: ...

    @property
    def memory(self) -> DeviceMemory: ...

    @property
    def timer(self) -> Timer:
        """The clock that is accurate for a kernel that is launched once."""
        ...

    @property
    def reads_in_place(self) -> bool:
        """Whether kernels work on arrays of the host in place, with any strides."""
        ...

    @property
    def has_double(self) -> bool:
        """Whether the device supports double precision."""
        ...

    def environment(self, policy: Mapping[str, str | int | float]) -> Environment:
        """Return everything that a timing on this device depends on.

        Args:
            policy: the parameters of timing (rounds, warm-up, timer).
        """
        ...

    def prepare(self, t_unit: Any) -> Any:
        """Return the translation unit for Loopy's target of this device."""
        ...

    def build(self, t_unit: Any) -> Built:
        """Generate and compile the code of a typed and prepared translation unit.

        Raises:
            Exception: of any kind; :func:`feinsum.measure.compile_kernel` converts
                them to one class.
        """
        ...

    def upload(self, buffer: Array, layout: Layout) -> Any:
        """Copy a flat buffer to the device, as an array of a layout.

        Raises:
            MeasurementError: if the device lacks the memory.
        """
        ...

    def download(self, array: Any, layout: Layout) -> Array:
        """Copy the flat buffer of a device array to the host."""
        ...

    def overwrite(self, array: Any, buffer: Array) -> None:
        """Copy a flat buffer into that of an array that the device holds."""
        ...

    def program(self, source: str, name: str) -> SourceKernel:
        """Build a kernel that is written in OpenCL C, except for its head.

        The head is ``KERNEL(name, arguments)``; ``SPLAT(type, x)`` is a vector of equal
        entries.

        Raises:
            MeasurementError: if the device refuses.
        """
        ...


class Target(Protocol):
    """A kind of devices that kernels are compiled for.

    Attributes:
        name: the name of the target for users.
        install_hint: how to install a device.
        is_in_process: whether devices are tried in this process; drivers that may crash
            are tried in another one.
    """

    @property
    def name(self) -> str: ...

    @property
    def install_hint(self) -> str: ...

    @property
    def is_in_process(self) -> bool: ...

    def serves(self, loopy_target: Any) -> bool:
        """Return whether this target runs kernels of one of Loopy's targets."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """List the devices that are found, the best choice first.

        Raises:
            DeviceUnavailableError: if they cannot be listed, with the remedy.
        """
        ...

    def open(self, device: Device) -> OpenDevice:
        """Open one of :meth:`devices`; returns the same object within a process."""
        ...

    def delivered(self, t_unit: Any, loopy_target: Any) -> Any:
        """Convert a transformed unit to the target of the user's kernel."""
        ...

    def runs_programs(self, loopy_target: Any) -> bool:
        """Return whether a delivered unit can run a program in place of its kernel.

        It cannot if the user extracts the code of the kernel and runs that.
        """
        ...


PACKAGES = ("feinsum", "islpy", "loopy", "numpy")


def list_versions(*more: str) -> dict[str, str]:
    """Look up the version of each package and of Python.

    Args:
        more: packages that one target alone depends on.
    """
    versions = {name: _get_version(name) for name in (*PACKAGES, *more)}
    return versions | {"python": platform.python_version()}


def _get_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        # a package on sys.path that was not installed has no metadata
        return "unknown"
