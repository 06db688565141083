"""Einsums and sizes as they are written on the command line."""

from __future__ import annotations

import numpy as np
import pytest
import typer

from feinsum.cli.shared.notation import read_einsum, read_einsums, read_values
from feinsum.cli.shared.options import EinsumOptions
from feinsum.errors import InvalidEinsumError
from feinsum.ir import SizeParam, array, batched_einsum, einsum, to_text

SIZES = ["x=3,r=3,e=Nel,i=20,j=20"]


def test_the_options_describe_the_einsum_that_the_library_builds():
    """Subscripts, sizes, names and dtype give the same value as the constructors."""
    J = array("J", (3, 3, "Nel"), "float32")
    D = array("D", (3, 20, 20), "float32")
    u = array("u", ("Nel", 20), "float32")
    found = read_einsum("xre,rij,ej->xei", SIZES, operands="J,D,u", dtype="float32")
    assert found == einsum("xre,rij,ej->xei", J, D, u)


def test_rows_give_a_batch():
    """``--rows`` has one row per semicolon; equal names are one array."""
    J, D = array("J", (3, 3, "Nel")), array("D", (3, 20, 20))
    u, v = array("u", ("Nel", 20)), array("v", ("Nel", 20))
    found = read_einsum("xre,rij,ej->xei", SIZES, rows="J,D,u; J,D,v")
    assert found == batched_einsum("xre,rij,ej->xei", [[J, D, u], [J, D, v]])


def test_operands_are_named_in_alphabetical_order_by_default():
    """Without names the operands are A, B, C ..., all distinct."""
    for n in (1, 3, 30):
        found = read_einsum(",".join("i" * n) + "->i", ["i=2"])
        names = [operand.name for operand in found.rows[0]]
        assert names[:3] == ["A", "B", "C"][:n]
        assert len(set(names)) == n


def test_indices_are_letters_or_names_in_braces():
    """Spaces mean nothing, the output may be implicit, sizes may be repeated."""
    for subscripts, sizes, indices in (
        ("{cell}{dof}, {dof} -> {cell}", ["cell=N,dof=4"], ("cell", "dof")),
        ("{cell}×,{cell}->×", ["cell=N,×=4"], ("×", "cell")),
        ("i j, j -> i", ["i=2", "j=3"], ("i", "j")),
        ("ij,j", ["i=2, j=3"], ("i", "j")),
    ):
        assert read_einsum(subscripts, sizes).indices == indices


def test_words_without_braces_are_refused_with_the_way_to_write_them():
    """A size names a word of the text, so it is meant as one index."""
    for subscripts, wanted in (
        ("cell dof, dof -> cell", "{cell}{dof}, {dof} -> {cell}"),
        ("cell,cell->cell", "{cell}, {cell} -> {cell}"),
        ("cell i, i -> cell", "{cell}i, i -> {cell}"),
    ):
        with pytest.raises(typer.BadParameter) as caught:
            read_einsum(subscripts, ["cell=N,dof=4,i=4"])
        assert repr(wanted) in str(caught.value)


def test_a_size_is_a_number_or_a_parameter():
    """A word stands for a size parameter."""
    found = read_einsum("ij,j->i", ["i=Nel,j=4"])
    assert dict(found.extents) == {"i": SizeParam("Nel"), "j": 4}
    assert found.rows[0][0].dtype == np.float64


def test_bad_options_are_refused_by_name():
    """A refusal names the option and what is wrong in it."""
    for options, words in (
        ({"sizes": ["i=3"]}, ["--sizes", "index 'j'"]),
        ({"sizes": None}, ["--sizes", "indices 'i', 'j'"]),
        ({"sizes": ["i=3,j=4,k=5"]}, ["--sizes", "index 'k'"]),
        ({"sizes": ["i=n,j=4,n=5"]}, ["--sizes", "index 'n'", "--size n=..."]),
        ({"sizes": ["i=3,j"]}, ["--sizes", "'j'", "name=value"]),
        ({"sizes": ["i=3,j=4,i=5"]}, ["--sizes", "'i'", "twice"]),
        ({"sizes": ["i=-3,j=4"]}, ["--sizes", "i=-3", "positive integer or a name"]),
        ({"sizes": ["i=3.5,j=4"]}, ["--sizes", "i=3.5", "positive integer or a name"]),
        ({"sizes": ["i=\u0663,j=4"]}, ["--sizes", "positive integer or a name"]),
        ({"sizes": ["i=" + "9" * 5000 + ",j=4"]}, ["--sizes", "positive integer"]),
        ({"sizes": ["i=3,j=4"], "operands": "A"}, ["--operands", "2 terms"]),
        ({"sizes": ["i=3,j=4"], "rows": "A,x;A"}, ["--rows", "2 terms"]),
        ({"sizes": ["i=3,j=4"], "rows": "A,x", "operands": "A,x"}, ["--rows"]),
    ):
        with pytest.raises(typer.BadParameter) as caught:
            read_einsum("ij,j->i", **options)
        message = caught.value.format_message()
        assert all(word in message for word in words), message


