"""Predictions: recipes for untuned workloads, in the order of predicted times."""

from feinsum.options import EFFORT_VARIABLE, MEASURING, Effort, effort_of
from feinsum.predict.machine import machine_of, usual_gpu
from feinsum.predict.predicted import has_vectors, hopeless, is_outdone, predictions

__all__ = [
    "EFFORT_VARIABLE",
    "MEASURING",
    "Effort",
    "effort_of",
    "has_vectors",
    "hopeless",
    "is_outdone",
    "machine_of",
    "predictions",
    "usual_gpu",
]
