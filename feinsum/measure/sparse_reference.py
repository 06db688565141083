"""The definition of an einsum with a sparse operand, entry by entry, in numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from feinsum.ir import IndexList
from feinsum.nests import Network
from feinsum.sparse import CSF

__all__ = ["sparse_reference"]

Array = np.ndarray[Any, np.dtype[Any]]

PART_ENTRIES = 2**22
"""Approximate number of products that are computed at once."""
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def sparse_reference(network: Network, operands: Sequence[Any]) -> Array:
    """The result of a network, or the values of its sparse result.

    Of each entry of the tree, the slices of the other operands that it meets are
    multiplied by ``numpy.einsum``, and the products are added to the result.

    Args:
        network: what is computed.
        operands: one for each input; the sparse one is a tree.

    >>> from feinsum.nests import network
    >>> from feinsum.sparse import COO, to_csf
    >>> matrix = to_csf(COO((2, 3), ([0, 1, 1], [2, 0, 2]), [5.0, 6.0, 7.0]))
    >>> sparse_reference(network("ij,j->i"), [matrix, np.array([1.0, 2.0, 3.0])])
    array([15., 27.])
    """
    position = network.sparse or 0
    tree = operands[position]
    others = [(t, a) for p, (t, a) in enumerate(zip(network.inputs, operands,
              strict=True)) if p != position]  # fmt: skip
    extents = dict(zip(network.inputs[position], tree.shape, strict=True))
    for term, array in others:
        extents.update(zip(term, np.shape(array), strict=True))
    places = dict(zip(network.levels, _columns(tree), strict=True))
    left = [i for i in network.output if i not in places]
    held = [tree.values, *(array for _, array in others)]
    dtype = np.result_type(*held)
    kept = [i for i in network.output if i in places]
    flat = np.zeros(
        (prod(extents[i] for i in kept), *(extents[i] for i in left)), dtype
    )
    n_values = len(tree.values) if network.has_sparse_output else 0
    values = np.zeros((n_values, *(extents[i] for i in left)), dtype)
    for part in _parts(len(tree.values), [t for t, _ in others], extents, places):
        here = {i: column[part] for i, column in places.items()}
        found = _products(tree.values[part], others, here, left, dtype)
        if network.has_sparse_output:
            values[part] = found
            continue
        at = np.zeros(len(found), np.int64)
        for index in kept:
            at = at * extents[index] + here[index]
        order = np.argsort(at, kind="stable")
        firsts = np.flatnonzero(np.diff(at[order], prepend=-1))
        if len(firsts):
            flat[at[order][firsts]] += np.add.reduceat(found[order], firsts, axis=0)
    if network.has_sparse_output:
        return values
    shaped = flat.reshape([extents[i] for i in (*kept, *left)])
    return np.ascontiguousarray(
        shaped.transpose([(*kept, *left).index(i) for i in network.output])
    )


def _columns(tree: CSF) -> list[Array]:
    """The index of every entry at each level, in the order of the entries."""
    found = []
    for level, column in enumerate(tree.indices):
        for pointers in tree.pointers[level:]:
            column = np.repeat(column, np.diff(pointers))
        found.append(column)
    return found


def _parts(
    n_entries: int,
    terms: Sequence[IndexList],
    extents: dict[str, int],
    places: dict[str, Array],
) -> Iterator[slice]:
    """Slices of entries whose products fit the memory, with all dense indices."""
    dense = {i for term in terms for i in term if i not in places}
    step = max(1, PART_ENTRIES // max(1, prod(extents[i] for i in dense)))
    for first in range(0, n_entries, step):
        yield slice(first, first + step)


def _products(
    values: Array,
    others: Sequence[tuple[IndexList, Any]],
    places: dict[str, Array],
    left: Sequence[str],
    dtype: np.dtype[Any],
) -> Array:
    """For some entries, the product with all other operands, summed over the rest."""
    entry, letters = LETTERS[0], LETTERS[1:]
    names: dict[str, str] = {}
    terms, arrays = [entry], [values.astype(dtype)]
    for term, array in others:
        dense = [i for i in term if i not in places]
        for index in dense:
            names.setdefault(index, letters[len(names)])
        stored = [axis for axis, i in enumerate(term) if i in places]
        rest = [axis for axis, i in enumerate(term) if i not in places]
        turned = np.asarray(array, dtype).transpose([*stored, *rest])
        if stored:
            turned = turned[tuple(places[term[axis]] for axis in stored)]
        terms.append((entry if stored else "") + "".join(names[i] for i in dense))
        arrays.append(turned)
    result = entry + "".join(names[i] for i in left)
    found = np.einsum(f"{','.join(terms)}->{result}", *arrays, optimize=True)
    return np.asarray(found)