def test_what_is_no_einsum_is_left_to_the_checker():
    """The rules of einsums are those of the library."""
    for options in (
        {"subscripts": "ij->k", "sizes": ["i=3,j=4,k=5"]},
        {"subscripts": "i->j->k", "sizes": ["i=3"]},
        {"subscripts": "i", "sizes": ["i=3"], "dtype": "str"},
        {"subscripts": "i,ij", "sizes": ["i=3,j=4"], "operands": "A,A"},
        {"subscripts": "i", "sizes": ["i=3"], "operands": "7"},
    ):
        with pytest.raises(InvalidEinsumError):
            read_einsum(**options)


def test_values_of_size_parameters_are_integers():
    """``--size`` takes integers in digits of ASCII only."""
    assert read_values(["n=3,m=4", "k=5"], "--size") == {"n": 3, "m": 4, "k": 5}
    for text in ("n=many", "n=-1", "n=\u0663", "n=" + "9" * 5000):
        with pytest.raises(typer.BadParameter, match=text):
            read_values([text], "--size")


WHOLE = "i j, j -> i | A[N,4]:<f8 m[4]:|b1 | A m"


def test_a_whole_einsum_needs_no_options():
    """What has a bar is the text form of an einsum; it reads back."""
    assert to_text(read_einsum(WHOLE, None)) == WHOLE
    assert to_text(read_einsum(f"  {WHOLE}\n", [])) == WHOLE


def test_options_that_agree_with_a_whole_einsum_change_nothing():
    """What the text says may be said again."""
    for options in (
        {"sizes": ["i=N,j=4"]},
        {"sizes": ["j=4"], "operands": "A,m"},
        {"sizes": None, "rows": "A,m"},
    ):
        assert to_text(read_einsum(WHOLE, **options)) == WHOLE


def test_options_that_contradict_a_whole_einsum_are_refused():
    """The message names the option, what it says and what the einsum says."""
    for options, words in (
        ({"sizes": ["i=5"]}, ["--sizes", "i=5", "i=N"]),
        ({"sizes": ["k=5"]}, ["--sizes", "'k'"]),
        ({"sizes": None, "operands": "A,x"}, ["--operands", "A,x", "A,m"]),
        ({"sizes": None, "operands": "A"}, ["--operands", "2 terms"]),
        ({"sizes": None, "rows": "A,m;A,m"}, ["--rows", "A,m;A,m", "A,m"]),
        ({"sizes": None, "dtype": "float32"}, ["--dtype", "float32", "A[N,4]:<f8"]),
    ):
        with pytest.raises(typer.BadParameter) as refusal:
            read_einsum(WHOLE, **options)
        assert all(word in refusal.value.format_message() for word in words)


def test_a_text_that_is_no_einsum_is_refused():
    """Whatever has a bar and cannot be read is an invalid einsum."""
    for text in (
        "|",
        "i->i | A",
        "i -> i | A[3]:<f8 | B",
        f"i -> i | A[{'9' * 5000}]:<f8 | A",
    ):
        with pytest.raises(InvalidEinsumError):
            read_einsum(text, None)


def test_several_einsums_come_in_the_order_given():
    """Subscripts and texts may be mixed; the options are for the subscripts."""
    found = read_einsums(
        ["ij->i", WHOLE, "ij->j"], EinsumOptions(["i=2,j=3"], operands="A")
    )
    assert [e.subscripts for e in found] == ["ij->i", "ij,j->i", "ij->j"]
    assert [e.operands[0].name for e in found] == ["A", "A", "A"]
