"""Targets, for which kernels are compiled, and the devices that run them.

:mod:`feinsum.targets.protocol` defines a target; docs/reference/targets.md tells how to
add one.
"""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
