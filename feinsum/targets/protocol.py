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
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from feinsum.records import Device, Environment
from feinsum.targets.layout import Layout

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Timer: TypeAlias = Literal["cuda-events", "opencl-profiling", "wall"]
"""``cuda-events``: between two events on the stream of the GPU.
``opencl-profiling``: end minus start of the kernel's event, device clock.
``wall``: host clock from before the launch until the device has nothing to do."""


@dataclass(frozen=True)
class Memory:
    """Memory of a device.

    Attributes:
        total_bytes: of its global memory.
        allocation_bytes: of the largest array.
        cache_bytes: of the last level of its caches; 0 if it is not known.
    """

    total_bytes: int
    allocation_bytes: int
    cache_bytes: int


class Caller(Protocol):
    """A kernel with its scalars."""

    def __call__(self, arrays: Sequence[Any], out: Any = None) -> Any:
        """Return the output, a new array beside the operands, or ``out``.

        Raises:
            MeasurementError: if the device refuses or fails.
        """
        ...


class Built(Protocol):
    """A translation unit with one entry point that is built for a device.

    Attributes:
        t_unit: what was built, every dtype known.
        n_launches: kernels of the device that one run launches; none if a library
            of the host computes the results.
    """

    @property
    def t_unit(self) -> Any: ...

    @property
    def n_launches(self) -> int: ...

    def check_figures(self) -> None:
        """Refuse a kernel that its compiler's figures show not to be worth a run.

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
            names: of the arrays that it will be given, in their order.
            constants: the other arguments, which are scalars, by name.
            queue: the one to use, on a device with queues.
        """
        ...

    @property
    def timer(self) -> Timer:
        """The clock to be trusted."""
        ...


class SourceKernel(Protocol):
    """A kernel that is written by hand, as those that measure a device are."""

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
        slot: which of equal devices of a machine it is, where that is known.
    """

    def __hash__(self) -> int: ...

    @property
    def device(self) -> Device: ...

    @property
    def slot(self) -> str: ...

    @property
    def memory(self) -> Memory: ...

    @property
    def timer(self) -> Timer:
        """The clock to be trusted for a kernel that is launched once."""
        ...

    @property
    def reads_in_place(self) -> bool:
        """Whether kernels work on the arrays of the host, whatever their strides."""
        ...

    @property
    def has_double(self) -> bool:
        """Whether it computes in double precision."""
        ...

    def environment(self, policy: Mapping[str, str | int | float]) -> Environment:
        """Return everything that a timing on this device depends on.

        Args:
            policy: how times are measured (rounds, warm-up, timer).
        """
        ...

    def prepare(self, t_unit: Any) -> Any:
        """Return the translation unit for Loopy's target of this device."""
        ...

    def build(self, t_unit: Any) -> Built:
        """Generate and compile the code of a typed and prepared translation unit.

        Raises:
            Exception: of any kind; :func:`feinsum.measure.compile_kernel` makes one
                of them.
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
        """Build a kernel that is written in OpenCL C, but for its head.

        ``KERNEL(name, arguments)`` is the head, and ``SPLAT(type, x)`` a vector of
        equal entries.

        Raises:
            MeasurementError: if the device refuses.
        """
        ...


class Target(Protocol):
    """A kind of devices that kernels are compiled for.

    Attributes:
        name: by which the documentation calls it.
        install_hint: how to get a device.
        is_in_process: whether a device is tried in this process. It is not where
            drivers are known to crash.
    """

    @property
    def name(self) -> str: ...

    @property
    def install_hint(self) -> str: ...

    @property
    def is_in_process(self) -> bool: ...

    def serves(self, loopy_target: Any) -> bool:
        """Return whether kernels of one of Loopy's targets are run by this one."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """List the devices that are found, the best choice first.

        Raises:
            DeviceUnavailableError: if they cannot be listed, and what to do.
        """
        ...

    def open(self, device: Device) -> OpenDevice:
        """Open one of :meth:`devices`; the same object every time in one process."""
        ...

    def delivered(self, t_unit: Any, loopy_target: Any) -> Any:
        """Return a transformed unit for the target of the kernel that a user gave."""
        ...

    def runs_programs(self, loopy_target: Any) -> bool:
        """Return whether a delivered unit can run a program in place of its kernel.

        It cannot if others take its code and run that.
        """
        ...


PACKAGES = ("feinsum", "islpy", "loopy", "numpy")


def software(*more: str) -> dict[str, str]:
    """Look up the version of each package and of Python.

    Args:
        more: packages that one target alone depends on.
    """
    versions = {name: _version(name) for name in (*PACKAGES, *more)}
    return versions | {"python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
