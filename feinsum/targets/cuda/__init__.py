"""NVIDIA GPUs: NVRTC compiles, CuPy launches. The only package that imports CuPy."""

from feinsum.targets.cuda.built import CudaBuilt, PreparedLaunches
from feinsum.targets.cuda.code import CudaTarget
from feinsum.targets.cuda.device import CUDA, CudaDevice

__all__ = ["CUDA", "CudaBuilt", "CudaDevice", "CudaTarget", "PreparedLaunches"]
