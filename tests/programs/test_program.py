"""Programs: their rules, their meaning, and their text."""

from __future__ import annotations

import random

import numpy as np
import pytest

from feinsum.errors import ProgramError
from feinsum.ir import array, sparse_array
from feinsum.ir.program import RULES
from feinsum.programs import (
    Program,
    Statement,
    evaluate_program,
    program,
    program_from_text,
)
from tests.programs.random_programs import random_program

X, Y = array("X", (3, 4)), array("Y", (4, 5))


def made(*statements, inputs=(X, Y), outputs=None):
    wanted = outputs or (statements[-1].result,)
    return Program(inputs, statements, wanted)


def copy(result="R", operand="X", output="ij", term="ij", **more):
    return Statement(result, output, (term,), (operand,), **more)


BROKEN = {
    "no-statements": (lambda: Program((X,), (), ("X",)), "no statements"),
    "name": (lambda: made(copy("X")), "2 arrays are named 'X'"),
    "storage": (
        lambda: made(copy(operand="T"), inputs=(sparse_array("T", (3, 4)),)),
        "'T' is sparse",
    ),
    "dataflow": (
        lambda: made(copy("A", "B"), copy("B", "C"), copy("C", "A")),
        "depend on each other: A -> C -> B -> A",
    ),
    "term": (
        lambda: made(copy(term="ijk", output="ij")),
        "edge X -> R: 'X' has 2 axes",
    ),
    "output-index": (lambda: made(copy(output="ik")), "index 'k' of the result"),
    "extent-clash": (
        lambda: made(Statement("R", "i", ("ij", "ij"), ("X", "Y"))),
        "edge Y -> R: index 'i' has extent 4 on axis 0 of 'Y', and 3 in 'X'",
    ),
    "body": (lambda: made(copy(body="x0 + open")), "uses 'open'"),
    "reduction": (
        lambda: made(copy(output="i", reduction="a - b")),
        "'a - b' is not commutative",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_named(rule):
    """With the place; and there is a case for every rule."""
    make, words = BROKEN[rule]
    with pytest.raises(ProgramError, match=f"\\[{rule}\\]") as caught:
        make()
    assert caught.value.rules == (rule,)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (copy(body="x0 +"), "not an expression"),
        (copy(body="x1"), "'x1'; known are x0, i, j"),
        (copy(body="1.0"), "does not use x0"),
        (copy(body="x0 << 1"), "not defined for float64"),
        (copy(output="i", reduction="median"), "'median' is neither one of sum"),
        (copy(output="i", reduction="(a + b) / 2"), "is not associative"),
        (copy(output="ii"), "2 times in the result"),
        (Statement("R", "i", (), ()), "no operands|no expression"),
        (Statement("R", ("pi",), (("pi", "j"),), ("X",)), "means something else"),
    ],
)
def test_a_statement_that_makes_no_sense_is_refused(statement, words):
    with pytest.raises(ProgramError, match=words):
        made(statement)


def test_what_is_read_was_given_or_computed_before():
    with pytest.raises(
        ProgramError, match="'Z', which nothing computes; known: R, X, Y"
    ):
        made(copy(operand="Z"))
    with pytest.raises(ProgramError, match="'B', which a later statement computes"):
        made(copy("A", "B"), copy("B", "X"))
    with pytest.raises(ProgramError, match="output 'Z' is no result"):
        made(copy(), outputs=("Z",))


def numbers(*shape):
    return np.random.default_rng(len(shape)).uniform(-1, 1, shape)


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("sum", np.sum),
        ("prod", np.prod),
        ("max", np.max),
        ("min", np.min),
        ("any", np.any),
        ("all", np.all),
        ("a + b - a*b", lambda t, axis: 1 - np.prod(1 - t, axis=axis)),
    ],
)
def test_a_reduction_is_that_of_numpy(reduction, expected):
    for n in (1, 4, 7):
        values = numbers(3, n, 5)
        p = program()
        p.einsum("ijk->ki", p.input("T", values.shape), reduction=reduction, name="R")
        found = p.run(T=values)["R"]
        right = expected(values, axis=1).T
        assert found.dtype == right.dtype
        np.testing.assert_allclose(found, right, rtol=1e-12)


def test_of_no_values_there_is_a_sum_and_no_largest():
    p = program()
    p.einsum("ij->i", p.input("T", (3, 0)), name="R")
    assert p.run(T=np.zeros((3, 0)))["R"].tolist() == [0, 0, 0]
    q = program()
    q.einsum("ij->i", q.input("T", (3, 0)), reduction="max")
    with pytest.raises(ProgramError, match="max of no values"):
        q.run(T=np.zeros((3, 0)))


