"""A canonicalizing tuning database for batched einsums.

The public names are those of ``__init__.pyi``. They are imported when they are first
used, so that ``import feinsum`` itself loads neither Loopy nor OpenCL.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
