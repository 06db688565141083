"""Invariants of isomorphic einsums, from coarse to fine.

They explain in words why two einsums are different workloads. Only the canonical form
distinguishes all einsums that are not isomorphic.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from feinsum.canonical.graph import build_induced_graph
from feinsum.canonical.labelling import (
    group_by_color,
    list_neighbours,
    number_cells,
    refine_cells,
)
from feinsum.ir import BatchedEinsum, Extent, IndexList, Operand, require_einsum

Value: TypeAlias = int | str | Counter[str]
"""A number, a text, or a multiset of texts; no names of the einsum are in it."""


class Invariant(NamedTuple):
    """A named function whose values are equal for isomorphic einsums."""

    name: str
    value: Callable[[BatchedEinsum], Value]


@dataclass(frozen=True)
class InvariantDifference:
    """The first invariant in which two einsums differ, and its two values.

    Values of multisets contain only the elements that the other einsum lacks.
    """

    invariant: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.invariant}: A has {self.a} where B has {self.b}"


def first_difference(a: BatchedEinsum, b: BatchedEinsum) -> InvariantDifference | None:
    """Describe the first of :data:`INVARIANTS` in which two einsums differ.

    The result is None for isomorphic einsums, and for a few others that only the
    canonical form distinguishes (see the last of the invariants).

    >>> from feinsum.ir import array, einsum
    >>> x, A = array("x", ("N", 4)), array("A", ("N", 5))
    >>> print(first_difference(einsum("ij->i", x), einsum("ij->i", A)))
    extents of the summation indices: A has {4} where B has {5}
    """
    require_einsum(a)
    require_einsum(b)
    for invariant in INVARIANTS:
        value_of_a, value_of_b = invariant.value(a), invariant.value(b)
        if value_of_a != value_of_b:
            return InvariantDifference(
                invariant.name, *_format_values(value_of_a, value_of_b)
            )
    return None


def _format_values(value_of_a: Value, value_of_b: Value) -> tuple[str, str]:
    if isinstance(value_of_a, Counter) and isinstance(value_of_b, Counter):
        return _format_multiset(value_of_a - value_of_b), _format_multiset(
            value_of_b - value_of_a
        )
    return str(value_of_a), str(value_of_b)


def _format_multiset(values: Counter[str]) -> str:
    """Write a multiset as text.

    >>> _format_multiset(Counter(["4", "N", "4"]))
    '{4 x2, N}'
    """
    items = (f"{x} x{n}" if n > 1 else x for x, n in sorted(values.items()))
    return f"{{{', '.join(items)}}}"


def _format_extent(extent: Extent) -> str:
    """Write an extent without the name of its size parameter."""
    return str(extent) if isinstance(extent, int) else "N"


def _describe_role(einsum: BatchedEinsum, index: str) -> str:
    # isomorphisms preserve the order of the output, but summation indices have none
    is_free = index in einsum.output
    return f"output {einsum.output.index(index)}" if is_free else "sum"


def _format_pattern(term: IndexList) -> str:
    """Write which axes of a term share an index, independent of names: ``i0 i1 i0``."""
    order = {index: f"i{k}" for k, index in enumerate(dict.fromkeys(term))}
    return " ".join(order[index] for index in term)


def _list_factors(einsum: BatchedEinsum) -> Iterable[tuple[int, Operand, IndexList]]:
    """Yield the row, operand and term of every factor."""
    for k, row in enumerate(einsum.rows):
        for operand, term in zip(row, einsum.inputs, strict=True):
            yield k, operand, term


def _count_dtypes(einsum: BatchedEinsum) -> Counter[str]:
    return Counter(
        operand.storage + operand.dtype.str for _, operand, _ in _list_factors(einsum)
    )


def _count_size_params(einsum: BatchedEinsum) -> Counter[str]:
    axes: dict[Extent, list[str]] = {param: [] for param in einsum.size_params}
    for index, extent in einsum.extents.items():
        if extent in axes:
            axes[extent].append(_describe_role(einsum, index))
    return Counter(" = ".join(sorted(shared)) for shared in axes.values())


def _count_multiplicities(einsum: BatchedEinsum) -> Counter[str]:
    """Count, per row, how often it multiplies an operand with the same term."""
    counts = [Counter(zip(row, einsum.inputs, strict=True)) for row in einsum.rows]
    return Counter(" ".join(map(str, sorted(c.values(), reverse=True))) for c in counts)


def _count_rows_per_array(einsum: BatchedEinsum) -> Counter[str]:
    rows = {(k, operand) for k, operand, _ in _list_factors(einsum)}
    return Counter(str(n) for n in Counter(operand for _, operand in rows).values())


def _count_index_profiles(einsum: BatchedEinsum) -> Counter[str]:
    """Describe each index by its place, its extent and the axes that carry it."""
    axes: dict[str, list[str]] = {index: [] for index in einsum.indices}
    for term in einsum.inputs:
        for axis, index in enumerate(term):
            axes[index].append(f"axis {axis} of {len(term)}")
    return Counter(
        f"{_describe_role(einsum, index)}, extent "
        f"{_format_extent(einsum.extents[index])}, "
        f"{_format_multiset(Counter(carriers))}"
        for index, carriers in axes.items()
    )


def _count_operand_profiles(einsum: BatchedEinsum) -> Counter[str]:
    """Describe each array by dtype, shape and the roles of its axes in each use."""
    uses: dict[Operand, Counter[str]] = {op: Counter() for op in einsum.operands}
    for _, operand, term in _list_factors(einsum):
        positions = ", ".join(_describe_role(einsum, index) for index in term)
        uses[operand][f"({positions})"] += 1
    return Counter(
        f"[{','.join(map(_format_extent, operand.shape))}]:"
        f"{operand.storage}{operand.dtype.str} as {_format_multiset(read_as)}"
        for operand, read_as in uses.items()
    )


def _digest_colors(einsum: BatchedEinsum) -> str:
    """Digest the cells after color refinement: color, size, neighbours."""
    graph = build_induced_graph(einsum)
    neighbours = list_neighbours(len(graph.colors), graph.edges)
    cells = refine_cells(group_by_color(graph.colors), neighbours)
    cell_of = number_cells(cells)
    profile = []
    for cell in cells:
        # after refinement, all vertices of a cell have the same counts
        representative = min(cell)
        near = Counter(cell_of[vertex] for vertex in neighbours[representative])
        profile.append((graph.colors[representative], len(cell), sorted(near.items())))
    return hashlib.sha256(repr(profile).encode()).hexdigest()[:12]


INVARIANTS: tuple[Invariant, ...] = (
    Invariant("number of rows", lambda e: e.batch_size),
    Invariant("number of operands of a row", lambda e: e.n_operands),
    Invariant("number of indices", lambda e: len(e.indices)),
    Invariant("rank of the output", lambda e: len(e.output)),
    Invariant(
        "extents of the output",
        lambda e: f"({', '.join(map(_format_extent, e.output_shape))})",
    ),
    Invariant(
        "extents of the summation indices",
        lambda e: Counter(_format_extent(e.extents[i]) for i in e.summation_indices),
    ),
    Invariant("dtypes of the operands", _count_dtypes),
    Invariant("number of size parameters", lambda e: len(e.size_params)),
    Invariant("indices that share a size parameter", _count_size_params),
    Invariant("ranks of the terms", lambda e: Counter(str(len(t)) for t in e.inputs)),
    Invariant("how often a row multiplies the same operand", _count_multiplicities),
    Invariant("number of distinct arrays", lambda e: len(e.operands)),
    Invariant("number of rows that an array is in", _count_rows_per_array),
    Invariant(
        "repeated indices of the terms",
        lambda e: Counter(map(_format_pattern, e.inputs)),
    ),
    Invariant("axes that carry an index", _count_index_profiles),
    Invariant("axes of an array", _count_operand_profiles),
    Invariant("refined colors of the induced graph", _digest_colors),
)
"""From coarse to fine; each distinguishes some einsums that no earlier one does."""
