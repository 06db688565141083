"""Named cases: what the canonical form must, and must not, tell apart."""

from __future__ import annotations

from itertools import pairwise

import pytest

from feinsum.canonical import canonicalize
from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, array, batched_einsum, einsum

N, M = "N", "M"
A, B = (array(name, (N, N)) for name in "AB")
x, y, z = (array(name, 4) for name in "xyz")


def is_one_class(*einsums: BatchedEinsum) -> bool:
    return len({canonicalize(e).key for e in einsums}) == 1


SAME = {
    "names of indices": (
        einsum("ij,j->i", A, array("v", N)),
        einsum("ba,a->b", A, array("v", N)),
    ),
    "names of operands and size parameters": (
        einsum("ij,j->i", A, array("v", N)),
        einsum("ij,j->i", array("Q", ("K", "K")), array("A", "K")),
    ),
    "order of operands": (
        einsum("i,ij->j", x, array("D", (4, 5))),
        einsum("ij,i->j", array("D", (4, 5)), x),
    ),
    "order of rows": (
        batched_einsum("i,i->i", [[x, x], [x, y]]),
        batched_einsum("i,i->i", [[x, y], [x, x]]),
    ),
    "order within one row": (
        batched_einsum("i,i->i", [[x, y], [x, z]]),
        batched_einsum("i,i->i", [[x, y], [z, x]]),
    ),
    "order of operands whose indices differ by their place in the output": (
        einsum("i,j->ij", x, y),
        einsum("j,i->ij", x, y),
    ),
    "which of two arrays is the square": (
        einsum("i,i,i->i", x, x, y),
        einsum("i,i,i->i", x, y, y),
    ),
    "which of two arrays is the square, in a batch": (
        batched_einsum("i,i,i->i", [[x, x, y]] * 2),
        batched_einsum("i,i,i->i", [[x, y, y]] * 2),
    ),
    "which of two arrays is the cube and which the square": (
        batched_einsum("i,i,i,i,i->i", [[x, x, y, y, y]] * 2),
        batched_einsum("i,i,i,i,i->i", [[x, x, x, y, y]] * 2),
    ),
    "which two of three factors are one array": (
        einsum("ij,kl,mn->", A, A, B),
        einsum("ij,kl,mn->", A, B, B),
    ),
    "which two of three indices have one size parameter": (
        einsum("i,j,k->", array("x", N), array("y", N), array("z", M)),
        einsum("i,j,k->", array("x", N), array("y", M), array("z", M)),
    ),
    "upper case": (
        einsum("IJ,J->I", A, array("v", N)),
        einsum("ij,j->i", A, array("v", N)),
    ),
    "letters and words": (
        einsum("ij,j->i", A, array("v", N)),
        einsum("{row}{col}, {col} -> {row}", A, array("v", N)),
    ),
    "operands named like indices and size parameters": (
        einsum("ij,j->i", array("i", (N, N)), array("N", N)),
        einsum("ij,j->i", array("a", (N, N)), array("j", N)),
    ),
}

DIFFERENT = {
    "A[N,N] and A[N,M]": (
        einsum("ij,j->i", A, array("v", N)),
        einsum("ij,j->i", array("A", (N, M)), array("v", M)),
    ),
    "a matrix with itself and with another": (
        einsum("ij,jk->ik", A, A),
        einsum("ij,jk->ik", A, B),
    ),
    "A A and A A^T": (einsum("ij,jk->ik", A, A), einsum("ij,kj->ik", A, A)),
    "A and its transpose": (einsum("ij->ij", A), einsum("ij->ji", A)),
    "byte order": (
        einsum("i->i", array("v", 4, "<f8")),
        einsum("i->i", array("v", 4, ">f8")),
    ),
    "dtype": (
        einsum("i->i", array("v", 4, "f4")),
        einsum("i->i", array("v", 4, "f8")),
    ),
    "extent": (einsum("i->i", x), einsum("i->i", array("x", 5))),
    "a number and a size parameter": (einsum("i->i", x), einsum("i->i", array("x", N))),
    "A*A and A": (einsum("i,i->i", x, x), einsum("i->i", x)),
    "A*A and A*B": (einsum("i,i->i", x, x), einsum("i,i->i", x, y)),
    "A*A*B and A*B*B in a batch with A*A*A": (
        batched_einsum("i,i,i->i", [[x, x, x], [x, x, y]]),
        batched_einsum("i,i,i->i", [[x, x, x], [x, y, y]]),
    ),
    "a row once and twice": (
        batched_einsum("i->i", [[x]]),
        batched_einsum("i->i", [[x], [x]]),
    ),
    "which array rows share": (
        batched_einsum("i,j->ij", [[x, y], [x, z]]),
        batched_einsum("i,j->ij", [[x, z], [y, z]]),
    ),
    "an array shared between rows and none": (
        batched_einsum("i,i->i", [[x, y], [x, z]]),
        batched_einsum("i,i->i", [[x, y], [z, array("w", 4)]]),
    ),
    "a free and a summed index": (einsum("ij->i", A), einsum("ii->i", A)),
    "a scalar factor": (einsum("i->i", x), einsum("i,->i", x, array("s"))),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_does_not_matter(pair: tuple[BatchedEinsum, BatchedEinsum]) -> None:
    """The two einsums are unequal as data and have one key."""
    assert pair[0] != pair[1]
    assert is_one_class(*pair)


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_matters(pair: tuple[BatchedEinsum, BatchedEinsum]) -> None:
    """The two einsums have two keys."""
    assert not is_one_class(*pair)


def test_more_indices_than_letters() -> None:
    """A chain of 40 matrices is canonicalized, whatever its indices are called."""

    def chain(names: list[str]) -> BatchedEinsum:
        terms = ",".join(f"{{{a}}}{{{b}}}" for a, b in pairwise(names))
        operands = [array(f"M{k}", (2, 2)) for k in range(40)]
        return einsum(f"{terms}->{{{names[0]}}}{{{names[-1]}}}", *operands)

    first = chain([f"left{k}" for k in range(41)])
    second = chain([f"right{k}" for k in reversed(range(41))])
    assert canonicalize(first).einsum.indices == tuple(f"i{k}" for k in range(41))
    assert is_one_class(first, second)


def test_no_rows() -> None:
    """A batch of no rows is refused before it is canonicalized."""
    with pytest.raises(InvalidEinsumError, match="no rows"):
        batched_einsum("ij,j->i", [])


@pytest.mark.parametrize("given", ["ij,jk->ik", None, 3])
def test_what_is_no_einsum_is_refused(given):
    """Text or nothing in the place of an einsum is named, with what to do."""
    with pytest.raises(InvalidEinsumError, match=r"feinsum\.einsum"):
        canonicalize(given)
