from .built import CudaBuilt as CudaBuilt
from .code import CudaTarget as CudaTarget
from .device import CUDA as CUDA
from .device import CudaDevice as CudaDevice
from .launches import LaunchList as LaunchList
