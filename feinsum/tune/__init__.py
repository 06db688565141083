"""Tuning: a search over recipes, each tried in a separate process.

The public names are those of ``__init__.pyi``. They are imported on first use: trial
processes need neither the search nor a database.

This package and the function ``feinsum.tune`` share a name. Python makes every imported
subpackage an attribute of its package, so this package is callable like the function.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import lazy_loader

import feinsum.loopy_cache  # noqa: F401  (before Loopy)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        # it reads arrays, so it is in a room above this one
        return import_module("feinsum.calling").tune(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
