r"""Random sparse arrays, uniform or with a given profile and skew; and their profiles.

``random_profile((4, 6), (2, 5), seed=0, skew=1.0)`` could generate this tree::

    level 0    1          3          2 nodes
               |       / | | \
    level 1    4      0  2 3  5      5 nodes: one child each, the others by weight
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import combinations
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from feinsum.sparse.convert import to_coo, to_csf
from feinsum.sparse.formats import (
    COO,
    CSC,
    CSF,
    CSR,
    Array,
    SparseArray,
    check_shape,
    choose_index_dtype,
    mark_begins,
    reject,
    sort_coordinates,
)
from feinsum.words import format_count

_MAX_PLACES = 2**63 - 1


def random_uniform(
    shape: Sequence[int], nnz: int, *, seed: int, dtype: npt.DTypeLike = np.float64
) -> CSF:
    """Generate a tensor with a given number of uniformly distributed entries.

    Raises:
        InvalidSparseArrayError: ``profile`` if there are fewer positions; ``shape`` if
            there are more than 63 bits can count.

    >>> random_uniform((30, 20, 10), 100, seed=0).nnz
    100
    """
    extents = check_shape(tuple(shape))
    n_places = prod(extents)
    if n_places > _MAX_PLACES:
        reject("shape", f"{extents} has more than {_MAX_PLACES} positions; "
               "use random_profile")  # fmt: skip
    if not 0 <= nnz <= n_places:
        reject(
            "profile",
            f"given {format_count(nnz, 'entry')}; expected 0 to {n_places}",
        )
    rng = np.random.default_rng(seed)
    positions = _draw_distinct(rng, n_places, nnz)
    columns = np.unravel_index(positions, extents)
    return to_csf(COO(extents, columns, _draw_values(rng, nnz, np.dtype(dtype))))


def _draw_distinct(rng: np.random.Generator, n_places: int, n: int) -> Array:
    """Draw ``n`` different numbers below ``n_places``, in increasing order."""
    if 2 * n >= n_places:
        return np.sort(rng.permutation(n_places)[:n])
    positions = np.unique(rng.integers(0, n_places, n))
    while len(positions) < n:
        more = rng.integers(0, n_places, 2 * (n - len(positions)))
        positions = np.union1d(positions, more)
    # a random subset: the first ones of the sorted positions would all be small
    return np.sort(rng.permutation(positions)[:n])


def random_profile(
    shape: Sequence[int],
    profile: Sequence[int],
    *,
    seed: int,
    skew: float = 0.0,
    axes: Sequence[int] | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> CSF:
    """Generate a tensor whose tree has exactly the given number of nodes at each level.

    Each parent gets one child. The other children are distributed with the weights 1,
    2**-skew, 3**-skew and so on, in random order. With a skew of 0, fibers have nearly
    equal lengths; with 1, a few fibers have most of the children (Zipf's law). The
    indices of children are spread over the extent.

    Args:
        shape: extents, in the order of the array's axes.
        profile: number of nodes at each level, from the root.
        seed: random seed; equal arguments give equal arrays.
        skew: skew of the number of children, 0 or more.
        axes: the axis of each level; by default in increasing order.
        dtype: dtype of the values.

    Raises:
        InvalidSparseArrayError: ``profile`` for a profile that no tree can have.

    >>> random_profile((30, 20, 10), (25, 60, 300), seed=0, skew=1.0).profile
    (25, 60, 300)
    """
    extents = check_shape(tuple(shape))
    chosen = tuple(range(len(extents)) if axes is None else axes)
    if sorted(chosen) != list(range(len(extents))):
        reject("axes", f"given {axes}; expected each of 0 to {len(extents) - 1} once")
    if len(profile) != len(extents):
        reject(
            "profile",
            f"given {format_count(len(profile), 'level')} for "
            f"{format_count(len(extents), 'axis')}",
        )
    if not 0 <= skew < np.inf:
        reject("profile", f"given the skew {skew}; expected a number from 0")
    rng = np.random.default_rng(seed)
    indices: list[Array] = []
    pointers: list[Array] = []
    n_parents = 1
    for axis, n_nodes in zip(chosen, profile, strict=True):
        _require_room(n_parents, n_nodes, extents[axis])
        lengths = _draw_lengths(rng, n_parents, n_nodes, extents[axis], skew)
        indices.append(_draw_indices(rng, lengths, extents[axis]))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        pointers.append(starts.astype(choose_index_dtype(n_nodes)))
        n_parents = n_nodes
    values = _draw_values(rng, n_parents, np.dtype(dtype))
    return CSF(extents, chosen, tuple(indices), tuple(pointers[1:]), values)


def _require_room(n_parents: int, n_nodes: int, extent: int) -> None:
    if not n_parents <= n_nodes <= n_parents * extent:
        reject(
            "profile",
            f"a level of {n_nodes} nodes below {n_parents} nodes and over an extent of "
            f"{extent}; expected {n_parents} to {n_parents * extent}",
        )


def _draw_lengths(
    rng: np.random.Generator, n_parents: int, n_nodes: int, extent: int, skew: float
) -> Array:
    """Draw the number of children of each parent, from 1 to the extent."""
    lengths = np.ones(n_parents, dtype=np.int64)
    ranks = rng.permutation(n_parents) + 1.0
    # not 0, so that parents of little weight get children once others are full
    weights = np.maximum(ranks**-skew, 1e-9)
    n_remaining = n_nodes - n_parents
    while n_remaining:
        shares = np.cumsum(np.where(lengths < extent, weights, 0.0))
        exact = n_remaining * np.diff(shares, prepend=0.0) / shares[-1]
        more = np.floor(exact).astype(np.int64)
        drawn = rng.random(n_remaining - int(more.sum())) * shares[-1]
        # rounding may put a number beyond the last bin
        bins = np.searchsorted(shares, drawn, side="right")
        more += np.bincount(np.minimum(bins, n_parents - 1), minlength=n_parents)
        more = np.minimum(more, extent - lengths)
        lengths += more
        n_remaining -= int(more.sum())
    return lengths


def _draw_indices(rng: np.random.Generator, lengths: Array, extent: int) -> Array:
    """Draw increasing indices for each fiber, one from each of its equal intervals."""
    n = int(lengths.sum())
    run_lengths = np.repeat(lengths, lengths)
    firsts = np.cumsum(lengths) - lengths
    numbers = np.arange(n) - np.repeat(firsts, lengths)
    width, wider = np.divmod(extent, run_lengths)
    low = numbers * width + np.minimum(numbers, wider)
    sizes: Array = low + rng.integers(0, width + (numbers < wider))
    return sizes.astype(choose_index_dtype(extent))


def _draw_values(rng: np.random.Generator, n: int, dtype: np.dtype[Any]) -> Array:
    """Draw numbers of magnitude 0.5 to 1.5, of random sign or phase; 1 if integer."""
    if dtype.kind in "biu":
        return np.ones(n, dtype)
    sizes: Array = rng.uniform(0.5, 1.5, n) * rng.choice([-1.0, 1.0], n)
    if dtype.kind == "c":
        sizes = sizes * np.exp(1j * rng.uniform(0, np.pi, n))
    return sizes.astype(dtype)


_CHUNK = 2**20


def count_nodes(array: SparseArray, axes: Iterable[int]) -> int:
    """Count the combinations of indices of these axes that have an entry.

    A tree whose first levels are these axes, in any order, has this number of nodes at
    the last of these levels.

    >>> count_nodes(COO((4, 2), ([3, 0, 3], [1, 1, 0]), [1.0, 2.0, 3.0]), [0])
    2
    """
    chosen = sorted(set(axes))
    if not chosen:
        return int(array.nnz > 0)
    entries = to_coo(array)
    columns = [entries.indices[axis] for axis in chosen]
    order = sort_coordinates(columns, [array.shape[axis] for axis in chosen])
    if order is not None:
        columns = [column[order] for column in columns]
    return int(np.count_nonzero(mark_begins(columns)))


def node_counts(array: SparseArray) -> dict[frozenset[int], int]:
    """Count the nodes of every set of axes, which gives the profiles of all orders.

    Complexity: a sort for each of the 2**order sets.

    >>> counts = node_counts(COO((4, 2), ([3, 0, 3], [1, 1, 0]), [1.0, 2.0, 3.0]))
    >>> counts[frozenset({0})], counts[frozenset({0, 1})]
    (2, 3)
    """
    entries = to_coo(array)
    sets = (
        frozenset(axes)
        for size in range(array.order + 1)
        for axes in combinations(range(array.order), size)
    )
    return {axes: count_nodes(entries, axes) for axes in sets}


def pattern_digest(array: SparseArray) -> str:
    """Return the SHA-256 of an array without its values.

    Equal patterns in different formats have different digests; the dtype of indices
    does not matter.

    >>> first = CSR((2, 3), [0, 1, 2], [2, 0], [5.0, 6.0])
    >>> other = CSR((2, 3), [0, 1, 2], [2, 0], [7.0, 8.0])
    >>> pattern_digest(first) == pattern_digest(other)
    True
    """
    axes = array.axes if isinstance(array, CSF) else ()
    digest = sha256(repr((type(array).__name__, array.shape, axes)).encode())
    for chunk in _list_arrays(array):
        digest.update(f"{len(chunk)};".encode())
        for start in range(0, len(chunk), _CHUNK):
            digest.update(chunk[start : start + _CHUNK].astype("<i8").tobytes())
    return digest.hexdigest()


def _list_arrays(array: SparseArray) -> tuple[Array, ...]:
    match array:
        case COO():
            return array.indices
        case CSR() | CSC():
            return (array.pointers, array.indices)
        case CSF():
            return (*array.pointers, *array.indices)


def require_pattern(array: SparseArray, digest: str) -> None:
    """Refuse an array whose pattern has changed since it was prepared.

    Raises:
        InvalidSparseArrayError: with the rule ``pattern-changed``.
    """
    pattern = pattern_digest(array)
    if pattern != digest:
        reject(
            "pattern-changed",
            f"the pattern has the digest {pattern[:12]}..., and had {digest[:12]}... "
            "when the array was prepared; prepare it again, and change only values",
        )
