"""Operands that are stored as trees: their text, their rules, their keys."""

from __future__ import annotations

import numpy as np
import pytest

import feinsum
from feinsum import (
    array,
    batched_einsum,
    canonicalize,
    einsum,
    evaluate,
    sparse_array,
)
from feinsum.canonical import first_difference
from feinsum.errors import InvalidEinsumError
from feinsum.ir import (
    Operand,
    check_profile,
    from_text,
    generalize,
    get_nodes,
    list_profile_names,
    to_text,
)

MATRIX8 = sparse_array("A", (8, 8))


def mttkrp(subscripts="ijk,ja,ka->ia", stored=sparse_array, names="TBC"):
    t, b, c = names
    T = stored(t, ("I", "J", "K"))
    return einsum(subscripts, T, array(b, ("J", 8)), array(c, ("K", 8)))


def key(e):
    return canonicalize(e).key


def test_the_text_of_a_sparse_operand_comes_back():
    """With its storage, ahead of the dtype."""
    sddmm = einsum(
        "ij,ir,jr->ij",
        sparse_array("S", (9, "J"), "float32", gives_pattern=True),
        array("U", (9, 4), "float32"),
        array("V", ("J", 4), "float32"),
    )
    assert "S[9,J]:csf=<f4" in to_text(sddmm)
    assert "T[I,J,K]:csf<f8" in to_text(mttkrp())
    for e in (mttkrp(), sddmm):
        assert from_text(to_text(e)) == e
        assert from_text(canonicalize(e).text) == canonicalize(e).einsum


def test_names_and_the_order_of_operands_are_not_in_the_key():
    """As for dense ones."""
    T, B, C = sparse_array("T", (3, 4, 5)), array("B", (4, 8)), array("C", (5, 8))
    one = einsum("ijk,ja,ka->ia", T, B, C)
    other = einsum("zx,pyz,yx->px", C, T, B)
    assert key(one) == key(other)
    for dense in (array("D", (8, 8)), array("A0", (8, 8))):  # alike but for storage
        one = einsum("ij,ij->i", dense, MATRIX8)
        assert key(one) == key(einsum("ij,ij->i", MATRIX8, dense))


def test_storage_and_the_order_of_levels_are_in_the_key():
    """Dense, sparse, sparse with a sparse result, and another order are four."""
    T, B, C = (3, 4, 5), array("B", (4, 8)), array("C", (5, 8))
    dense = einsum("ijk,ja,ka->ia", array("T", T), B, C)
    sparse = einsum("ijk,ja,ka->ia", sparse_array("T", T), B, C)
    turned = einsum("kji,ja,ka->ia", sparse_array("T", T[::-1]), B, C)
    assert len({key(dense), key(sparse), key(turned)}) == 3
    S, U, V = (3, 4), array("U", (3, 8)), array("V", (4, 8))
    kinds = [
        einsum("ij,ir,jr->ij", stored, U, V)
        for stored in (array("S", S), sparse_array("S", S),
                       sparse_array("S", S, gives_pattern=True))
    ]  # fmt: skip
    assert len(set(map(key, kinds))) == 3
    assert "dtypes" in first_difference(dense, sparse).invariant


def test_which_operand_is_sparse_is_in_the_key():
    """Of two of equal shape and dtype."""
    shape = (4, 4)
    first = einsum("ij,jk->ik", sparse_array("A", shape), array("B", shape))
    second = einsum("ij,jk->ik", array("A", shape), sparse_array("B", shape))
    assert key(first) != key(second)


def rows(subscripts, *names):
    """A batch over one matrix, with these dense operands in its rows."""
    _, *terms = subscripts.split("->")[0].split(",")
    return batched_einsum(
        subscripts,
        [[MATRIX8, *(array(x, (8,) * len(t)) for x, t in zip(row, terms, strict=True))]
         for row in names],
    )  # fmt: skip


BATCHES = {
    "vectors": ("ij,j->i", ["x", "y", "z"], ["u", "w", "v"]),
    "a shared operand": ("ij,ia,ja->ij", ["BC", "BD"], ["YZ", "YX"]),
    "a dense operand with the same term": ("ij,ij->i", ["B", "C"], ["D", "E"]),
}


@pytest.mark.parametrize("name", BATCHES)
def test_names_and_the_order_of_rows_are_not_in_the_key_of_a_batch(name):
    """As for dense ones; and its canonical einsum, its text and its graph are it."""
    subscripts, first, second = BATCHES[name]
    e = rows(subscripts, *first)
    form = canonicalize(e)
    assert form.key == key(rows(subscripts, *reversed(second)))
    assert form.key == key(form.einsum)
    assert from_text(form.text) == form.einsum
    assert len({op.name for op in form.einsum.operands if op.storage}) == 1


