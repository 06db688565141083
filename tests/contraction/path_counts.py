"""How many paths there are, in closed form.

Source: Kanakagiri and Solomonik 2024 (SpTTN), section 4.1.1.
"""

from __future__ import annotations

from math import comb, factorial


def n_postorders(n_operands: int) -> int:
    """Number of orders of :func:`postorders`.

    >>> [n_postorders(n) for n in (3, 4, 5, 6)]
    [3, 18, 150, 1620]
    """
    counts = [0, 1]
    for n in range(2, n_operands + 1):
        splits = (
            comb(n - 1, size - 1) * counts[size] * counts[n - size]
            * (2 if 1 < size < n - 1 else 1)
            for size in range(1, n)
        )  # fmt: skip
        counts.append(sum(splits))
    return counts[n_operands]


def n_pair_sequences(n_operands: int) -> int:
    """Number of sequences of pairs, whatever is computed in between.

    It counts every postorder at least once, and is the recurrence of the paper.

    >>> [n_pair_sequences(n) for n in (3, 4, 5, 6)]
    [3, 18, 180, 2700]
    """
    n = n_operands
    return int(factorial(n) * factorial(n - 1) // 2 ** (n - 1))
