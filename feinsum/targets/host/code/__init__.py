"""The C that is written for a kernel, whichever compiler will read it."""

from feinsum.targets.host.code.entry import ENTRY
from feinsum.targets.host.code.slots import POOL
from feinsum.targets.host.code.target import (
    VERSION,
    EmbeddedCTarget,
    HostCTarget,
    StandaloneCTarget,
)
from feinsum.targets.host.code.vectors import UNALIGNED, declared

__all__ = [
    "ENTRY",
    "POOL",
    "UNALIGNED",
    "VERSION",
    "EmbeddedCTarget",
    "HostCTarget",
    "StandaloneCTarget",
    "declared",
]
