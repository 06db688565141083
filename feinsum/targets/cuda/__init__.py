"""GPUs of NVIDIA: NVRTC compiles, CuPy launches. The only room that knows CuPy."""

from feinsum.targets.cuda.built import CudaBuilt, PreparedLaunches
from feinsum.targets.cuda.code import CudaTarget
from feinsum.targets.cuda.device import CUDA, CudaDevice

__all__ = ["CUDA", "CudaBuilt", "CudaDevice", "CudaTarget", "PreparedLaunches"]
