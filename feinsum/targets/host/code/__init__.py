"""The C that is written for a kernel, whichever compiler will read it.

The public names are those of ``__init__.pyi``. They are imported when they are first
used: who calls a kernel that is compiled needs no code generator.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
