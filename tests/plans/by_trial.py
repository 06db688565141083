"""The least sum of tables by brute force, as a reference for elimination."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feinsum.distributed.elimination import Table, _expanded, _variables


def least_by_trial(tables: Sequence[Table]) -> tuple[float, dict[str, int]]:
    variables = list(_variables(tables))
    whole = _expanded(tables, variables)
    at = np.unravel_index(int(whole.argmin()), whole.shape)
    return float(whole.min()), dict(zip(variables, map(int, at), strict=True))
