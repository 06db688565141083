"""Possible faults of an installation, and their remedies."""

from feinsum.doctor.examine import run_checks
from feinsum.doctor.machine import Diagnosis, State

__all__ = ["Diagnosis", "State", "run_checks"]
