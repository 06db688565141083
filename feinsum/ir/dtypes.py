"""The dtype bfloat16 of ml_dtypes, which numpy knows by name once it is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from ml_dtypes import bfloat16
except ImportError:  # without ml_dtypes, there are no arrays of bfloat16
    BFLOAT16: np.dtype[Any] | None = None
else:
    BFLOAT16 = np.dtype(bfloat16)
