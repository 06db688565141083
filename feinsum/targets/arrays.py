"""Arrays of devices, told apart from those of the host before anything is loaded."""

from __future__ import annotations

import sys

__all__ = ["is_device_array"]


def is_device_array(value: object) -> bool:
    """Whether this is a :class:`pyopencl.array.Array`; pyopencl is not imported."""
    module = sys.modules.get("pyopencl.array")
    return module is not None and isinstance(value, module.Array)
