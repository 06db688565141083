"""Calls with a sparse operand that numpy computes, where no kernel can be built.

For a sparse ``T[i,j]``, ``ij,jk->ik`` is computed from the coordinates ``i[z], j[z]``
of the entries ``z``:

1. Gather what each entry multiplies: ``G[z,k] = B[j[z],k]``.
2. Multiply and contract the dense indices: ``P[z,k] = T[z] * G[z,k]``.
3. Add up what is of one element: ``C[i[z],k] += P[z,k]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from feinsum.calling.by_numpy import einsum_in_steps
from feinsum.ir import IndexList
from feinsum.nests import Network, Sizes
from feinsum.paths import find_path
from feinsum.sparse import COO, CSF, to_coo, to_csf

ENTRY = "entry of the sparse operand"
"""Name of the index of entries; no index of a call has spaces."""
MOST_BYTES = 1 << 26
"""Most memory for what is gathered of one operand at once."""


def tree_of_any(operand: COO | CSF | tuple[CSF, ...]) -> CSF:
    """A tree of a sparse operand; the first of several trees."""
    return to_csf(operand[0] if isinstance(operand, tuple) else operand)


def evaluate_entries(
    network: Network, arrays: list[Any], sizes: Sizes, dtype: np.dtype[Any]
) -> Any:
    """The result of a network from the coordinates of its sparse operand.

    Args:
        arrays: the operands; the sparse one is a tree with the levels of the network.

    Returns:
        The values of a sparse result, ``[nnz]``, or the dense result.
    """
    tree = arrays[network.sparse or 0]
    entries = to_coo(tree)
    term = network.inputs[network.sparse or 0]
    columns = dict(zip(term, entries.indices, strict=True))
    output = tuple(i for i in network.output if i not in columns)
    if network.has_sparse_output:
        result = np.empty(entries.nnz, dtype)
    else:
        result = np.zeros([sizes.extents[i] for i in network.output], dtype)
    for part in _parts(network, sizes, entries.nnz, dtype):
        here = {index: column[part] for index, column in columns.items()}
        given = [entries.values if x is tree else x for x in arrays]
        products = _products(network, given, part, here, output)
        if network.has_sparse_output:
            result[part] = products
        else:
            places = [here.get(i, slice(None)) for i in network.output]
            _add(result, places, products)
    return result


def _parts(
    network: Network, sizes: Sizes, nnz: int, dtype: np.dtype[Any]
) -> Iterator[slice]:
    """Entries whose gathered operands take little memory."""
    sparse = {*network.inputs[network.sparse or 0]}
    terms = [*network.inputs, network.output]
    rest = (prod(sizes.extents[i] for i in {*term} - sparse) for term in terms)
    n = max(1, MOST_BYTES // (dtype.itemsize * max(1, *rest)))
    for begin in range(0, nnz, n):
        yield slice(begin, begin + n)


def _products(
    network: Network,
    arrays: list[Any],
    part: slice,
    columns: dict[str, Any],
    output: IndexList,
) -> Any:
    """The products of entries, ``[z, *output]``."""
    terms: list[IndexList] = []
    operands = []
    for position, (term, array) in enumerate(zip(network.inputs, arrays, strict=True)):
        if position == network.sparse:
            terms.append((ENTRY,))
            operands.append(array[part])
            continue
        shared = [axis for axis, index in enumerate(term) if index in columns]
        rest = tuple(index for index in term if index not in columns)
        first = np.moveaxis(array, shared, range(len(shared)))
        terms.append((ENTRY, *rest) if shared else rest)
        chosen = tuple(columns[term[axis]] for axis in shared)
        operands.append(first[chosen] if shared else array)
    extents = {
        index: n
        for term, array in zip(terms, operands, strict=True)
        for index, n in zip(term, array.shape, strict=True)
    }
    path = find_path(terms, (ENTRY, *output), extents)
    return einsum_in_steps(terms, (ENTRY, *output), operands, path)


def _add(result: Any, places: list[Any], products: Any) -> None:
    """Add products to the elements of a result at some places of its sparse indices."""
    shared = [axis for axis, place in enumerate(places) if not isinstance(place, slice)]
    if not shared:
        result += products.sum(axis=0)
        return
    first = np.moveaxis(result, shared, range(len(shared)))
    np.add.at(first, tuple(places[axis] for axis in shared), products)
