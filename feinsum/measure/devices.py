"""The devices on which kernels are measured: those of :mod:`feinsum.targets`."""

from feinsum.targets.devices import device_states as device_states
from feinsum.targets.devices import list_devices as list_devices
from feinsum.targets.devices import open_device as open_device
from feinsum.targets.protocol import OpenDevice as OpenDevice
from feinsum.targets.protocol import Timer as Timer
