"""An einsum with the sizes that decide how it is best computed.

Long literal extents become size parameters, so that all long extents share recipes::

    ij,j->i with A[900,4], x[4]    ->    ij,j->i with A[n900,4], x[4], and n900 = 900

A fact of a sparse operand was measured at extents and at a profile, the number of nodes
at each level of the tree. The levels are numbered from the root: ``nodes.0`` and so on,
which cannot be size parameters, because they are not identifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import TypeAlias

from constantdict import constantdict

from feinsum.ir.einsums import BatchedEinsum, require_einsum
from feinsum.ir.operand import Extent, SizeParam, bind_shape
from feinsum.subscripts import IndexList


@dataclass(frozen=True)
class Workload:
    """An einsum with the known sizes.

    Attributes:
        einsum: the einsum.
        sizes: the known values of size parameters, and the profile of a sparse operand.

    >>> from feinsum.ir.build import array, einsum
    >>> matvec = einsum("ij,j->i", array("A", ("N", 4)), array("x", 4))
    >>> dict(Workload(matvec, {"N": 900}).sized.extents)
    {'i': 900, 'j': 4}
    """

    einsum: BatchedEinsum
    sizes: Mapping[str, int] = field(default_factory=constantdict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", constantdict(self.sizes))

    @property
    def nodes(self) -> tuple[int, ...]:
        """Nodes at each level of a tree; empty if unknown, or if there is none."""
        return get_nodes(self.einsum, self.sizes)

    @property
    def sized(self) -> BatchedEinsum:
        """The einsum with numbers for the extents that are known."""
        extents = {
            index: self.sizes.get(x.name, x) if isinstance(x, SizeParam) else x
            for index, x in self.einsum.extents.items()
        }
        return with_extents(self.einsum, extents)


WorkloadLike: TypeAlias = BatchedEinsum | Workload
"""A workload, or an einsum without known sizes."""


def as_workload(subject: WorkloadLike) -> Workload:
    """Return a workload as it is, and an einsum as a workload without known sizes."""
    return subject if isinstance(subject, Workload) else Workload(subject)


LONG_EXTENT = 500
"""The least extent of a free index that becomes a size parameter."""


def generalize(
    einsum: BatchedEinsum, long_extent: int = LONG_EXTENT
) -> tuple[BatchedEinsum, constantdict[str, int]]:
    """Give size parameters to the long literal extents of free indices.

    Equal extents share a parameter. Summation indices keep their extents, and so does a
    free index that an array ties to a summation index. Every index of a sparse operand
    has a parameter of its own, because its kernels accept all trees.

    Returns:
        The einsum, and the literal extent behind each new parameter.

    >>> from feinsum.ir.build import array, einsum
    >>> A, x = array("A", (900, 4)), array("x", 4)
    >>> general, sizes = generalize(einsum("ij,j->i", A, x))
    >>> print(general.operands[0], dict(sizes))
    A[n900,4]:<f8 {'n900': 900}
    """
    require_einsum(einsum)
    # trees first: their parameters are named after indices, the others after extents
    dense_general, tree_sizes = _without_tree_extents(einsum)
    general, dense_sizes = _with_params(
        dense_general, lambda extent: extent >= long_extent
    )
    return general, constantdict({**tree_sizes, **dense_sizes})


def generalize_each(
    einsum: BatchedEinsum,
) -> Iterator[tuple[BatchedEinsum, constantdict[str, int]]]:
    """Yield einsums in which one literal extent of free indices is a size parameter.

    The longest extent comes first. A recipe for a parametric number of elements applies
    to few elements, too. Extents below eight stay, as they belong to the operator.

    >>> from feinsum.ir.build import array, einsum
    >>> few = einsum("ij,jk->ik", array("A", (384, 4)), array("x", (4, 9)))
    >>> [dict(sizes) for _, sizes in generalize_each(few)]
    [{'n384': 384}, {'n9': 9}]
    """
    free = {einsum.extents[index] for index in einsum.free_indices}
    # short extents, such as the number of dimensions, are not problem sizes
    literal = {extent for extent in free if isinstance(extent, int) and extent >= 8}
    for extent_chosen in sorted(literal, reverse=True):
        general, sizes = _with_params(einsum, extent_chosen.__eq__)
        if sizes:
            yield general, sizes


def _without_tree_extents(
    einsum: BatchedEinsum,
) -> tuple[BatchedEinsum, dict[str, int]]:
    """Replace literal extents of a sparse operand's indices by parameters.

    Indices that an array ties together share a parameter.
    """
    if einsum.sparse_position is None:
        return einsum, {}
    names = {x.name for x in einsum.size_params}
    extents, sizes = dict(einsum.extents), dict[str, int]()
    for index in einsum.inputs[einsum.sparse_position]:
        extent = extents[index]
        if not isinstance(extent, int):
            continue
        name = f"n_{index}"
        while name in names:
            name += "_"
        names.add(name)
        sizes[name] = extent
        extents.update(dict.fromkeys(_find_tied({index}, einsum), SizeParam(name)))
    return with_extents(einsum, extents), sizes


def _with_params(
    einsum: BatchedEinsum, is_long: Callable[[int], bool]
) -> tuple[BatchedEinsum, constantdict[str, int]]:
    # a sum of parametric length would be another kernel
    tied = _find_tied({*einsum.summation_indices}, einsum)
    long = {
        index: extent
        for index in einsum.free_indices
        if isinstance(extent := einsum.extents[index], int)
        and is_long(extent)
        and index not in tied
    }
    params = _name_params(set(long.values()), {x.name for x in einsum.size_params})
    extents: dict[str, Extent] = dict(einsum.extents)
    extents.update({index: params[extent] for index, extent in long.items()})
    general = with_extents(einsum, extents)
    return general, constantdict({param.name: n for n, param in params.items()})


def _find_tied(indices: set[str], einsum: BatchedEinsum) -> set[str]:
    arrays = [
        (operand.name, term)
        for row in einsum.rows
        for operand, term in zip(row, einsum.inputs, strict=True)
    ]
    return find_tied_indices(indices, arrays)


def find_tied_indices(
    indices: set[str], arrays: Iterable[tuple[str, IndexList]]
) -> set[str]:
    """Return the given indices, and all whose extents must equal one of theirs.

    An axis of an array has one extent, which is that of every index that accesses it.

    Args:
        indices: the indices to start from.
        arrays: the name of each operand, and its indices.

    >>> sorted(find_tied_indices({"j"}, [("A", "ij"), ("A", "jk"), ("B", "il")]))
    ['i', 'j', 'k']
    """
    groups: dict[tuple[str, int], set[str]] = {}
    for name, term in arrays:
        for axis, index in enumerate(term):
            groups.setdefault((name, axis), set()).add(index)
    tied: set[str] = set()
    grown = set(indices)
    # until nothing changes: arrays tie indices transitively
    while grown - tied:
        tied |= grown
        grown = {i for group in groups.values() if group & tied for i in group}
    return tied


def _name_params(extents: set[int], names: set[str]) -> dict[int, SizeParam]:
    """Return a parameter for each extent, with a new name."""
    params = {}
    for extent in sorted(extents):
        name = f"n{extent}"
        while name in names:
            name += "_"
        names.add(name)
        params[extent] = SizeParam(name)
    return params


def with_extents(einsum: BatchedEinsum, extents: Mapping[str, Extent]) -> BatchedEinsum:
    """Return the einsum with operands of other shapes.

    Raises:
        InvalidEinsumError: if an array would have two shapes.
    """
    rows = tuple(
        tuple(
            replace(op, shape=tuple(extents[i] for i in term))
            for op, term in zip(row, einsum.inputs, strict=True)
        )
        for row in einsum.rows
    )
    return BatchedEinsum(einsum.output, einsum.inputs, rows)


PROFILE = "nodes."
"""Prefix of the names of a profile's numbers of nodes."""


