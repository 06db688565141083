"""Contractions of arrays on the host, two operands at a time, without code generation.

>>> import numpy as np
>>> steps = find_steps((("i", "j"), ("j", "k")), ("k", "i"))
>>> run_steps(steps, [np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]])])
array([[1., 3.],
       [2., 4.]])
"""

from feinsum.contraction.pairwise import (
    DTYPES,
    IS_BUILT,
    VECTOR_BYTES,
    contract_pair,
)
from feinsum.contraction.steps import (
    PlannedStep,
    Step,
    find_steps,
    plan_steps,
    run_plan,
    run_steps,
)

__all__ = [
    "DTYPES",
    "IS_BUILT",
    "VECTOR_BYTES",
    "PlannedStep",
    "Step",
    "contract_pair",
    "find_steps",
    "plan_steps",
    "run_plan",
    "run_steps",
]
