"""Partitions: the number of parts of each index of a statement.

There is one kernel call for each combination of parts.

Source: EinDecomp, sections 5 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb, prod
from typing import TypeAlias

from constantdict import constantdict

from feinsum.errors import ProgramError

Partition: TypeAlias = constantdict[str, int]
"""Parts of each index of a statement."""


def n_partitions(n_indices: int, p: int) -> int:
    """The number of partitions with exactly ``p`` calls, in powers of two.

    Raises:
        ProgramError: if ``p`` is not a power of two.

    Source: EinDecomp, section 8.1; the list for p = 8 in section 8.2 lacks two of them.

    >>> n_partitions(6, 1024), n_partitions(3, 8)
    (3003, 10)
    """
    if p < 1 or p & (p - 1):
        raise ProgramError(f"partitions are counted for powers of two, got {p}")
    # stars and bars: the exponents of the parts add up to that of p
    exponent = p.bit_length() - 1
    return comb(exponent + n_indices - 1, exponent)


def n_calls(partition: Mapping[str, int]) -> int:
    """Kernel calls of a statement.

    >>> n_calls({"i": 16, "j": 2, "k": 4})
    128
    """
    return prod(partition.values())
