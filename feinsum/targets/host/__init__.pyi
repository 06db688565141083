from .code import EmbeddedCTarget as EmbeddedCTarget
from .code import HostCTarget as HostCTarget
from .device import HOST as HOST
from .device import HostDevice as HostDevice
