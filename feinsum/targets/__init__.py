"""Targets: what kernels are compiled for, on which devices they run.

:mod:`feinsum.targets.protocol` says what a target is;
docs/reference/targets.md, how to add one.
"""

import feinsum.loopy_cache  # noqa: F401  (before Loopy)
