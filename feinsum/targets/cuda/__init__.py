"""NVIDIA GPUs: NVRTC compiles, CuPy launches. The only package that imports CuPy.

The public names are those of ``__init__.pyi``. They are imported on first use, so that
a process that only runs kernels loads no code generator.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
