"""A learnt, bounded correction of analytic costs, from trials.

:mod:`features <feinsum.predict.correction.features>` are its inputs,
:mod:`model <feinsum.predict.correction.model>` is the correction as data, and says
which one is in use,
:mod:`samples <feinsum.predict.correction.samples>` are trials that can be learnt from,
:mod:`fitting <feinsum.predict.correction.fitting>` learns from them, and says what that
is worth.
"""

from feinsum.predict.correction.fitting import Ranking, check_enough, fit, held_out
from feinsum.predict.correction.model import (
    ANALYTIC,
    LIMIT,
    MODEL_VARIABLE,
    MODEL_VERSION,
    NO_MODEL,
    Correction,
    Feature,
    corrected,
    correction_in_use,
    read_correction,
    source_in_use,
    write_correction,
)
from feinsum.predict.correction.samples import Group, Samples, samples_of

__all__ = [
    "ANALYTIC",
    "LIMIT",
    "MODEL_VARIABLE",
    "MODEL_VERSION",
    "NO_MODEL",
    "Correction",
    "Feature",
    "Group",
    "Ranking",
    "Samples",
    "check_enough",
    "corrected",
    "correction_in_use",
    "fit",
    "held_out",
    "read_correction",
    "samples_of",
    "source_in_use",
    "write_correction",
]
