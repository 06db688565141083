"""Tuning: a search over recipes, each tried in a separate process.

The public names are those of ``__init__.pyi``. They are imported on first use: trial
processes need neither the search nor a database. :func:`feinsum.tune` stands above, in
:mod:`feinsum.calling`, because it reads the arguments of calls.
"""

import lazy_loader

import feinsum.loopy_cache  # noqa: F401  (before Loopy)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
