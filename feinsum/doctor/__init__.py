"""What may be wrong with an installation, and what to do about it."""

from feinsum.doctor.examination import examination
from feinsum.doctor.finding import Finding, State

__all__ = ["Finding", "State", "examination"]
