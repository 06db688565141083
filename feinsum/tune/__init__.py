"""Tuning: a search over recipes, each tried in a process of its own.

The public names are those of ``__init__.pyi``. They are imported when they are first
used: the processes of trials need neither the search nor a database.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
