"""The generation of C for a kernel, for any C compiler.

The public names are those of ``__init__.pyi``. They are imported on first use, because
calls of compiled kernels need no code generator.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
