"""Kernels by hand for tests of the target."""

from __future__ import annotations

import loopy as lp
import numpy as np

from feinsum.targets.cuda import CudaTarget
from tests.loopy_kernels import build_kernel

__all__ = ["doubled", "doubled_backwards"]


def doubled(block=32, dtype=np.float64):
    """``y[i] = 2*x[i]``."""
    unit = build_kernel(
        "{[i]: 0<=i<n}", "y[i] = 2*x[i]", {"x,y": "n"}, dtype=dtype, target=CudaTarget()
    )
    return lp.split_iname(unit, "i", block, outer_tag="g.0", inner_tag="l.0")


def doubled_backwards():
    """Two launches; what one hands to the next is in global memory."""
    unit = build_kernel(
        ["{[i]: 0<=i<n}", "{[j]: 0<=j<n}"],
        """
        t[i] = 2*x[i] {id=one}
        ... gbarrier {id=bar, dep=one}
        y[j] = t[n - 1 - j] {dep=bar}
        """,
        {"x,y": "n"},
        lp.TemporaryVariable(
            "t", np.float64, ("n",), address_space=lp.AddressSpace.GLOBAL
        ),
        target=CudaTarget(),
    )
    for iname in "ij":
        unit = lp.split_iname(unit, iname, 32, outer_tag="g.0", inner_tag="l.0")
    return unit
