"""Predictions: recipes for untuned workloads, in the order of predicted times."""

from feinsum.options import EFFORT_VARIABLE, MEASURING, Effort, get_effort
from feinsum.predict.machine import get_usual_gpu, model_machine
from feinsum.predict.predicted import (
    has_vectors,
    is_outdone,
    make_pruning_test,
    predict_recipes,
)

__all__ = [
    "EFFORT_VARIABLE",
    "MEASURING",
    "Effort",
    "get_effort",
    "get_usual_gpu",
    "has_vectors",
    "is_outdone",
    "make_pruning_test",
    "model_machine",
    "predict_recipes",
]
