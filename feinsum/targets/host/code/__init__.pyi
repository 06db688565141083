from .exported import ENTRY as ENTRY
from .slots import POOL as POOL
from .target import VERSION as VERSION
from .target import EmbeddedCTarget as EmbeddedCTarget
from .target import HostCTarget as HostCTarget
from .target import StandaloneCTarget as StandaloneCTarget
from .vectors import UNALIGNED as UNALIGNED
from .vectors import declared as declared
