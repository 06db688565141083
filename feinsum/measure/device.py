"""OpenCL devices: finding, opening, and saying what was measured on."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from feinsum.errors import DeviceUnavailableError
from feinsum.measure.intel import comes_last
from feinsum.measure.opencl import INSTALL_HINT, opencl_errors, pyopencl
from feinsum.records import Device, Environment
from feinsum.records.environment import DeviceKind

__all__ = ["DEVICE_VARIABLE", "OpenCLDevice", "list_devices", "open_device"]

DEVICE_VARIABLE = "FEINSUM_DEVICE"
"""Environment variable with the default selector of :func:`open_device`."""

_SOFTWARE = ("feinsum", "islpy", "loopy", "numpy", "pyopencl")


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

    @property
    def slot(self) -> str:
        """Which of equal devices of a machine it is, where the driver says so."""
        names = ("pci_domain_id_nv", "pci_bus_id_nv", "pci_slot_id_nv")
        try:
            return ":".join(str(getattr(self.handle, name)) for name in names)
        except (AttributeError, pyopencl().Error):  # not of that vendor
            return ""

    @cached_property
    def software(self) -> dict[str, str]:
        """Versions of the packages that a timing depends on, and of Python."""
        versions = {name: _version(name) for name in _SOFTWARE}
        return versions | {"python": platform.python_version()}

    def environment(self, policy: Mapping[str, str | int | float]) -> Environment:
        """What a timing on this device depends on; OpenCL's strings verbatim.

        Args:
            policy: how times are measured (rounds, warm-up, timer).
        """
        with opencl_errors("cannot query the device", DeviceUnavailableError):
            return Environment(
                device=self.device,
                driver_version=self.handle.driver_version,
                platform_version=self.handle.platform.version,
                software=self.software,
                policy=policy,
            )


def list_devices() -> tuple[Device, ...]:
    """All devices in pyopencl's order, those of Intel's package last; empty if there
    are none.

    Raises:
        DeviceUnavailableError: if pyopencl cannot be imported or asked.
    """
    return tuple(describe(handle) for handle in _handles())


def open_device(selector: str | None = None) -> OpenCLDevice:
    """The first device that matches; one context per device and process.

    Args:
        selector: a part of the platform's or of the device's name in any case,
            or the first characters of the device's id. By default the
            environment variable ``FEINSUM_DEVICE``; if that is empty, the first
            of :func:`list_devices`.

    Raises:
        DeviceUnavailableError: if there is none; the message lists those found.
    """
    if selector is None:
        selector = os.environ.get(DEVICE_VARIABLE, "")
    known = [(describe(handle), handle) for handle in _handles()]
    for device, handle in known:
        if _is_match(device, selector):
            return _open(device, handle)
    if not known:
        raise DeviceUnavailableError(f"no OpenCL device was found; {INSTALL_HINT}")
    found = "; ".join(f"{device} [{device.id[:12]}]" for device, _ in known)
    raise DeviceUnavailableError(
        f"no OpenCL device matches {selector!r}; found: {found}. Give a part of a "
        f"name or the start of an id, or set {DEVICE_VARIABLE}; {INSTALL_HINT}"
    )


def describe(handle: Any) -> Device:
    """The description of a :class:`pyopencl.Device`."""
    with opencl_errors("cannot query the device", DeviceUnavailableError):
        kind = _kind(handle.type)
        return Device(
            platform=handle.platform.name,
            name=handle.name,
            vendor=handle.vendor,
            kind=kind,
            architecture=platform.machine() if kind == "cpu" else handle.vendor,
            compute_units=handle.max_compute_units,
        )


def _handles() -> Iterator[Any]:
    """Every device; a platform without devices is passed over."""
    cl = pyopencl()
    try:
        platforms = sorted(cl.get_platforms(), key=comes_last)
    except cl.Error as error:
        if error.code == cl.status_code.PLATFORM_NOT_FOUND_KHR:
            return
        raise DeviceUnavailableError(
            f"OpenCL cannot be asked for its platforms: {error}; {INSTALL_HINT}"
        ) from error
    for entry in platforms:
        try:
            yield from entry.get_devices()
        except cl.Error as error:
            if error.code != cl.status_code.DEVICE_NOT_FOUND:
                raise DeviceUnavailableError(
                    f"platform {entry.name!r} cannot list its devices: {error}"
                ) from error


def _kind(flags: int) -> DeviceKind:
    types = pyopencl().device_type
    if flags & types.CPU:
        return "cpu"
    if flags & types.GPU:
        return "gpu"
    return "accelerator" if flags & types.ACCELERATOR else "other"


def _is_match(device: Device, selector: str) -> bool:
    wanted = selector.strip().lower()
    names = (device.platform.lower(), device.name.lower())
    return any(wanted in name for name in names) or device.id.startswith(wanted)


_OPEN: dict[tuple[int, int], OpenCLDevice] = {}
"""By process, since a context does not survive a fork, and device handle."""


def _open(device: Device, handle: Any) -> OpenCLDevice:
    key = os.getpid(), handle.int_ptr
    if key not in _OPEN:
        cl = pyopencl()
        with opencl_errors(f"cannot open {device}", DeviceUnavailableError):
            context = cl.Context([handle])
            profiling = cl.command_queue_properties.PROFILING_ENABLE
            queue = cl.CommandQueue(context, handle, properties=profiling)
        _OPEN[key] = OpenCLDevice(device, context, queue)
    return _OPEN[key]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
