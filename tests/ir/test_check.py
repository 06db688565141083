"""The rules of well-formed einsums: each refuses what it is for, by its code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from feinsum.errors import InvalidEinsumError
from feinsum.ir import (
    RULES,
    BatchedEinsum,
    Operand,
    SizeParam,
    array,
    batched_einsum,
    einsum,
    sparse_array,
    violations,
)
from tests.strategies import einsums

A, x = array("A", (3, 4)), array("x", 4)
MATVEC = (("i", "j"), ("j",))

BROKEN: dict[str, tuple[tuple[Any, Any, Any], str]] = {
    "no-rows": ((("i",), MATVEC, ()), "the batch has no rows"),
    "no-operands": (((), (), ((),)), "the einsum has no operands"),
    "index-name": (
        (("i k",), (("i k", "j"), ("j",)), ((A, x),)),
        "index 'i k' is not a name such as 'i' or 'dof', without spaces",
    ),
    "row-length": (
        (("i",), MATVEC, ((A, x), (A,))),
        "row 1 has 1 operand, the subscripts have 2 terms",
    ),
    "rank": (
        (("i",), (("i", "j"), ("j", "k")), ((A, x),)),
        "operand 'x' (row 0, position 1) has 1 axis, its term 'j k' has 2 indices",
    ),
    "extent-clash": (
        (("i",), (("j", "i"), ("j",)), ((A, x),)),
        "index 'j' has extent 3 on axis 0 of 'A' and extent 4 on axis 0 of 'x'",
    ),
    "unbound-output-index": (
        (("i", "k"), MATVEC, ((A, x),)),
        "output index 'k' occurs in no term, they have ['i', 'j']",
    ),
    "repeated-output-index": (
        (("i", "i"), MATVEC, ((A, x),)),
        "output index 'i' is repeated 2 times",
    ),
    "name-clash": (
        (("i",), MATVEC, ((A, x), (A, array("x", 4, "f4")))),
        "two arrays are named 'x': x[4]:<f8 and x[4]:<f4",
    ),
    "storage": (
        (("i",), MATVEC, ((sparse_array("A", (3, 4)), sparse_array("x", 4)),)),
        "operands ['A', 'x'] are sparse; at most one may be",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule(rule: str) -> None:
    """An einsum that breaks one rule is refused by it, alone and with a message."""
    fields, message = BROKEN[rule]
    with pytest.raises(InvalidEinsumError) as caught:
        BatchedEinsum(*fields)
    assert caught.value.rules == (rule,)
    assert f"[{rule}] {message}" in str(caught.value)


def test_every_broken_rule_is_named() -> None:
    """One error names all the rules that an einsum breaks, in their order."""
    with pytest.raises(InvalidEinsumError) as caught:
        BatchedEinsum(("k", "k"), (("i", "j", "3 4"), ("j",)), ((A, x), (x,)))
    assert caught.value.rules == (
        "index-name",
        "row-length",
        "rank",
        "extent-clash",
        "unbound-output-index",
        "repeated-output-index",
    )
    for rule in caught.value.rules:
        assert f"[{rule}]" in str(caught.value)


def test_rule_holds_in_every_row() -> None:
    """A later row is checked like the first: same ranks, same extents."""
    with pytest.raises(InvalidEinsumError, match=r"'y' \(row 1, position 1\)"):
        batched_einsum("ij,j->i", [[A, x], [A, array("y", (4, 4))]])
    with pytest.raises(InvalidEinsumError, match="extent 5 on axis 0 of 'y'"):
        batched_einsum("ij,j->i", [[A, x], [A, array("y", 5)]])


@pytest.mark.parametrize("first", [4, "N", "M"])
@pytest.mark.parametrize("second", [4, "N", "M"])
def test_extents_are_equal_only_if_they_look_so(
    first: int | str, second: int | str
) -> None:
    """A size parameter is equal to itself only: never to a number or another."""
    operands = array("x", first), array("y", second)
    if first == second:
        assert einsum("i,i->", *operands).extents == {"i": operands[0].shape[0]}
    else:
        with pytest.raises(InvalidEinsumError, match="extent"):
            einsum("i,i->", *operands)


@given(einsums())
def test_a_constructed_einsum_is_well_formed(e: BatchedEinsum) -> None:
    """What the constructor accepts breaks no rule."""
    assert violations(e) == ()


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "rule"),
    [
        ("2x", 3, "f8", "operand-name"),
        ("", 3, "f8", "operand-name"),
        ("a b", 3, "f8", "operand-name"),
        (None, 3, "f8", "operand-name"),
        ("x", -1, "f8", "extent"),
        ("x", 2.0, "f8", "extent"),
        ("x", True, "f8", "extent"),
        ("x", (3, None), "f8", "extent"),
        ("x", "2N", "f8", "size-param-name"),
        ("x", SizeParam(3), "f8", "size-param-name"),
        ("x", 3, "U4", "dtype"),
        ("x", 3, object, "dtype"),
        ("x", 3, "M8[s]", "dtype"),
        ("x", 3, "no such", "dtype"),
        ("x", 3, "f8,@@", "dtype"),
    ],
)
def test_arrays(name: Any, shape: Any, dtype: Any, rule: str) -> None:
    """A bad name, extent or dtype of an array is refused by a rule of its own."""
    with pytest.raises(InvalidEinsumError) as caught:
        einsum("i->i", array(name, shape, dtype))
    assert caught.value.rules == (rule,)


@pytest.mark.parametrize("operand", ["x", np.ones(3), None])
def test_operands_are_made_by_array(operand: object) -> None:
    """Data or a name in place of an operand is refused, saying what to call."""
    with pytest.raises(InvalidEinsumError, match=r"feinsum\.array") as caught:
        einsum("i->i", operand)
    assert caught.value.rules == ("operand",)


def test_extents_of_numpy_are_plain_integers() -> None:
    """An extent that numpy computed is the same as a literal one."""
    operand = array("x", (np.int64(3), np.uint8(4)))
    assert operand == Operand("x", (3, 4), np.dtype("f8"))
    assert [type(extent) for extent in operand.shape] == [int, int]
