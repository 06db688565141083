"""The OpenCL runtimes for CPUs on which recipes must be right."""

from __future__ import annotations

import pytest

from feinsum.measure.intel import driver

POCL, INTEL = "portable computing", "intel(r) opencl"
"""Selectors: parts of the names of the platforms."""

needs_intel = pytest.mark.skipif(
    driver() is None, reason="the extra 'intel' is not installed"
)

CPUS = [
    pytest.param(POCL, id="pocl"),
    pytest.param(INTEL, id="intel", marks=needs_intel),
]
"""For ``parametrize``: PoCL always, Intel's runtime where it is installed."""
