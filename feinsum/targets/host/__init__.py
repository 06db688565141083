"""The machine's own C compiler and cores as a device.

The public names are those of ``__init__.pyi``. They are imported when they are first
used: a process that runs kernels loads no code generator.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
