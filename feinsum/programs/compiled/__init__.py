"""Maps and reductions of a program as C, compiled on this machine."""

from feinsum.programs.compiled.kernel import StageKernel, make_kernel

__all__ = ["StageKernel", "make_kernel"]
