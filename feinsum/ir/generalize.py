"""Long literal extents as size parameters, so that all long extents share recipes."""

from __future__ import annotations

from collections.abc import Mapping

from constantdict import constantdict

from feinsum.errors import InvalidEinsumError
from feinsum.ir.einsum import BatchedEinsum, require_einsum
from feinsum.ir.operand import Extent, Operand, SizeParam

__all__ = ["LONG_EXTENT", "generalize", "with_extents"]

LONG_EXTENT = 500
"""From this extent on, a free index counts as long: its extent is a parameter."""


def generalize(
    einsum: BatchedEinsum, long_extent: int = LONG_EXTENT
) -> tuple[BatchedEinsum, constantdict[str, int]]:
    """Give size parameters to the long literal extents of free indices.

    Equal extents share a parameter. Contraction indices keep their extents,
    and so does a free index that an array ties to a contraction index.

    Returns:
        The einsum, and the literal extent behind each new parameter.

    >>> from feinsum.ir.build import array, einsum
    >>> A, x = array("A", (900, 4)), array("x", 4)
    >>> general, sizes = generalize(einsum("ij,j->i", A, x))
    >>> print(general.operands[0], dict(sizes))
    A[n900,4]:<f8 {'n900': 900}
    """
    require_einsum(einsum)
    long = sorted(
        {
            extent
            for index in einsum.free_indices
            if isinstance(extent := einsum.extents[index], int)
            and extent >= long_extent
        }
    )
    taken = {x.name for x in einsum.size_params}
    params = {n: SizeParam(f"n{n}{'_' * (f'n{n}' in taken)}") for n in long}
    extents: dict[str, Extent] = dict(einsum.extents)
    for index in einsum.free_indices:
        extent = extents[index]
        if isinstance(extent, int):
            extents[index] = params.get(extent, extent)
    try:
        general = with_extents(einsum, extents)
    except InvalidEinsumError:  # an array ties a free to a contraction index
        return einsum, constantdict()
    return general, constantdict({param.name: n for n, param in params.items()})


def with_extents(einsum: BatchedEinsum, extents: Mapping[str, Extent]) -> BatchedEinsum:
    """The same notation over operands of other shapes.

    Raises:
        InvalidEinsumError: if one array would need two shapes.
    """
    rows = tuple(
        tuple(
            Operand(op.name, tuple(extents[i] for i in term), op.dtype)
            for op, term in zip(row, einsum.inputs, strict=True)
        )
        for row in einsum.rows
    )
    return BatchedEinsum(einsum.output, einsum.inputs, rows)
