"""Nests that stream their operands."""

from feinsum.transforms.library.streamed.generic import GENERIC, GENERIC_ON_CPUS
from feinsum.transforms.library.streamed.jammed import UNROLL_AND_JAM

__all__ = ["GENERIC", "GENERIC_ON_CPUS", "UNROLL_AND_JAM"]
