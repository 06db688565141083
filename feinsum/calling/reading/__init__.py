"""What a call computes: an einsum of its arguments, and how its arrays lie.

The public names are those of ``__init__.pyi``. They are imported when they are first
used: a call without a kernel needs no einsum.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
