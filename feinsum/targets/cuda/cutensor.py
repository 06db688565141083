"""cuTENSOR, as far as CuPy finds it: contractions of arrays of any strides.

CuPy's wheels do not contain the library; ``pip install cutensor-cu12`` does.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any


@cache
def load_cutensor() -> tuple[Any, str] | None:
    """Import CuPy's module, and get the library's version; None without the library."""
    try:
        importlib.import_module("cupy")  # which loads the library that the others need
        library = importlib.import_module("cupy_backends.cuda.libs.cutensor")
        module = importlib.import_module("cupyx.cutensor")
        version = int(library.get_version())
    except (ImportError, AttributeError, RuntimeError):
        return None
    major, minor, patch = version // 10_000, version // 100 % 100, version % 100
    return (module, f"{major}.{minor}.{patch}") if version else None


def has_cutensor() -> bool:
    return load_cutensor() is not None