def list_profile_names(einsum: BatchedEinsum) -> tuple[str, ...]:
    """Return the names of the numbers of nodes, from the root; none without a tree.

    >>> from feinsum.ir.build import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", ("M", "N")), array("x", "N"))
    >>> list_profile_names(spmv)
    ('nodes.0', 'nodes.1')
    """
    position = einsum.sparse_position
    n_levels = 0 if position is None else len(einsum.inputs[position])
    return tuple(f"{PROFILE}{level}" for level in range(n_levels))


def list_size_names(einsum: BatchedEinsum) -> tuple[str, ...]:
    """Return the names of all sizes: of the size parameters, then of the profile."""
    return (*(x.name for x in einsum.size_params), *list_profile_names(einsum))


def get_nodes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the profile in ``sizes``; empty if it is unknown, or there is no tree."""
    names = list_profile_names(einsum)
    if not all(name in sizes for name in names):
        return ()
    return tuple(int(sizes[name]) for name in names)


def check_profile(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> str | None:
    """Return what is wrong with a profile; None if it is valid or missing.

    A node has at least one child, and at most as many as the index below has values.

    >>> from feinsum.ir.build import array, einsum, sparse_array
    >>> spmv = einsum("ij,j->i", sparse_array("A", (5, 4)), array("x", 4))
    >>> check_profile(spmv, {"nodes.0": 5, "nodes.1": 20})
    >>> check_profile(spmv, {"nodes.0": 5, "nodes.1": 21})
    'nodes.1=21; expected 5 to 20'
    """
    nodes = get_nodes(einsum, sizes)
    if not nodes:
        return None
    term = einsum.inputs[einsum.sparse_position or 0]
    extents = bind_shape((einsum.extents[index] for index in term), sizes)
    for level, (parent_nodes, level_nodes) in enumerate(pairwise((1, *nodes))):
        max_nodes = parent_nodes * extents[level]
        # the root may have fewer nodes than its extent, since empty slices are not
        # stored
        if (
            not (1 if level == 0 else parent_nodes)
            <= level_nodes
            <= min(max_nodes, prod(extents))
        ):
            min_nodes = 1 if level == 0 else parent_nodes
            return (
                f"{PROFILE}{level}={level_nodes}; expected {min_nodes} to {max_nodes}"
            )
    return None
