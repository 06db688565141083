"""Compiled stages compute what numpy does, for any extents, strides and bodies."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as examples
from hypothesis import strategies as st

from feinsum.calling.kernel_cache import Calls, clear_call_cache
from feinsum.errors import ProgramError
from feinsum.memory import get_remembered, use_fresh_memory
from feinsum.programs import evaluate_program, program, run_program
from feinsum.programs import local as local_engine
from feinsum.programs import parts as parts_module
from feinsum.programs.choice import KernelChoice
from feinsum.programs.compiled.expression import CExpression, convert_to_c
from feinsum.programs.parts import Part
from feinsum.programs.stages import list_stages
from feinsum.select import MAX_ROUNDS
from tests.portions import spread
from tests.programs.random_programs import numbers, random_program

WIDE = 150
"""More than the lanes of either dtype, and no multiple of them."""


@pytest.fixture
def compared(monkeypatch):
    """What every part of a program was computed to: stage, by its kernel, by numpy."""
    found = []

    def compute(part: Part) -> None:
        kernel, other = part.kernel, part.copied()
        results = part.evaluate()
        if kernel is None:
            return
        try:
            kernel.source.text()
        except ProgramError:
            return
        right = {name: result.copy() for name, result in results.items()}
        found.append((part.stage, other.run(), right))

    monkeypatch.setattr(local_engine, "compute", compute)
    return found


def assert_equal(compared):
    for _, results, right in compared:
        for name, expected in right.items():
            tolerance = 1e-4 if expected.dtype.char == "f" else 1e-10
            np.testing.assert_allclose(
                results[name], expected, tolerance, tolerance, equal_nan=True
            )


@pytest.mark.parametrize("seed", spread(range(48), 4))
def test_random_programs(seed, compared):
    built = random_program(random.Random(seed), 2 + seed % 5)
    run_program(built, numbers(built, seed))
    assert_equal(compared)


def assert_compiled(p, compared, **sizes):
    """Every part of a program has the results of numpy, and none is left to it."""
    built = p.build()
    n_stages = sum(not stage.is_contraction for stage in list_stages(built))
    arrays = numbers(built, **sizes)
    run_program(built, {x.name: arrays[x.name].astype(x.dtype) for x in built.inputs})
    assert_equal(compared)
    assert len({stage for stage, *_ in compared}) == n_stages


@pytest.mark.parametrize(
    ("axis", "dtype"), [(0, "float64"), (1, "float32"), (2, "float64")]
)
def test_softmax_along_every_axis(axis, dtype, compared):
    """Vectors lie along the sum, or along the rows of several sums."""
    p = program()
    p.softmax(p.input("X", (3, WIDE, WIDE), dtype), axis)
    assert_compiled(p, compared)


@pytest.mark.parametrize("n", [1, WIDE])
def test_extents_at_run_time_with_indices_as_numbers(n, compared):
    p = program()
    X = p.input("X", ("s", "t"))
    p.softmax(p.map("x0 if a >= b else -inf", X))
    p.map("x0*a + b/4", X)
    assert_compiled(p, compared, s=n, t=n + 2)


@pytest.mark.parametrize(
    ("reduction", "dtype"),
    [("sum", "float32"), ("prod", "float64"), ("max", "float32"), ("min", "float64")],
)
def test_reductions_of_several_axes(reduction, dtype, compared):
    """Some before the axis of the vectors, some after it."""
    p = program()
    X = p.input("X", (5, 3, WIDE, 2), dtype)
    p.reduce(reduction, X, (1, 2))
    p.reduce(reduction, X, (1, 3))
    assert_compiled(p, compared)


LONG = 1 << 16
"""Terms of a sum; one after the other, their rounding errors add up to hundreds."""


@pytest.mark.parametrize(
    ("shape", "axes", "dtype"),
    [((LONG,), (0,), "float32"), ((3, LONG), (1,), "float64"),
     ((LONG, 3), (0,), "float32"), ((3, LONG, 2), (1,), "float64"),
     ((LONG // 8, 3, 8), (0, 2), "float32"), ((LONG + 77, 1), (0,), "float64")],
)  # fmt: skip
def test_errors_of_long_sums_are_those_of_pairwise_sums(shape, axes, dtype, compared):
    """Kernels and numpy's functions add blocks of 128 terms, and these pairwise; the
    errors of equal terms have one sign, and would be hundreds otherwise.
    """
    p = program()
    p.reduce("sum", p.input("X", shape, dtype), axes, name="out")
    X = np.full(shape, 0.1, dtype)
    run_program(p.build(), {"X": X})
    right = X.astype(np.float64 if dtype == "float32" else np.longdouble).sum(axes)
    bound = (128 + np.log2(LONG)) / 2 * np.finfo(dtype).eps * right.max()
    assert compared
    for _, *both in compared:
        for results in both:
            assert np.all(np.abs(results["out"] - right.max()) <= bound)


def test_sums_of_negative_zeros_are_positive_as_in_numpy(compared):
    p = program()
    p.reduce("sum", p.input("X", (3, WIDE)), 1, name="out")
    run_program(p.build(), {"X": np.full((3, WIDE), -0.0)})
    ((_, *both),) = compared
    assert not any(np.signbit(results["out"]).any() for results in both)


def test_no_number_goes_through_reductions_as_in_numpy(compared):
    p = program()
    X = p.input("X", (4, WIDE))
    for reduction in ("max", "min", "sum"):
        p.reduce(reduction, X, 1)
    values = np.random.default_rng(0).normal(size=(4, WIDE))
    values[0, 3], values[1, WIDE - 1], values[2, 70] = np.nan, np.nan, -np.inf
    run_program(p.build(), {"X": values})
    assert_equal(compared)
    assert compared


def test_turned_and_strided_arrays(compared):
    p = program()
    X, Y = p.input("X", (WIDE, 40)), p.input("Y", (WIDE, 40))
    p.map("x0*x1 - exp(x1)", X, Y)
    values = np.random.default_rng(0).normal(size=(80, 2 * WIDE))
    run_program(p.build(), {"X": values[::2, ::2].T, "Y": values[40:, WIDE:].T})
    assert_equal(compared)
    assert compared


def test_a_kernel_is_compared_where_statements_overwrite_operands(compared):
    """Here a result that is not kept is in the memory of one product."""
    p = program()
    X, C = p.input("X", (6, 8)), p.input("C", (6, 6))
    one, other = (p.einsum("ij,jk->ik", X, p.input(name, (8, 6))) for name in "AB")
    inner = p.map("x0*x1", one, p.map("tanh(x0)", C))
    p.output(p.map("x0 + x1", other, inner))
    given = p.build()
    run_program(given, numbers(given))
    assert len(compared) == 1
    assert_equal(compared)


def test_the_compiled_way_is_used_where_it_is_faster(monkeypatch):
    """And computes the same from run to run, in the memory of what is read last."""
    monkeypatch.setattr(parts_module, "MIN_S", 0.0)
    clear_call_cache()
    p = program()
    p.softmax(p.map("tanh(x0) + cos(x0)", p.input("X", (WIDE, WIDE))))
    built = p.build()
    arrays = numbers(built)
    results = [run_program(built, arrays)["r4"] for _ in range(2 * MAX_ROUNDS + 2)]
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], 1e-12)
    races = get_remembered(Calls).choices.values()
    assert races
    assert all(choice.is_over for choice in races)


def test_without_a_compiler_numpy_computes(monkeypatch, caplog):
    monkeypatch.setenv("FEINSUM_CC", "/no/such/compiler")
    monkeypatch.setattr(parts_module, "MIN_S", 0.0)
    p = program()
    p.softmax(p.input("X", (5, 6)))
    built = p.build()
    arrays = numbers(built)
    with caplog.at_level("INFO"):
        for _ in range(4):
            np.testing.assert_allclose(
                run_program(built, arrays)["r3"],
                evaluate_program(built, arrays)["r3"],
            )
    assert "does not work as a C compiler" in caplog.text


ARRAY = st.sampled_from(["x0", "x1"])
LEAF = st.sampled_from(["x0", "x1", "2", "0.5", "a", "-3", "pi"])
TRUTH = st.sampled_from(["x0 > x1", "a >= 2", "not (x0 == 1)", "x0 < 2 and b != 3"])
UNARY = ["exp", "sin", "fabs", "tanh", "floor", "sqrt", "abs", "expm1", "arctan"]
BINARY = ["max", "min", "maximum", "minimum", "fmax", "hypot"]
# Denominators and arguments are leaves: what rounding changes must not become large.
BODY = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*"), inner),
        st.builds("({} / {})".format, inner, LEAF),
        st.builds("{}({})".format, st.sampled_from(UNARY), LEAF),
        st.builds("{}({}, {})".format, st.sampled_from(BINARY), inner, inner),
        st.builds("({} if {} else {})".format, inner, TRUTH, inner),
        st.builds("({})**{}".format, ARRAY, st.sampled_from(["2", "0.5", "x1"])),
    ),
    max_leaves=6,
)


@settings(max_examples=2, deadline=None, suppress_health_check=[*HealthCheck])
@examples(st.lists(BODY, min_size=14, max_size=14))
def test_bodies_in_c_have_the_values_of_numpy(bodies):
    p = program()
    X, Y = p.input("X", (5, 33)), p.input("Y", (5, 33))
    last = X
    for body in bodies:  # each reads the last one, so that all are one stage
        last = p.output(p.map(f"({body}) + (0.0*x0 if x2 > 0 else 0.0*x1)", X, Y, last))
    built = p.build()
    arrays = numbers(built)
    expected = evaluate_program(built, arrays)
    (stage,) = list_stages(built)
    part = part_of(stage, arrays, {name: np.empty((5, 33)) for name in built.outputs})
    for name, found in part.run().items():
        np.testing.assert_allclose(found, expected[name], 1e-9, 1e-9, equal_nan=True)


def part_of(stage, arrays, outs):
    """A stage of maps, as a whole."""
    results = [one.result for one in stage.statements]
    operands = {
        one.result: [arrays.get(name) for name in one.operands]
        for one in stage.statements
    }
    nothing = {name: {} for name in results}
    dtypes = dict.fromkeys([*arrays, *results], np.dtype(float))
    return Part(stage, operands, outs, {}, nothing, nothing, dtypes)


NAMES = {"x0": CExpression("a", "real"), "s": CExpression("i", "index")}


@pytest.mark.parametrize(
    "body", ["x0 // 2", "x0 % 2", "x0 > 1", "sinc(x0)", "x0 + 1j", "x0 & 1", "s + t"]
)
def test_what_has_no_equivalent_is_left_to_numpy(body):
    with pytest.raises(ProgramError, match="has no equivalent in C"):
        convert_to_c(body, NAMES, 8)


def test_numpy_computes_with_indices_in_double_precision():
    assert convert_to_c("x0 * s", NAMES, 8) == "(a * ((R) i))"
    with pytest.raises(ProgramError, match="has no equivalent in C"):
        convert_to_c("x0 * s", NAMES, 4)


def test_a_kernel_that_fails_later_is_given_up():
    calls = []

    def kernel(given):
        calls.append(given)
        if len(calls) > 1:
            raise ProgramError("cannot be built for these arrays")
        return {"y": given.copy()}

    choice = KernelChoice(lambda: kernel)
    for _ in range(6):
        assert choice.run(np.ones(2), lambda: {"y": np.ones(2)})["y"].tolist() == [1, 1]
    assert choice.is_over
    assert len(calls) == 2


def test_what_is_large_between_statements_is_left_to_numpy(compared):
    """Softmax over two axes whose entries lie apart: lanes times all of them."""
    p = program()
    X = p.input("X", (2, 300, 700))
    most = p.reduce("max", X, (1, 2))
    powers = p.along("exp(x0 - x1)", X, most, (1, 2))
    p.along("x0 / x1", powers, p.reduce("sum", powers, (1, 2)), (1, 2))
    values = np.random.default_rng(0).normal(size=(700, 300, 2)).T
    run_program(p.build(), {"X": values})
    assert not compared


def test_results_of_no_values_and_of_one():
    """An empty index that blocks would cut, and a result of one value in place."""
    p = program()
    A = p.map("exp(x0)", p.input("X", ("n", 3)))
    p.einsum("ij,jk->ik", A, p.input("W", (3, 4)))
    assert run_program(p.build(), {"X": np.ones((0, 3)), "W": np.ones((3, 4))})
    p = program()
    folded = p.reduce("a + b - a*b", p.input("X", (4, 1)), 1)
    last = p.map("2*x0", p.map("x0 + 1", folded))
    found = run_program(p.build(), {"X": np.ones((4, 1))})[last.name]
    assert found.tolist() == [4.0] * 4


def test_one_source_for_any_sizes_and_names():
    """So the number of compiled stages is bounded by that of different ones."""
    with use_fresh_memory():
        for n in (4, 9, 20):
            p = program()
            p.softmax(p.map("exp(x0)", p.input(f"X{n}", (n, n + 3))))
            built = p.build()
            results = dict.fromkeys(built.outputs, np.empty((n, n + 3)))
            (stage,) = list_stages(built)
            part_of(stage, numbers(built), results).run()
        assert len(get_remembered(parts_module._Built)) == 1


def test_long_bodies_are_written_once():
    """And large numbers are not those of 32 bits."""
    body = "+".join(["x0"] * 200)
    assert convert_to_c(body, NAMES, 8).count("a") == 200
    assert convert_to_c("x0*(100000*100000)", NAMES, 8).count("100000LL") == 2


def test_functions_without_vectors_are_called_one_by_one():
    """Libmvec has no lgamma: a library that lacks a function is like that."""
    p = program()
    p.map("exp(x0)", p.input("X", (4, 50)))
    built = p.build()
    (stage,) = list_stages(built)
    outs = {name: np.empty((4, 50)) for name in built.outputs}
    text = part_of(stage, numbers(built), outs).kernel.source.text()
    assert parts_module._build(re.sub(r"\bexp\b", "lgamma", text)) is not None
