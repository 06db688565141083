"""The names of the sizes of an einsum: size parameters, and the profile of a tree.

A fact of a sparse operand was measured at extents and at a profile, the number of nodes
at each level of the tree. The levels are numbered from the root: ``nodes.0`` and so on.
No size parameter has such a name: it is no identifier.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import prod

from feinsum.ir.einsum import BatchedEinsum
from feinsum.ir.operand import shape_at

__all__ = ["PROFILE", "check_profile", "nodes_of", "profile_names", "size_names"]

PROFILE = "nodes."
"""Prefix of the names of the numbers of nodes."""


def profile_names(einsum: BatchedEinsum) -> tuple[str, ...]:
    """The names of the numbers of nodes, from the root; none without a tree.

    >>> from feinsum.ir.build import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> profile_names(spmv)
    ('nodes.0', 'nodes.1')
    """
    position = einsum.sparse_position
    n_levels = 0 if position is None else len(einsum.inputs[position])
    return tuple(f"{PROFILE}{level}" for level in range(n_levels))


def size_names(einsum: BatchedEinsum) -> tuple[str, ...]:
    """The names of all sizes: values of its size parameters, then of its profile."""
    return (*(x.name for x in einsum.size_params), *profile_names(einsum))


def nodes_of(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The profile among sizes; empty if it is not known, or there is no tree."""
    names = profile_names(einsum)
    if not all(name in sizes for name in names):
        return ()
    return tuple(int(sizes[name]) for name in names)


def check_profile(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> str | None:
    """The fault of a profile; None if a tree has it, or no profile is given.

    Each node has one to as many children as the level below has values.

    >>> from feinsum.ir.build import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", (5, 4)), array("x", 4))
    >>> check_profile(spmv, {"nodes.0": 5, "nodes.1": 20})
    >>> check_profile(spmv, {"nodes.0": 5, "nodes.1": 21})
    'nodes.1=21; expected 5 to 20'
    """
    nodes = nodes_of(einsum, sizes)
    if not nodes:
        return None
    term = einsum.inputs[einsum.sparse_position or 0]
    extents = shape_at((einsum.extents[index] for index in term), sizes)
    for level, (above, here) in enumerate(pairwise((1, *nodes))):
        most = above * extents[level]
        if not (1 if level == 0 else above) <= here <= min(most, prod(extents)):
            least = 1 if level == 0 else above
            return f"{PROFILE}{level}={here}; expected {least} to {most}"
    return None
