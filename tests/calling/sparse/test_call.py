"""Calls with a sparse operand give what numpy gives for the dense array."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from feinsum import call_einsum
from feinsum.calling import clear_call_cache, prepare_call
from feinsum.calling.kernel_cache import Calls
from feinsum.calling.sparse.trees import get_matrix_tree
from feinsum.errors import (
    DeviceUnavailableError,
    InvalidEinsumError,
    MeasurementError,
    RecordNotFoundError,
)
from feinsum.memory import get_remembered
from feinsum.records import InMemoryStore
from feinsum.result_memory import IDLE_VARIABLE
from feinsum.sparse import (
    COO,
    CSF,
    random_profile,
    random_uniform,
    to_coo,
    to_csc,
    to_csf,
    to_csr,
    to_dense,
    to_pydata,
    to_scipy,
)

pytestmark = pytest.mark.usefixtures("fresh_calls")


EXTENTS = {"i": 9, "j": 7, "k": 8, "a": 5, "r": 4, "s": 6}
EINSUMS = [
    "ij,j->i", "ij,jr", "ijk,jr,ks->irs", "ijk,ir,jr,kr->ijk", "ij,ir,jr->ji",
    "ijk->", "ij->ij", "ijk,->kji", "ijk,sja,ska->sia",
]  # fmt: skip


def operands_of(subscripts, density=0.3):
    terms = subscripts.split("->")[0].split(",")
    rng = np.random.default_rng(1)
    shapes = [tuple(EXTENTS[i] for i in term) for term in terms]
    nnz = int(density * np.prod(shapes[0]))
    tree = random_uniform(shapes[0], nnz, seed=2)
    return [tree, *(rng.random(shape) for shape in shapes[1:])]


def assert_as_numpy(subscripts, *operands):
    found = call_einsum(subscripts, *operands)
    dense = [to_dense(o) if isinstance(o, CSF) else o for o in operands]
    wanted = np.einsum(subscripts, *dense)
    if isinstance(found, CSF):
        assert found.nnz == operands[0].nnz
        found = to_dense(found)
    assert type(found) is np.ndarray
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    assert np.allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("subscripts", EINSUMS)
def test_a_call_gives_what_numpy_gives(subscripts):
    """Dense results, and results with the pattern of the operand."""
    assert_as_numpy(subscripts, *operands_of(subscripts))


def test_a_result_with_the_indices_of_the_operand_has_its_pattern():
    """In whatever order the output has them."""
    found = call_einsum("ij,ir,jr->ji", *operands_of("ij,ir,jr->ji"))
    assert isinstance(found, CSF)
    assert (found.shape, found.axes) == ((7, 9), (1, 0))


def test_the_sparse_operand_may_stand_anywhere_and_have_any_levels():
    """Its levels are those of the tree that is given."""
    tree, b, c = operands_of("ijk,ja,ka->ia")
    turned = to_csf(tree, (2, 0, 1))
    found = call_einsum("ja,ijk,ka->ia", b, turned, c)
    assert np.allclose(found, np.einsum("ja,ijk,ka->ia", b, to_dense(tree), c))


@pytest.mark.parametrize("n", [1, 3, 4, 9, 17])
def test_dense_extents_may_be_ragged(n):
    """By one less than four or eight lanes, as many, one more, and several vectors."""
    rng = np.random.default_rng(n)
    assert_as_numpy("ij,jr->ir", random_uniform((9, 7), 20, seed=2), rng.random((7, n)))


@pytest.mark.parametrize("nnz", [0, 1, 504])
def test_patterns_may_be_ragged(nnz):
    """No entry, one, and all of them; by one kernel."""
    tree = random_uniform((9, 7, 8), nnz, seed=0)
    _, b, c = operands_of("ijk,ja,ka->ia")
    assert_as_numpy("ijk,ja,ka->ia", tree, b, c)
    assert_as_numpy("ijk,ia,ja,ka->ijk", tree, np.ones((9, 5)), b, c)


def test_every_format_gives_the_same():
    """Ours, and those of other packages."""
    tree, x = operands_of("ij,j->i")
    wanted = to_dense(tree) @ x
    twice = to_coo(tree)
    doubled = COO(
        twice.shape,
        tuple(np.concatenate([i, i]) for i in twice.indices),
        np.concatenate([twice.values, twice.values]) / 2,
    )
    for operand in (to_coo(tree), to_csr(tree), to_csc(tree), doubled):
        assert np.allclose(call_einsum("ij,j->i", operand, x), wanted, rtol=1e-12)
    pytest.importorskip("scipy.sparse")
    for name in ("coo", "csr", "csc", "lil", "dok"):
        operand = to_scipy(to_csr(tree)).asformat(name)
        assert np.allclose(call_einsum("ij,j->i", operand, x), wanted)


def test_arrays_of_pydata_are_taken():
    """Of order 3."""
    pytest.importorskip("sparse")
    tree, b, c = operands_of("ijk,ja,ka->ia")
    found = call_einsum("ijk,ja,ka->ia", to_pydata(tree), b, c)
    assert np.allclose(found, np.einsum("ijk,ja,ka->ia", to_dense(tree), b, c))


@pytest.mark.parametrize(
    ("kind", "name"), [("ours", "csr"), ("scipy", "csr"), ("scipy", "csc")]
)
def test_the_tree_of_a_matrix_is_made_once(kind, name):
    """New values in its arrays count, and what is kept goes with the matrix."""
    tree, x = operands_of("ij,j->i")
    matrix = to_csr(tree) if name == "csr" else to_csc(tree)
    values, wanted = matrix.values, to_dense(tree) @ x
    if kind == "scipy":
        pytest.importorskip("scipy.sparse")
        matrix = to_scipy(matrix)
        values = matrix.data
    call_einsum("ij,j->i", to_csf(tree), x)  # what it logs refers to its operands
    for factor in (1, 3):
        found = call_einsum("ij,j->i", matrix, x)
        assert np.allclose(found, factor * wanted, rtol=1e-12)
        kept = get_matrix_tree(matrix)
        assert kept in get_remembered(Calls).trees
        assert kept.values is values
        values *= 3
    kept = weakref.ref(kept)
    del matrix
    gc.collect()
    assert kept() is None
    assert not get_remembered(Calls).matrices


def test_a_matrix_of_scipy_that_got_an_entry_is_read_anew():
    """As one whose entries are out of order, or twice there, is at each call."""
    sparse = pytest.importorskip("scipy.sparse")
    x = np.arange(1.0, 4.0)
    matrix = sparse.csr_array(np.array([[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]))
    assert call_einsum("ij,j->i", matrix, x).tolist() == [7.0, 6.0]
    with pytest.warns(sparse.SparseEfficiencyWarning):
        matrix[1, 0] = 5.0
    assert call_einsum("ij,j->i", matrix, x).tolist() == [7.0, 11.0]
    twice = sparse.csr_array(([1.0, 2.0, 3.0], [2, 0, 2], [0, 3, 3]), shape=(2, 3))
    assert call_einsum("ij,j->i", twice, x).tolist() == [14.0, 0.0]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_the_tree_of_coordinates_is_made_once(is_sorted):
    """New values in their places count, and what is kept goes with the coordinates."""
    tree, B, C = operands_of("ijk,ja,ka->ia")
    entries = to_coo(tree)
    if not is_sorted:
        order = np.random.default_rng(0).permutation(entries.nnz)
        indices = tuple(column[order] for column in entries.indices)
        entries = COO(entries.shape, indices, entries.values[order])
    call_einsum("ijk,ja,ka->ia", tree, B, C)  # what it logs refers to its operands
    seen = set()
    for _ in range(3):
        found = call_einsum("ijk,ja,ka->ia", entries, B, C)
        dense = to_dense(entries)
        assert np.allclose(found, np.einsum("ijk,ja,ka->ia", dense, B, C), rtol=1e-12)
        seen |= {*map(id, get_remembered(Calls).trees)} - {id(tree)}
        entries.values[:] *= 3
    assert len(seen) == 1
    known = get_remembered(Calls).coordinates
    assert len(known) == 1
    del entries
    gc.collect()
    assert not known


def test_trees_of_coordinates_are_kept_within_the_memory(monkeypatch):
    """And not where duplicates are added up."""
    tree, x = operands_of("ij,j->i")
    entries = to_coo(tree)
    twice = tuple(np.repeat(column, 2) for column in entries.indices)
    double = COO(entries.shape, twice, np.repeat(entries.values, 2))
    assert np.allclose(call_einsum("ij,j->i", double, x), 2 * (to_dense(tree) @ x))
    monkeypatch.setenv(IDLE_VARIABLE, "9")
    assert np.allclose(call_einsum("ij,j->i", entries, x), to_dense(tree) @ x)
    gc.collect()
    assert not get_remembered(Calls).trees


@pytest.mark.parametrize("dtype", ["f4", "c16"])
def test_the_result_has_numpys_dtype(dtype):
    """Of all operands together."""
    tree = random_uniform((9, 7), 20, seed=0, dtype=dtype)
    x = np.ones(7, dtype)
    found = call_einsum("ij,j->i", tree, x)
    assert found.dtype == dtype
    assert np.allclose(found, to_dense(tree) @ x, rtol=1e-5)


def test_a_second_pattern_needs_no_second_kernel():
    """A kernel is for trees of all sizes, if the nest is the same."""
    rng = np.random.default_rng(0)
    for profile in ((20, 60, 200), (21, 61, 210)):
        tree = random_profile((30, 20, 10), profile, seed=0)
        assert_as_numpy("ijk,ja,ka->ia", tree, rng.random((20, 4)), rng.random((10, 4)))
    assert len(get_remembered(Calls).sparse) == 2 + 1  # nests, and their kernel


@pytest.mark.parametrize("subscripts", ["ij,jr", "ijk->ik"])
def test_out_is_the_memory_that_the_kernel_writes(subscripts):
    """Unless it is read as well, or lies in another order."""
    operands = operands_of(subscripts)
    wanted = call_einsum(subscripts, *operands)
    for out in (np.full(wanted.shape, np.nan), np.full(wanted.T.shape, np.nan).T):
        assert call_einsum(subscripts, *operands, out=out) is out
        assert np.allclose(out, wanted, rtol=1e-12)
    square = random_uniform((7, 7), 20, seed=0)
    x = np.arange(7.0)
    wanted = to_dense(square) @ x
    assert call_einsum("ij,j->i", square, x, out=x) is x
    assert np.allclose(x, wanted, rtol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_count_where_they_meet_entries(value):
    """And not in rows without these, where a nest walks the tree to its entries."""
    tree = to_csf(COO((3, 4), ([0, 2], [1, 3]), [1.0, 2.0]))
    B = np.ones((4, 5))
    B[[2, 3], 0] = value
    found = call_einsum("ij,jk->ik", tree, B)
    assert found[0].tolist() == [1.0] * 5
    assert found[1].tolist() == [0.0] * 5
    assert not np.isfinite(found[2, 0])
    assert found[2, 1:].tolist() == [2.0] * 4


def test_results_are_right_in_memory_that_was_used_before():
    """Rows without entries are zero."""
    tree = random_profile((3000, 20), (100, 200), seed=0)
    B = np.random.default_rng(0).random((20, 64))
    for _ in range(3):
        found = call_einsum("ij,jk->ik", tree, B)
        assert np.allclose(found, to_dense(tree) @ B, rtol=1e-12)
        found[...] = np.nan
        del found


REFUSED = [
    (("operand",), "ij,jk->ik", lambda t, x: (t, random_uniform((7, 3), 5, seed=0))),
    (("dtype",), "ij,j->i", lambda t, x: (random_uniform((9, 7), 5, seed=0, dtype="i8"),
                                          x.astype(int))),
    (("operand",), "ij,j->i", lambda t, x: (t, [[1.0], [1.0, 2.0]])),
    (("shape",), "ij,j->i", lambda t, x: (t, x[:-1])),
    (("shape",), "ij,j->i", lambda t, x: (t, x[:1])),
    (("network",), "ii,i->i", lambda t, x: (random_uniform((7, 7), 5, seed=0), x)),
    (("network",), "ij,j,j,j,j,j,j,j,j->i", lambda t, x: (t, *[x] * 8)),
    (("network",), "ij,j->z", lambda t, x: (t, x)),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "subscripts", "make"), REFUSED)
def test_what_is_not_computed_is_refused_by_name(rules, subscripts, make):
    """By the rule that is broken."""
    tree, x = operands_of("ij,j->i")
    with pytest.raises(InvalidEinsumError) as caught:
        call_einsum(subscripts, *make(tree, x))
    assert caught.value.rules == rules


def test_a_result_that_does_not_fit_the_memory_is_refused():
    """Before anything is computed, and also where there is no entry."""
    for nnz in (5, 0):
        tree = random_uniform((2_000_000, 9), nnz, seed=0)
        with pytest.raises(MeasurementError, match="does not fit into memory"):
            call_einsum("ij,k->ik", tree, np.ones(1_000_000))


@pytest.mark.parametrize(
    "out", [np.zeros(8), np.zeros(9, "f4"), [0.0] * 9], ids=["shape", "dtype", "type"]
)
def test_an_out_that_does_not_fit_is_refused(out):
    """With the rule ``shape``."""
    tree, x = operands_of("ij,j->i")
    with pytest.raises(InvalidEinsumError) as caught:
        call_einsum("ij,j->i", tree, x, out=out)
    assert caught.value.rules == ("shape",)


def test_a_sparse_result_has_no_place_in_an_array():
    """``out`` is refused for it."""
    tree, u, v = operands_of("ij,ir,jr->ij")
    with pytest.raises(InvalidEinsumError, match="CSF") as caught:
        call_einsum("ij,ir,jr->ij", tree, u, v, out=np.zeros((9, 7)))
    assert caught.value.rules == ("shape",)


def test_other_devices_and_facts_are_refused():
    """There is no kernel elsewhere; and nothing is on record here."""
    tree, x = operands_of("ij,j->i")
    with pytest.raises(DeviceUnavailableError, match="host"):
        call_einsum("ij,j->i", tree, x, device="some GPU")
    with pytest.raises(RecordNotFoundError, match="no fact"):
        call_einsum("ij,j->i", tree, x, database=InMemoryStore(), on_miss="raise")
    with pytest.raises(InvalidEinsumError, match="is sparse") as caught:
        prepare_call("ij,j->i", tree, x)
    assert caught.value.rules == ("operand",)


@pytest.mark.parametrize("subscripts", ["ijk,ja,ka->ia", "ijk,ir,jr,kr->ijk"])
def test_a_repeated_call_reads_what_is_there_now(subscripts):
    """New dense operands, and values of the tree that changed in their place."""
    coo, *dense = operands_of(subscripts)
    tree = to_csf(coo)
    assert_as_numpy(subscripts, tree, *dense)
    assert len(get_remembered(Calls).trees) == 1
    tree.values[:] *= 3
    assert_as_numpy(subscripts, tree, *(array + 1 for array in dense))
    other = to_csf(random_uniform(tree.shape, tree.nnz, seed=9))
    assert_as_numpy(subscripts, other, *dense)


@pytest.mark.parametrize("rank", [8, 5])
def test_a_repeated_call_reads_operands_of_any_strides(rank):
    """Operands that the kernel reads in place, and others of the same shape."""
    coo = random_uniform((6, 7, 8), 40, seed=1)
    tree, dense = to_csf(coo), np.random.default_rng(2).random((2, 9, rank))
    B, C = dense[0, :7], dense[1, :8]
    for first in (B, np.asfortranarray(B), B[::-1]):
        assert_as_numpy("ijk,ja,ka->ia", tree, first, C)
    assert len(get_remembered(Calls).trees) == 1


def test_operands_that_are_not_aligned_are_copied():
    """Kernels count on it, as those of dense calls do."""
    tree, x = operands_of("ij,j->i")
    tree = to_csf(tree)
    odd = np.frombuffer(bytearray(x.nbytes + 1), x.dtype, x.size, offset=1)
    odd[:] = x
    for operand in (x, odd):
        assert_as_numpy("ij,j->i", tree, operand)
    ((ready,),) = (known.values() for known in get_remembered(Calls).trees.values())
    assert not odd.flags.aligned
    assert all(array.flags.aligned for array in ready._prepare_dense([tree, odd]))


def test_a_tree_that_is_converted_is_read_anew():
    """Values of another precision are copied, so that no copy may be kept."""
    coo, B, C = operands_of("ijk,ja,ka->ia")
    wide = to_csf(coo)
    values = wide.values.astype("f4")
    tree = CSF(wide.shape, wide.axes, wide.indices, wide.pointers, values)
    assert_as_numpy("ijk,ja,ka->ia", tree, B, C)
    tree.values[:] *= 3
    assert_as_numpy("ijk,ja,ka->ia", tree, B, C)
    assert not get_remembered(Calls).trees


def test_what_is_kept_of_a_tree_goes_with_it():
    given, x = operands_of("ij,j->i")
    tree = to_csf(given)
    assert_as_numpy("ij,j->i", tree, x)
    assert len(get_remembered(Calls).trees) == 1
    del given, tree
    gc.collect()
    assert not get_remembered(Calls).trees


def test_a_store_lives_as_long_as_what_was_looked_up_in_it():
    """Otherwise the next one could have its id, and so its recipes."""
    tree, x = operands_of("ij,j->i")
    store = InMemoryStore()
    there = weakref.ref(store)
    call_einsum("ij,j->i", to_csf(tree), x, database=store)
    del store
    gc.collect()
    assert there() is not None
    clear_call_cache()
    gc.collect()
    assert there() is None
