"""The CPU devices on which recipes must be right: the host, and runtimes of OpenCL."""

from __future__ import annotations

from functools import cache

import pytest

from feinsum.measure import list_devices, open_device
from feinsum.targets.cuda import CUDA
from feinsum.targets.devices import find_trouble
from feinsum.targets.host import HOST as HOST_TARGET
from feinsum.targets.opencl import OPENCL
from feinsum.targets.opencl.door import find_intel_driver

HOST, POCL, INTEL = "host", "portable computing", "intel(r) opencl"
"""Selectors: parts of the names of the platforms."""

needs_intel = pytest.mark.skipif(
    find_intel_driver() is None, reason="the extra 'intel' is not installed"
)

CPUS = [pytest.param(selector, id=name) for selector, name in (
    (HOST, "host"), (POCL, "pocl"), (INTEL, "intel"))]  # fmt: skip
"""For ``parametrize``; give the selector to :func:`opened`."""

OPENCL_CPUS = CPUS[1:]
"""The same without the host."""


def opened(selector: str):
    """The device; the test is skipped, by name, where there is none that works."""
    trouble = _trouble(selector)
    if trouble:
        pytest.skip(f"{selector}: {trouble}")
    return open_device(selector)


def any_opencl():
    """A device of OpenCL that works; the test is skipped where there is none."""
    troubles = [_trouble(selector) for selector in (POCL, INTEL)]
    for selector, trouble in zip((POCL, INTEL), troubles, strict=True):
        if not trouble:
            return open_device(selector)
    pytest.skip(f"no device of OpenCL works here: {troubles}")


@cache
def _trouble(selector: str) -> str:
    """Why a device cannot be tested on; empty if it can. Each is tried once."""
    found = [d for d in list_devices() if selector in d.platform.lower()]
    target = {HOST: HOST_TARGET, "cuda": CUDA}.get(selector, OPENCL)
    return find_trouble(target, found[0]) if found else "it is not installed"
