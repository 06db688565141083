"""Maps and reductions of a program as C, compiled on this machine."""

from feinsum.programs.compiled.kernel import StageKernel, kernel_for

__all__ = ["StageKernel", "kernel_for"]
