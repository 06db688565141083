"""Numpy statements: reshapes, slices and others that numpy computes as a whole."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.papers.decompose import decompose
from feinsum.distributed import plan_program
from feinsum.errors import ProgramError
from feinsum.ir import array
from feinsum.ir.numpy_calls import (
    FUNCTIONS,
    evaluate_numpy,
    infer_numpy_dtype,
    infer_numpy_shape,
    write_constant,
)
from feinsum.programs import (
    Program,
    Statement,
    evaluate_program,
    program,
    program_from_text,
    program_key,
    run_program,
)
from tests.programs.random_programs import disguised, numbers

A = np.random.default_rng(0).uniform(-1, 1, (3, 4))
PLACES = np.array([[2, 0], [1, -1]])
CASES = {
    "argmax": ("argmax(x0, 1)", A),
    "argmin": ("argmin(x0, -2)", A),
    "argsort": ("argsort(x0, 0, 'stable')", A),
    "broadcast_to": ("broadcast_to(x0, (2, 3, 4))", A),
    "concatenate": ("concatenate(x0, x1, x2, 1)", A, A[:, :0], A.astype("c8")),
    "constant": (write_constant(A.astype("c8")),),
    "cumprod": ("cumprod(x0, 1)", A.astype("f4")),
    "cumsum": ("cumsum(x0, 0)", A.astype("f2")),
    "pad": ("pad(x0, ((1, 0), (0, 2)), -1.5)", A),
    "repeat": ("repeat(x0, 3, 1)", A),
    "reshape": ("reshape(x0, (2, -1, 3))", A),
    "roll": ("roll(x0, -1, 1)", A),
    "sort": ("sort(x0, 0)", A),
    "take_along_axis": ("take_along_axis(x0, x1, 1)", A, np.array([[0], [3], [-1]])),
    "transpose": ("transpose(x0, (1, 0))", A),
    "tril": ("tril(x0, -1)", A),
    "triu": ("triu(x0, 1)", A),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_shapes_and_dtypes_are_those_of_the_values(name):
    body, *arrays = CASES[name]
    value = evaluate_numpy(body, arrays)
    assert infer_numpy_shape(body, [x.shape for x in arrays]) == value.shape
    assert infer_numpy_dtype(body, [x.dtype for x in arrays]) == value.dtype


def random_subscript(source: random.Random):
    """A body with a subscript, and its arrays."""
    shape = [source.choice([3, 4]) for _ in range(source.randint(1, 4))]
    parts, arrays, rank = [], [np.zeros(shape)], 0
    places = [np.array(1), np.array([0, -1]), PLACES]
    while rank < len(shape):
        kind = source.choice(["slice", "slice", "int", "None", "...", "array", "end"])
        if kind == "end":
            break
        if kind == "slice":
            parts.append(source.choice([":", "1:", "::-2", "-2:9", "2:1", ":-1:2"]))
        elif kind == "int":
            parts.append(source.choice(["0", "-1", "2"]))
        elif kind == "array":
            arrays.append(source.choice(places))
            parts.append(f"x{len(arrays) - 1}")
        elif kind == "None" or "..." not in parts:
            parts.append(kind)
        rank += kind in ("slice", "int", "array")
    return f"x0[{', '.join(parts) or '...'}]", arrays


def test_shapes_of_subscripts_are_those_of_numpy():
    """With several arrays side by side, and apart."""
    source = random.Random(0)
    for _ in range(150):
        body, arrays = random_subscript(source)
        right = eval(body, {f"x{k}": x for k, x in enumerate(arrays)})
        assert infer_numpy_shape(body, [x.shape for x in arrays]) == right.shape, body


def made(is_other=False):
    p = program()
    X, I = p.input("X", (4, 6)), p.input("I", 3, "i8")  # noqa: E741
    powers = p.map("exp(x0)", X)
    halves = p.numpy("reshape(x0, (2, 2, 6))", powers)
    row = p.numpy(f"x0[:, {int(is_other)}, ::-2]", halves)
    both = p.numpy("concatenate(x0, x1, 0)", row, row)
    ones = p.numpy(write_constant(np.ones((4, 3))))
    p.output(p.map("x0 + x1", both, ones))
    p.output(p.map("x0 * 2", p.numpy("x0[x1, 1:]", powers, I)))
    p.output(p.map("x0 + 1", powers))
    p.output(row)
    return p.build()


def test_programs_with_them_have_texts_and_keys():
    given = made()
    assert program_from_text(str(given)) == given
    for seed in range(5):
        other, _ = disguised(given, random.Random(seed))
        assert program_key(other) == program_key(given)
    assert program_key(made(is_other=True)) != program_key(given)


def test_views_are_not_overwritten_and_results_are_new():
    """Nor is what they are views of, which other statements still read."""
    given = made()
    arrays = {**numbers(given), "I": np.array([0, -1, 2])}
    right = evaluate_program(given, arrays)
    for _ in range(3):
        found = run_program(given, arrays)
        for name, expected in right.items():
            np.testing.assert_allclose(found[name], expected, rtol=1e-12)
            assert found[name].flags.writeable
        for one in found.values():
            assert sum(np.shares_memory(one, other) for other in found.values()) == 1


def test_one_extent_may_be_unknown():
    p = program()
    X = p.input("X", ("n", 6))
    Y = p.numpy("reshape(x0, (-1, 2, 3))", p.map("2*x0", X))
    Z = p.numpy("x0[:, 1, None]", Y)
    assert [str(n) for n in Z.shape] == ["n", "1", "3"]
    given = p.build()
    for n in (0, 5):
        arrays = numbers(given, n=n)
        found = run_program(given, arrays)[Z.name]
        np.testing.assert_array_equal(found, (2 * arrays["X"][:, None, 3:]))
    with pytest.raises(ProgramError, match="extent n of the axis is not known"):
        p.numpy("x0[1:]", X)
    for shape in ("(-1, 2, 4)", "(2, 3)", "(-1, -1, 6)"):
        with pytest.raises(ProgramError, match=r"does not become|is no shape"):
            p.numpy(f"reshape(x0, {shape})", X)


WRONG = {
    "open(x0)": "expected a subscript of x0, or one of argmax",
    "reshape(x1, (2, 6))": "of 1 operand, in order",
    "reshape(x0, n)": "in order, and literals",
    "reshape(x0, (5,))": r"\[3,4\] does not become \[5\]",
    "reshape(x0)": "undefined for shapes",
    "x0[3]": "out of range",
    "x0[0, 0, 0]": "3|other subscripts",
    "x0[1.5]": "expected a subscript",
    "transpose(x0, (0, 0))": "no order of 2 axes",
    "repeat(x0, -1, 0)": "-1 repeats",
    "sort(x0, 2)": "no axis 2 in an array with 2 axes",
}


@pytest.mark.parametrize("body", WRONG)
def test_a_wrong_body_is_refused(body):
    with pytest.raises(ProgramError, match=WRONG[body]) as caught:
        program().numpy(body, array("X", (3, 4)))
    assert caught.value.rules == ("body",)


@pytest.mark.parametrize("shape", ["(-1,)", "(2000000, 1000000)", "(1.5,)"])
def test_a_constant_has_a_shape_within_limits(shape):
    with pytest.raises(ProgramError, match="is no shape"):
        program().numpy(f"constant('<f8', {shape}, '')")


def test_every_axis_has_an_index_of_its_own():
    one = Statement("R", "ij", ("ik",), ("X",), "transpose(x0, (1, 0))", "numpy")
    with pytest.raises(ProgramError, match=r"\[output-index\] R: index 'i' of 2 axes"):
        Program((array("X", (3, 4)),), (one,), ("R",))


def test_places_that_are_not_there_are_an_error_of_the_run():
    p = program()
    p.numpy("x0[x1]", p.input("X", 3), p.input("I", 2, "i8"))
    with pytest.raises(ProgramError, match="index 3 is out of bounds"):
        p.run(X=np.zeros(3), I=np.array([0, 3]))


@pytest.mark.parametrize("plan", [plan_program, decompose])
def test_a_plan_for_several_processes_is_refused_by_name(plan):
    with pytest.raises(
        ProgramError, match=r"r1 is computed by numpy.*reshape"
    ) as caught:
        plan(made(), 2)
    assert caught.value.rules == ("plan",)