def test_the_sparse_operand_has_one_position_in_all_rows():
    """Whether dense operands with its term sort before it or after it, by dtype."""
    dense = [array("B", (8, 8), "bool"), array("C", (8, 8))]
    e = batched_einsum("ij,ij->i", [[x, MATRIX8] for x in dense])
    form = canonicalize(e)
    position = form.einsum.sparse_position
    assert {row[position].storage for row in form.einsum.rows} == {"csf"}
    other = batched_einsum("ij,ij->i", [[MATRIX8, x] for x in reversed(dense)])
    assert key(other) == form.key


def test_the_rows_of_a_batch_are_in_the_key():
    """How many they are, and which operands they share."""
    batches = [
        rows("ij,ia,ja->ij", "BC"),
        rows("ij,ia,ja->ij", "BC", "BD"),
        rows("ij,ia,ja->ij", "BC", "DE"),
        rows("ij,ia,ja->ij", "BC", "BD", "BE"),
    ]
    assert len(set(map(key, batches))) == 4


def test_extents_of_a_sparse_operand_become_parameters():
    """One for each index, also where extents are short, equal, or summed over."""
    e = einsum("ij,jk->ik", sparse_array("A", (8, 8)), array("B", (8, 900)))
    general, sizes = generalize(e)
    assert str(general.operands[0]) == "A[n_i,n_j]:csf<f8"
    assert str(general.operands[1]) == "B[n_j,n900]:<f8"
    assert sizes == {"n_i": 8, "n_j": 8, "n900": 900}


def test_indices_of_one_array_share_the_parameter():
    """An array has one shape."""
    B = array("B", (8, 4))
    general, _ = generalize(einsum("ij,ir,jr->r", MATRIX8, B, B))
    assert general.extents["i"] == general.extents["j"]


@pytest.mark.parametrize(
    ("nodes", "is_right"),
    [((1, 1), True), ((8, 64), True), ((8, 7), False), ((9, 9), False), ((1, 9), False),
     ((0, 0), False)],
)  # fmt: skip
def test_a_profile_is_that_of_a_tree(nodes, is_right):
    """Every node has a child, and no more than there are values."""
    e = einsum("ij,j->i", MATRIX8, array("x", 8))
    sizes = dict(zip(list_profile_names(e), nodes, strict=True))
    assert (check_profile(e, sizes) is None) == is_right
    assert get_nodes(e, sizes) == nodes


def test_a_sparse_operand_means_its_dense_array():
    """In the reference evaluator."""
    T = sparse_array("T", (3, 4))
    values = {"T": np.arange(12.0).reshape(3, 4), "x": np.ones(4)}
    (found,) = evaluate(einsum("ij,j->i", T, array("x", 4)), values)
    assert np.array_equal(found, values["T"] @ values["x"])


MATRIX = sparse_array("A", (4, 4))
ILL_FORMED = [
    lambda: Operand("A", (4,), np.dtype("f8"), "coo"),
    lambda: sparse_array("A", ()),
    lambda: einsum("ij,jk->ik", MATRIX, sparse_array("B", (4, 4))),
    lambda: einsum("ij,jk->ik", MATRIX, MATRIX),
    lambda: einsum("ii,i->i", MATRIX, array("x", 4)),
    lambda: einsum("ij,j->i", sparse_array("A", (4, 4), gives_pattern=True),
                   array("x", 4)),
    lambda: batched_einsum("ij,j->i", [[MATRIX, array("x", 4)],
                                       [sparse_array("B", (4, 4)), array("y", 4)]]),
    lambda: batched_einsum("ij,j->i", [[MATRIX, array("x", 4)],
                                       [array("B", (4, 4)), array("y", 4)]]),
    lambda: batched_einsum("ij,ij->i", [[MATRIX, array("B", (4, 4))],
                                        [array("C", (4, 4)), MATRIX]]),
]  # fmt: skip


@pytest.mark.parametrize("make", ILL_FORMED)
def test_what_is_ill_formed_is_refused_by_name(make):
    """With the rule ``storage``."""
    with pytest.raises(InvalidEinsumError) as caught:
        make()
    assert caught.value.rules == ("storage",)


@pytest.mark.parametrize("what", ["generate_loopy", "bound"])
def test_what_is_for_dense_operands_refuses_sparse_ones(what):
    """Nothing computes with a sparse operand as if it were dense."""
    e = einsum("ij,j->i", MATRIX, array("x", 4))
    with pytest.raises(InvalidEinsumError, match=r"feinsum\.call_einsum") as caught:
        getattr(feinsum, what)(e)
    assert caught.value.rules == ("storage",)
