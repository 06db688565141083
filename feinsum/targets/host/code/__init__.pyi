from .groups import POOL as POOL
from .statements import UNALIGNED as UNALIGNED
from .statements import declare_vector as declare_vector
from .target import VERSION as VERSION
from .target import EmbeddedCTarget as EmbeddedCTarget
from .target import HostCTarget as HostCTarget
from .target import StandaloneCTarget as StandaloneCTarget
