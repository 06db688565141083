"""Measurement: devices, timing, counts, rooflines, verification.

On any target: see :mod:`feinsum.targets`.

The public names are those of ``__init__.pyi``. They are imported on first use: a
process that compares and times kernels loads no code generator.
"""

import lazy_loader

import feinsum.loopy_cache  # noqa: F401  (before Loopy)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
