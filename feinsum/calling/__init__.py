"""Calls of einsums on arrays: the numpy-style client of retrieval.

Three values lead from arrays to a result: a :class:`EinsumCall` (the einsum of the
arguments), a :class:`CallKernel` (the retrieved and built kernel) and a
:class:`PreparedCall` (both, kept for the next call of the same kind).

The public names are those of ``__init__.pyi``. They are imported on first use: a first
call, which numpy answers, loads no code generator.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
