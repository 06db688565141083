"""A lower bound of the communication of any schedule.

Source: Irony, Toledo and Tiskin 2004 (memory-independent bound of matrix products, by
the inequality of Loomis and Whitney); Christ, Demmel, Knight, Scanlon and Yelick 2013
(its generalization).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from feinsum.bounds import compute_intensity, make_statement
from feinsum.distributed.grids import format_in_letters
from feinsum.distributed.groups import Group

ROUNDING = 1e-9
"""Relative rounding error of the bound, by which it is lowered."""


def compute_least_communication(
    group: Group, extents: Mapping[str, int], processes: int
) -> int:
    """Return elements that some process sends or receives with any schedule.

    These are received operands and sent partial sums.

    Every process begins with at most its share of each operand, and ends with at most
    its share of the result: the size over the number of processes, rounded up. The one
    with the most work needs more entries. Plans that leave processes without data can
    communicate less.

    >>> from feinsum.distributed.groups import Access
    >>> product = Group((Access("A", "ij"), Access("B", "jk")), Access("C", "ik"))
    >>> compute_least_communication(product, dict.fromkeys("ijk", 600), 8)
    135000
    """
    letters = {i: chr(ord("a") + k) for k, i in enumerate(group.indices)}
    lengths = {letters[i]: extents[i] for i in group.indices}
    if min(lengths.values(), default=0) < 2:
        return 0
    subscripts = format_in_letters(group, letters)
    intensity = compute_intensity(make_statement(subscripts, lengths))
    pairs = zip(map(float, intensity.exponents), intensity.cover.terms, strict=True)
    cover = [(s, term) for s, term in pairs if s]
    total = sum(s for s, _ in cover)
    points = ceil(prod(lengths.values()) / processes)
    # Hoelder's inequality: so many points need accesses of at least this size together
    scale: float = (points / prod(s**s for s, _ in cover)) ** (1 / total)
    sizes = [prod(lengths[i] for i in term) for _, term in cover]
    shares = sum(-(-size // processes) for size in sizes)
    return max(0, ceil(total * scale * (1 - ROUNDING)) - shares)
