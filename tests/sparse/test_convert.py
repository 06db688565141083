"""Conversions keep what an array means, and are linear."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidSparseArrayError
from feinsum.sparse import (
    COO,
    count_nodes,
    from_dense,
    node_counts,
    pattern_digest,
    random_uniform,
    require_pattern,
    to_coo,
    to_csc,
    to_csf,
    to_csr,
    to_dense,
)
from feinsum.sparse.formats import sort_coordinates
from tests.sparse.arrays import coordinates, dense_of


@given(coordinates(), st.data())
def test_a_tree_means_what_its_entries_mean(entries, data):
    """In any order of levels, and back, each entry once."""
    axes = data.draw(st.permutations(range(entries.order)))
    tree = to_csf(entries, axes)
    assert tree.axes == tuple(axes)
    assert np.array_equal(to_dense(tree), dense_of(entries))
    assert tree.nnz == len(set(zip(*entries.indices, strict=True)))
    assert tree.values.dtype == entries.values.dtype


@given(coordinates(orders=(2, 4)), st.data())
def test_a_tree_in_another_order_is_the_tree_of_the_entries(entries, data):
    """It makes no difference by which order of levels one goes."""
    first = data.draw(st.permutations(range(entries.order)))
    second = data.draw(st.permutations(range(entries.order)))
    detour = to_csf(to_csf(entries, first), second)
    direct = to_csf(entries, second)
    assert pattern_digest(detour) == pattern_digest(direct)
    assert np.array_equal(detour.values, direct.values)


@given(coordinates(orders=(2, 2)))
def test_matrices_mean_what_their_entries_mean(entries):
    """By rows, by columns, and from one to the other. Their trees are those of the
    entries in either order of levels; in the matrix's own order it shares the values.
    """
    by_rows, by_columns = to_csr(entries), to_csc(entries)
    for matrix in (by_rows, by_columns, to_csc(by_rows), to_csr(by_columns)):
        assert np.array_equal(to_dense(matrix), dense_of(entries))
    assert pattern_digest(to_csr(by_columns)) == pattern_digest(by_rows)
    for matrix in (by_rows, by_columns):
        own = matrix.compressed, 1 - matrix.compressed
        for axes in ((0, 1), (1, 0)):
            tree, wanted = to_csf(matrix, axes), to_csf(entries, axes)
            assert pattern_digest(tree) == pattern_digest(wanted)
            assert np.array_equal(tree.values, wanted.values)
            assert (tree.values is matrix.values) or axes != own


@given(coordinates())
def test_sorted_coordinates_are_lexicographic_and_stable(entries):
    """The order is the one of a stable sort of tuples."""
    order = sort_coordinates(entries.indices, entries.shape)
    rows = [*zip(*entries.indices, strict=True)]
    wanted = sorted(range(len(rows)), key=lambda k: rows[k])
    found = [*range(len(rows))] if order is None else order.tolist()
    if order is None:
        assert rows == sorted(rows)
    else:
        assert found == wanted


def test_extents_beyond_63_bits_are_sorted():
    """The key of an entry may take several integers."""
    shape = (2**40, 2**40, 2**40)
    columns = tuple(
        np.array(column, dtype=np.int64)
        for column in ([5, 2**39, 5], [2**35, 0, 2**34], [1, 1, 1])
    )
    tree = to_csf(COO(shape, columns, [1.0, 2.0, 3.0]))
    assert tree.values.tolist() == [3.0, 1.0, 2.0]
    assert tree.indices[0].dtype == np.int64


def test_duplicates_are_added_in_the_order_in_which_they_come():
    """The sum of floats depends on it, so it is the same on every machine."""
    values = np.array([1e16, 1.0, -1e16, 1.0])
    entries = COO((3,), (np.array([1, 1, 1, 0]),), values)
    assert to_csf(entries).values.tolist() == [1.0, (1e16 + 1.0) - 1e16]


def test_what_is_there_already_is_not_converted():
    """The same object comes back."""
    tree = random_uniform((4, 5), 7, seed=0)
    assert to_csf(tree) is tree
    assert to_csf(tree, (0, 1)) is tree
    assert to_csr(to_csr(tree)).nnz == 7


@pytest.mark.parametrize("convert", [to_csr, to_csc])
def test_only_matrices_have_rows_and_columns(convert):
    """Three axes are refused, with the rule."""
    with pytest.raises(InvalidSparseArrayError) as caught:
        convert(random_uniform((2, 2, 2), 3, seed=0))
    assert caught.value.rule == "rank"


@given(coordinates(orders=(1, 3), dtypes=(np.float64,)))
def test_dense_arrays_come_back(entries):
    """From dense and to dense is the identity."""
    dense = dense_of(entries)
    assert np.array_equal(to_dense(from_dense(dense)), dense)


@given(coordinates(orders=(1, 4)))
def test_node_counts_are_the_profiles_of_all_trees(entries):
    """A level has as many nodes as there are combinations of the axes down to it."""
    counts = node_counts(entries)
    for axes in permutations(range(entries.order)):
        prefixes = [frozenset(axes[: k + 1]) for k in range(entries.order)]
        assert to_csf(entries, axes).profile == tuple(counts[p] for p in prefixes)
    assert counts[frozenset()] == count_nodes(entries, []) == int(entries.nnz > 0)


def test_a_pattern_that_was_changed_is_noticed():
    """Values may change, indices and pointers may not."""
    tree = random_uniform((9, 9, 9), 50, seed=1)
    digest = pattern_digest(tree)
    tree.values[:] = 7.0
    require_pattern(tree, digest)
    tree.indices[2][3] += 1
    with pytest.raises(InvalidSparseArrayError) as caught:
        require_pattern(tree, digest)
    assert caught.value.rule == "pattern-changed"


def test_digests_tell_formats_orders_and_shapes_apart():
    """Equal digests are equal arrays but for values."""
    tree = random_uniform((9, 9), 20, seed=1)
    entries = to_coo(tree)
    wider = COO((9, 10), entries.indices, entries.values)
    kinds = [tree, to_csf(tree, (1, 0)), entries, to_csr(tree), to_csc(tree), wider]
    assert len({*map(pattern_digest, kinds)}) == len(kinds)
    as_int64 = COO(
        entries.shape,
        tuple(i.astype(np.int64) for i in entries.indices),
        entries.values,
    )
    assert pattern_digest(as_int64) == pattern_digest(entries)
