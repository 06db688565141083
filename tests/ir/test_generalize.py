"""Long literal extents become size parameters, and nothing else changes."""

from __future__ import annotations

import enum

import numpy as np
import pytest

from feinsum.canonical import canonicalize
from feinsum.errors import InvalidEinsumError
from feinsum.ir import (
    BatchedEinsum,
    Operand,
    SizeParam,
    array,
    einsum,
    from_text,
    generalize,
    to_text,
)


def test_a_new_parameter_has_a_name_of_its_own() -> None:
    """Whatever the parameters of the einsum are called, none is taken for another."""
    x, y, z = array("x", 900), array("y", "n900"), array("z", "n900_")
    general, sizes = generalize(einsum("i,j,k->ijk", x, y, z))
    assert len(general.size_params) == 3
    (new,) = sizes
    assert sizes[new] == 900
    assert new not in {"n900", "n900_"}
    other = einsum("a,b,c->abc", array("x", "N"), array("y", "M"), array("z", "N"))
    assert canonicalize(general).key != canonicalize(other).key


def test_a_tie_to_a_sum_holds_back_only_what_is_tied() -> None:
    """The free index of a square matrix that is summed stays; another one does not."""
    A, v = array("A", (900, 900)), array("v", 1000)
    general, sizes = generalize(einsum("ij,jk,l->il", A, A, v))
    assert dict(sizes) == {"n1000": 1000}
    assert general.extents["i"] == 900
    assert general.extents["l"] == SizeParam("n1000")


def test_a_tie_by_way_of_others_holds_back_too() -> None:
    """Two arrays tie i to k and k to the summed j."""
    A, B = array("A", (900, 5)), array("B", (900, 5))
    e = einsum("ia,ka,kb,jb->ik", A, A, B, B)
    assert generalize(e) == (e, {})


class Size(int, enum.Enum):
    """An integer that writes itself as ``Size.FOUR``."""

    FOUR = 4


class Param(SizeParam):
    """A size parameter of another type."""


def test_extents_are_plain_whatever_they_were() -> None:
    """An extent of a subclass is the number or the parameter that it stands for."""
    odd = einsum("ij->i", array("A", (Size.FOUR, Param("n"))))
    plain = einsum("ij->i", array("A", (4, "n")))
    assert odd == plain
    assert to_text(odd) == to_text(plain)
    assert canonicalize(odd).key == canonicalize(plain).key
    assert from_text(canonicalize(odd).text) == canonicalize(plain).einsum


def test_metadata_of_dtypes_does_not_stay() -> None:
    """Equal operands are equal in all that they carry."""
    dtype = np.dtype("f8", metadata={"unit": "m"})
    assert array("x", 4, dtype).dtype.metadata is None


def test_lists_are_taken_for_tuples() -> None:
    """Parts of an einsum can be given as lists."""
    x = Operand("x", [4], np.dtype("f8"))
    made = BatchedEinsum(["i"], [["i"]], [[x]])
    assert made == einsum("i->i", array("x", 4))
    assert hash(made) == hash(einsum("i->i", array("x", 4)))


def test_an_extent_beyond_all_integers_is_refused() -> None:
    """What no array can have is refused where it is given."""
    assert array("x", 2**63 - 1).shape == (2**63 - 1,)
    with pytest.raises(InvalidEinsumError, match="expected an int from 0 to"):
        array("x", 2**63)
