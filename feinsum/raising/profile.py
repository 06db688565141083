"""The profile of the sparse operand of a kernel, as far as shapes of arrays tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import loopy as lp
import numpy as np
from constantdict import constantdict

from feinsum.ir import profile_names
from feinsum.raising.compressed import subscripts
from feinsum.raising.nest import RaisedKernel, RaisedNest, Tree
from feinsum.raising.specialize import shape_and_dtype, sizes_of_arguments

__all__ = ["with_profiles"]


def with_profiles(raised: RaisedKernel, arguments: Mapping[str, Any]) -> RaisedKernel:
    """The kernel, whose nests over trees know the sizes of these in a call.

    Args:
        arguments: see :func:`feinsum.raise_kernel`.
    """
    if not any(nest.nest.tree for nest in raised.raised):
        return raised
    kernel = raised.t_unit[raised.kernel_name]
    nests = tuple(
        nest if nest.nest.tree is None else _with_profile(nest, kernel, arguments)
        for nest in raised.raised
    )
    return replace(raised, raised=nests)


def _with_profile(
    nest: RaisedNest, kernel: lp.LoopKernel, arguments: Mapping[str, Any]
) -> RaisedNest:
    sizes = sizes_of_arguments(kernel, arguments)
    named = {name: sizes.get(str(of)) for name, of in nest.nest.sizes.items()}
    known = {**nest.generalized, **{n: x for n, x in named.items() if x is not None}}
    assert nest.nest.tree is not None
    nodes = _nodes(nest.nest.tree, kernel, arguments)
    position = nest.einsum.sparse_position or 0
    root = nest.einsum.extents[nest.einsum.inputs[position][0]]
    if nodes[0] is None:
        nodes[0] = known.get(root.name) if not isinstance(root, int) else root
    if all(n is not None and n > 0 for n in nodes):
        counts = [n for n in nodes if n is not None]
        least = [min(counts[level:]) for level in range(len(counts))]
        known |= dict(zip(profile_names(nest.einsum), least, strict=True))
    return replace(nest, generalized=constantdict(known))


def _nodes(
    tree: Tree, kernel: lp.LoopKernel, arguments: Mapping[str, Any]
) -> list[int | None]:
    """The number of nodes at each level: that of indices, where these are stored."""
    found: list[int | None] = []
    for level in tree.levels:
        arrays = [] if level.index is None else [*subscripts(level.index)]
        name = arrays[0].aggregate.name if arrays else ""
        found.append(_length(name, kernel, arguments))
    return found


def _length(
    name: str, kernel: lp.LoopKernel, arguments: Mapping[str, Any]
) -> int | None:
    if name in arguments:
        shape, _ = shape_and_dtype(name, arguments[name])
        return shape[0] if len(shape) == 1 else None
    if name not in kernel.arg_dict:
        return None
    declared = kernel.arg_dict[name].shape
    extent = declared[0] if isinstance(declared, tuple) and declared else None
    return int(extent) if isinstance(extent, (int, np.integer)) else None
