"""Possible faults of an installation, and their remedies."""

from feinsum.doctor.examine import examination
from feinsum.doctor.machine import Finding, State

__all__ = ["Finding", "State", "examination"]
