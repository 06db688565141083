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
from feinsum.canonical import first_difference, induced_graph, reconstruct
from feinsum.errors import InvalidEinsumError
from feinsum.ir import Operand, from_text, generalize, to_text


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


def test_nothing_is_lost_in_the_graph():
    """An einsum that is made of the graph has the same key."""
    e = mttkrp()
    assert key(reconstruct(induced_graph(e))) == key(e)


def test_long_extents_become_parameters_of_a_sparse_operand():
    """Its storage is kept."""
    e = einsum("ij,jk->ik", sparse_array("A", (900, 8)), array("B", (8, 4)))
    general, sizes = generalize(e)
    assert str(general.operands[0]) == "A[n900,8]:csf<f8"
    assert sizes == {"n900": 900}


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
                                       [MATRIX, array("y", 4)]]),
]  # fmt: skip


@pytest.mark.parametrize("make", ILL_FORMED)
def test_what_is_ill_formed_is_refused_by_name(make):
    """With the rule ``storage``."""
    with pytest.raises(InvalidEinsumError) as caught:
        make()
    assert caught.value.rules == ("storage",)


@pytest.mark.parametrize("what", ["generate_loopy", "bound", "autotune"])
def test_what_is_for_dense_operands_refuses_sparse_ones(what, tmp_path):
    """Nothing computes with a sparse operand as if it were dense."""
    e = einsum("ij,j->i", MATRIX, array("x", 4))
    options = {"database": tmp_path / "facts.sqlite"} if what == "autotune" else {}
    with pytest.raises(InvalidEinsumError, match=r"feinsum\.call_einsum") as caught:
        getattr(feinsum, what)(e, **options)
    assert caught.value.rules == ("storage",)
