"""Nests that stream their operands: in memory order, or against it."""

from feinsum.transforms.library.streamed.generic import GENERIC, GENERIC_ON_CPUS
from feinsum.transforms.library.streamed.jammed import UNROLL_AND_JAM
from feinsum.transforms.library.streamed.transposed import TRANSPOSED

__all__ = ["GENERIC", "GENERIC_ON_CPUS", "TRANSPOSED", "UNROLL_AND_JAM"]
