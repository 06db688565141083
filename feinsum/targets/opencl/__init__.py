"""OpenCL devices through pyopencl. The only package that imports it."""

from feinsum.targets.opencl.device import OPENCL, OpenCLDevice

__all__ = ["OPENCL", "OpenCLDevice"]
