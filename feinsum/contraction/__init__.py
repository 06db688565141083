"""Contractions of arrays on the host, two operands at a time, without code generation.

>>> import numpy as np
>>> steps = find_steps((("i", "j"), ("j", "k")), ("k", "i"))
>>> run_steps(steps, [np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]])])
array([[1., 3.],
       [2., 4.]])

The public names are those of ``__init__.pyi``. They are imported when they are first
used: most calls only need the extension, whose source is ``einsum.c``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
