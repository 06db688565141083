"""A canonicalizing tuning database for batched einsums.

The public names are those of ``__init__.pyi``. They are imported when they are first
used, so that ``import feinsum`` itself loads neither Loopy nor OpenCL.
"""

from typing import Any

import lazy_loader

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    """Return a public name, or the version of the distribution."""
    if name == "__version__":
        from importlib.metadata import version  # most programs never need it

        return version(__name__)
    return _public(name)
