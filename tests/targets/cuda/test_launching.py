"""Launches that are prepared."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np

from feinsum.targets.cuda.cupy_session import Launcher


def test_a_kernel_gets_its_arguments_in_order():
    """By a pointer to each: addresses of arrays as given, numbers in their own type."""
    seen = []

    def launch(function, *sizes_and_stream):
        *sizes, stream, places, extra = sizes_and_stream
        slots = (ctypes.c_void_p * 4).from_address(places)
        kinds = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_double)
        values = [k.from_address(at).value for k, at in zip(kinds, slots, strict=True)]
        seen.append((function, sizes, stream, extra, values))

    values = [None, np.int32(-7), None, np.float64(2.5)]
    launcher = Launcher(launch, SimpleNamespace(ptr=99), range(1, 8), values)
    launcher([1 << 40, 512], 5)
    launcher([1024, 3], 6)
    sizes = [1, 2, 3, 4, 5, 6, 7]
    assert seen == [
        (99, sizes, 5, 0, [1 << 40, -7, 512, 2.5]),
        (99, sizes, 6, 0, [1024, -7, 3, 2.5]),
    ]