def test_a_body_may_use_indices_and_operands_in_any_order():
    """Diagonals, transposed operands and scalars included."""
    A, b, s = numbers(4, 4), numbers(4), np.array(2.5)
    p = program()
    operands = (
        p.input("A", (4, 4)),
        p.input("A", (4, 4)),
        p.input("b", 4),
        p.input("s", ()),
    )
    body = "x0*s - x1 + x2*i if i >= j else x3"
    with pytest.raises(ProgramError, match="uses 's'"):
        p.einsum("ij,jj,i,->ji", *operands, body=body)
    p.einsum("ij,jj,i,->ji", *operands, body=body.replace("*s", "*x3"), name="R")
    i, j = np.indices((4, 4))
    right = np.where(i >= j, A * s - np.diag(A) + b[:, None] * i, s).T
    np.testing.assert_allclose(p.run(A=A, b=b, s=s)["R"], right, rtol=1e-14)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "input X.* is missing"),
        ({"X": np.zeros((3, 5))}, r"shape \(3, 5\), expected X\[N,4\]"),
        ({"X": np.zeros(3)}, r"shape \(3,\)"),
        ({"X": np.zeros((3, 4), "f4")}, "dtype float32"),
        ({"X": np.zeros((3, 4)), "Q": 1}, "no input 'Q'; it has X"),
    ],
)
def test_arrays_of_another_kind_are_refused(given, words):
    p = program()
    p.map("exp(x0)", array("X", ("N", 4)))
    with pytest.raises(ProgramError, match=words):
        p.run(**given)


def test_run_time_sizes_agree_among_inputs():
    p = program()
    p.einsum("i,i->", array("x", "n"), array("y", "n"), name="r")
    assert p.run(x=np.ones(3), y=np.ones(3))["r"] == 3
    with pytest.raises(ProgramError, match=r"'y' has shape \(4,\)"):
        p.run(x=np.ones(3), y=np.ones(4))


def test_tensors_of_another_program_and_arrays_of_numbers_are_refused():
    p, q = program(), program()
    other = q.map("exp(x0)", X)
    with pytest.raises(ProgramError, match="another program"):
        p.map("exp(x0)", other)
    with pytest.raises(
        ProgramError, match=r"got ndarray; pass numeric arrays .* run\(\)"
    ):
        p.map("exp(x0)", np.zeros(3))
    with pytest.raises(ProgramError, match="two arrays are named 'X'"):
        p.einsum("ij,ij->", X, array("X", (3, 3)))
    with pytest.raises(ProgramError, match="an array 'X' already exists"):
        p.map("exp(x0)", X, name="X")
    with pytest.raises(ProgramError, match="'X' is an input"):
        p.output(p.input("X", (3, 4)))
    with pytest.raises(ProgramError, match="no axis 2"):
        p.reduce("max", X, axis=2)
    with pytest.raises(ProgramError, match="has no axis 't'"):
        p.softmax(X, "t")


def test_a_program_is_what_its_text_says():
    for seed in range(20):
        given = random_program(random.Random(seed), 1 + seed % 6)
        assert program_from_text(str(given)) == given


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("X[3]", "line 1 of the program is 'X\\[3\\]'; expected an array"),
        ("X[3]:<q9", "line 1"),
        ("X[3]:<f8\nR[i] = sum x0 : X[i]\n-> S", "output 'S' is no result"),
        ("\n" * (1 << 20) + " ", "at most 1048576 are read"),
    ],
)
def test_a_text_that_is_no_program_is_refused(text, words):
    with pytest.raises(ProgramError, match=words):
        program_from_text(text)


def test_results_have_the_dtypes_that_numpy_gives_them():
    """Bodies in single precision stay so; comparisons are truth values."""
    p = program()
    x = p.input("x", 3, np.float32)
    p.map("0.5*x0 + 1", x, name="half")
    p.map("x0 > 0", x, name="is_positive")
    p.map("x0 * x0", p.input("n", 3, np.int32), name="squares")
    given = {"x": np.ones(3, np.float32), "n": np.ones(3, np.int32)}
    found = evaluate_program(p.build(), given)
    kinds = {name: str(result.dtype) for name, result in found.items()}
    assert kinds == {"half": "float32", "is_positive": "bool", "squares": "int32"}
