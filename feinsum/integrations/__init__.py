"""feinsum inside other programs: compilers, chemistry, and programs without Python.

feinsum itself depends on none of these. Compilers call :func:`transform_program` where
they transform kernels; :class:`FeinsumArrayContext` is an array context of pytato;
:func:`use_in_pyscf` replaces the einsums of PySCF; :func:`c_source` generates a
function in C.

The public names are those of ``__init__.pyi``. They are imported on first use, so that
a chemistry program loads no code generator.
"""

import lazy_loader

import feinsum.loopy_cache  # noqa: F401  (before Loopy)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
