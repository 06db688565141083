"""The machine's own C compiler and cores as a device."""

from feinsum.targets.host.code import EmbeddedCTarget, HostCTarget
from feinsum.targets.host.device import HOST, HostDevice

__all__ = ["HOST", "EmbeddedCTarget", "HostCTarget", "HostDevice"]
