"""Invariants: equal for isomorphic einsums, and none of them is there in vain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import (
    INVARIANTS,
    canonicalize,
    first_difference,
)
from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum
from tests.strategies import counts, einsums, near_pairs, relabelings

NAMES = [invariant.name for invariant in INVARIANTS]

N, M = "N", "M"
A, B = array("A", (4, 4)), array("B", (4, 4))
x, y, z = (array(name, 4) for name in "xyz")
S, T = array("A", (4, 4), "f4"), array("x", 4, "f4")


def chain(subscripts: str, single: int) -> BatchedEinsum:
    """A product of matrices, one of which is of single precision."""
    n = subscripts.count(",") + 1
    dtypes = ["f4" if k == single else "f8" for k in range(n)]
    matrices = [array(f"M{k}", (4, 4), dtype) for k, dtype in enumerate(dtypes)]
    return einsum(subscripts, *matrices)


FIRST = {
    "number of rows": (
        einsum("i->i", x),
        batched_einsum("i->i", [[x], [y]]),
    ),
    "number of operands of a row": (einsum("i->i", x), einsum("i,i->i", x, y)),
    "number of indices": (einsum("ij,j->i", A, x), einsum("ij,k->i", A, x)),
    "rank of the output": (einsum("ij->i", A), einsum("ij->ij", A)),
    "extents of the output": (einsum("i->i", x), einsum("i->i", array("x", 5))),
    "extents of the summation indices": (
        einsum("ij->i", A),
        einsum("ij->i", array("A", (4, N))),
    ),
    "dtypes of the operands": (einsum("i->i", x), einsum("i->i", T)),
    "number of size parameters": (
        einsum("i,j->", array("x", N), array("y", N)),
        einsum("i,j->", array("x", N), array("y", M)),
    ),
    "indices that share a size parameter": (
        einsum("ijk->ijk", array("x", (N, N, M))),
        einsum("ijk->ijk", array("x", (N, M, M))),
    ),
    "ranks of the terms": (einsum("ij,ij->ij", A, B), einsum("ij,j->ij", A, x)),
    "how often a row multiplies the same operand": (
        einsum("i,i->i", x, x),
        einsum("i,i->i", x, y),
    ),
    "number of distinct arrays": (
        einsum("ij,jk->ik", A, A),
        einsum("ij,jk->ik", A, B),
    ),
    "number of rows that an array is in": (
        batched_einsum("i,j->ij", [[x, y], [x, z]]),
        batched_einsum("i,j->ij", [[x, y], [z, z]]),
    ),
    "repeated indices of the terms": (
        einsum("ii,jj->ij", A, B),
        einsum("ij,ij->ij", A, B),
    ),
    "axes that carry an index": (einsum("ij->ij", A), einsum("ij->ji", A)),
    "axes of an array": (einsum("ij,j->i", S, x), einsum("ij,j->i", A, T)),
    "refined colors of the induced graph": (
        chain("ab,bc,cd,de,ef->af", single=1),
        chain("ab,bc,cd,de,ef->af", single=2),
    ),
}
"""For each invariant two einsums of which it is the first to differ."""

RING_OF_SIX = chain("ab,bc,cd,de,ef,fa->", single=-1)
TWO_TRIANGLES = chain("ab,bc,ca,de,ef,fd->", single=-1)


def test_the_pairs_are_those_of_the_invariants() -> None:
    """Every invariant has a pair, in the order of the invariants."""
    assert list(FIRST) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_invariant_is_the_first_to_differ_somewhere(name: str) -> None:
    """No invariant follows from those before it."""
    a, b = FIRST[name]
    difference, mirrored = first_difference(a, b), first_difference(b, a)
    assert difference is not None
    assert mirrored is not None
    assert difference.invariant == mirrored.invariant == name
    assert (difference.a, difference.b) == (mirrored.b, mirrored.a)
    assert difference.a != difference.b


@counts(80, 20_000)
@given(e=einsums(), data=st.data())
def test_isomorphic_einsums_agree(e: BatchedEinsum, data: st.DataObject) -> None:
    """An invariant has one value on all isomorphic einsums."""
    f = data.draw(relabelings(e)).apply(e)
    assert not [x.name for x in INVARIANTS if x.value(e) != x.value(f)]


@counts(80, 20_000)
@given(near_pairs(n_indices=3, n_terms=2, n_rows=2))
def test_small_einsums_of_two_keys_differ_in_an_invariant(
    pair: tuple[BatchedEinsum, BatchedEinsum],
) -> None:
    """The invariants tell small einsums apart; no graph of theirs is regular."""
    if canonicalize(pair[0]).key != canonicalize(pair[1]).key:
        assert first_difference(*pair) is not None


def test_some_einsums_differ_in_no_invariant() -> None:
    """Color refinement cannot see that a ring of six is not two triangles."""
    assert canonicalize(RING_OF_SIX).key != canonicalize(TWO_TRIANGLES).key
    assert first_difference(RING_OF_SIX, TWO_TRIANGLES) is None


def test_a_difference_shows_what_the_other_has_not() -> None:
    """Of {4, 4, N} and {4, 5, 5} only N and the fives are shown."""
    a = einsum("ijk->", array("A", (4, 4, N)))
    b = einsum("ijk->", array("A", (5, 4, 5)))
    difference = first_difference(a, b)
    assert difference is not None
    assert (difference.a, difference.b) == ("{4, N}", "{5 x2}")
    assert str(difference) == (
        "extents of the summation indices: A has {4, N} where B has {5 x2}"
    )


def test_what_is_no_einsum_is_refused() -> None:
    """Text in the place of an einsum is named."""
    with pytest.raises(InvalidEinsumError, match=r"feinsum\.einsum"):
        first_difference(einsum("i->i", x), "i->i")
