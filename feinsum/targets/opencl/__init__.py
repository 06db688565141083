"""OpenCL devices, by way of pyopencl. The only room that knows it."""

from feinsum.targets.opencl.device import OPENCL, OpenCLDevice

__all__ = ["OPENCL", "OpenCLDevice"]
