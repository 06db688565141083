"""The devices on which kernels are measured: those of :mod:`feinsum.targets`."""

from feinsum.targets.devices import device_states, list_devices, open_device
from feinsum.targets.protocol import OpenDevice, Timer

__all__ = ["OpenDevice", "Timer", "device_states", "list_devices", "open_device"]
