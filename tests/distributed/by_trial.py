"""The least sum of tables by brute force, as a reference for elimination."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from feinsum.distributed.elimination import Table, sum_tables, variables_of


def least_by_trial(tables: Sequence[Table]) -> tuple[float, dict[str, int]]:
    variables = list(variables_of(tables))
    whole = sum_tables(tables, variables)
    at = np.unravel_index(int(whole.argmin()), whole.shape)
    return float(whole.min()), dict(zip(variables, map(int, at), strict=True))
