"""Candidate contraction paths of a plan: distinct paths with few operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from feinsum.ir import BatchedEinsum
from feinsum.paths import Path, path_of, postorders
from feinsum.plans.groups import Group, default_path, groups_of

MOST_OPERANDS = 5
"""Maximum operands for enumerating all paths; five operands have 150."""

MOST_PATHS = 4
"""Maximum number of planned paths."""

MOST_OPERATIONS = 1.1
"""Maximum operations of another path over the fewest."""


def paths_of(einsum: BatchedEinsum, extents: Mapping[str, int]) -> tuple[Path, ...]:
    """The default path, and others with about as few operations but other groups.

    >>> import feinsum
    >>> arrays = [feinsum.array(name, (8, 8)) for name in "ABC"]
    >>> chain = feinsum.einsum("ij,jk,kl->il", *arrays)
    >>> paths_of(chain, dict(chain.extents))
    (((1, 2), (0, 1)), ((0, 1), (0, 1)))
    """
    usual = default_path(einsum, extents)
    if not 3 <= len(einsum.inputs) <= MOST_OPERANDS:
        return (usual,)
    limit = MOST_OPERATIONS * _operations(groups_of(einsum, usual, extents), extents)
    found: dict[object, tuple[int, Path]] = {}
    n = len(einsum.inputs)
    for path in (usual, *(path_of(order, n) for order in postorders(n))):
        groups = groups_of(einsum, path, extents)
        n_operations = _operations(groups, extents)
        if n_operations <= limit:
            found.setdefault(_signature(groups), (n_operations, path))
    (_, first), *rest = found.values()
    return (first, *(path for _, path in sorted(rest)[: MOST_PATHS - 1]))


def _operations(groups: Sequence[Group], extents: Mapping[str, int]) -> int:
    """Operations of leaves, each along its own best path."""
    return sum(group.n_points(extents) * len(group.inputs) for group in groups)


def _signature(groups: Sequence[Group]) -> object:
    """The operands that each group combines, independent of names of products."""
    of: dict[str, object] = {}
    for group in groups:
        terms = Counter(of.get(str(a), str(a)) for a in group.inputs)
        of[str(group.output)] = frozenset(terms.items())
    return frozenset(of.values())
