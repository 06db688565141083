"""Predictions: recipes for what nobody tuned, in the order of their expected times."""

from feinsum.predict.machine import machine_of
from feinsum.predict.predictions import predictions

__all__ = ["machine_of", "predictions"]
