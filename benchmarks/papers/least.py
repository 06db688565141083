"""A lower bound of what a process passes, whatever the schedule of a group is.

Source: Irony, Toledo and Tiskin 2004 (memory-independent bound of matrix products, by
the inequality of Loomis and Whitney); Christ, Demmel, Knight, Scanlon and Yelick 2013
(its generalization).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from feinsum.bounds import intensity_of, statement
from feinsum.distributed.groups import Group

ROUNDING = 1e-9
"""Relative error of the bound in floating-point numbers, by which it is lowered."""


def least_passed(group: Group, extents: Mapping[str, int], processes: int) -> int:
    """Elements that some process passes at least: operands it receives, and partial
    sums it sends.

    Every process begins with at most its share of each operand, and ends with at most
    its share of the result: the size over the number of processes, rounded up. The one
    with the most work needs more entries than these. Plans that leave processes without
    data can pass less.

    >>> from feinsum.distributed.groups import Access
    >>> product = Group((Access("A", "ij"), Access("B", "jk")), Access("C", "ik"))
    >>> least_passed(product, dict.fromkeys("ijk", 600), 8)
    135000
    """
    letters = {i: chr(ord("a") + k) for k, i in enumerate(group.indices)}
    terms = [
        "".join(letters[i] for i in a.indices) for a in (*group.inputs, group.output)
    ]
    lengths = {letters[i]: extents[i] for i in group.indices}
    if min(lengths.values(), default=0) < 2:
        return 0
    found = intensity_of(statement(f"{','.join(terms[:-1])}->{terms[-1]}", lengths))
    pairs = zip(map(float, found.exponents), found.cover.terms, strict=True)
    cover = [(s, term) for s, term in pairs if s]
    total = sum(s for s, _ in cover)
    points = ceil(prod(lengths.values()) / processes)
    scale: float = (points / prod(s**s for s, _ in cover)) ** (1 / total)
    sizes = [prod(lengths[i] for i in term) for _, term in cover]
    shares = sum(-(-size // processes) for size in sizes)
    return max(0, ceil(total * scale * (1 - ROUNDING)) - shares)
