"""Functions of numpy as programs: the program computes what the function computes."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.errors import ProgramError
from feinsum.ir import array
from feinsum.programs import program, program_key, run_program, trace

SHAPES = {"A": (3, 4), "B": (4, 5), "x": (4,), "T": (2, 3, 4), "one": (3, 1), "s": ()}


def softmax(z):
    powers = np.exp(z - z.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


FUNCTIONS = {
    "arithmetic": lambda A, x: -((2 * A - x / 3.0) ** 2) + (x < A) * 1.5,
    "comparison": lambda A, x: np.where(x <= A, A, 0.5 * x),
    "ufuncs": lambda A, x: (
        np.maximum(np.sqrt(abs(A)), np.tanh(x)) + np.minimum(A, -0.5)
    ),
    "products": lambda A, B, x: (A @ B, A @ x, x @ B, x @ x),
    "batched": lambda T, B: T @ B,
    "dot": lambda A, B, T, x: (np.dot(T, B), A.dot(x), np.dot(x, B)),
    "matrix of a stack": lambda A, T: A.T @ T,
    "einsum": lambda T, A: np.einsum("bij,ij->bi", T, A, optimize=True),
    "implicit": lambda A, x: np.einsum("ij,j", A, x),
    "reductions": lambda T: (
        T.sum(axis=(0, 2)),
        np.max(T),
        T.mean(axis=1),
        np.min(T, axis=-1),
    ),
    "truth": lambda A, x: (np.any(x < A, axis=0), np.all(x < A, axis=1)),
    "views": lambda A, T: (
        A.T,
        T.transpose(2, 0, 1) + 1.0,
        np.swapaxes(T, 0, 1) * A[:, None, :],
    ),
    "new axes": lambda A, x: (
        A[None] * x[..., None, None, :] + np.expand_dims(A, 0)
    ).sum(axis=0),
    "broadcast": lambda A, one, s: A * one - s + one.T @ A,
    "softmax": lambda A, B: softmax(A @ B),
    "one array twice": lambda A: A @ A.T + A.sum() * np.eye(3).shape[0],
    "dictionary": lambda A: {"up": A + 1, "down": A - 1},
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_traced_function_computes_the_same(name):
    function = FUNCTIONS[name]
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    source = np.random.default_rng(0)
    arrays = {n: source.uniform(-1, 1, SHAPES[n]) for n in names}
    expected = function(**arrays)
    expected = [*expected.values()] if isinstance(expected, dict) else expected
    expected = expected if isinstance(expected, tuple | list) else [expected]
    given = trace(function, **{n: array(n, SHAPES[n]) for n in names})
    found = run_program(given, arrays)
    assert len(found) == len(expected)
    for name_, right in zip(given.outputs, expected, strict=True):
        assert found[name_].dtype == np.asarray(right).dtype
        np.testing.assert_allclose(found[name_], right, rtol=1e-12)


def test_a_traced_function_has_the_key_of_the_program_that_is_written_by_hand():
    given = trace(lambda A: softmax(A), A=array("A", (3, 4)))
    p = program()
    A = p.input("A", (3, 4))
    shifted = p.along("x0 - x1", A, p.reduce("max", A, 1), 1)
    powers = p.map("exp(x0)", shifted)
    p.along("x0 / x1", powers, p.reduce("sum", powers, 1), 1)
    assert program_key(given) == program_key(p.build())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda A: np.linalg.inv(A), "numpy.linalg.inv"),
        (lambda A: A if A.sum() > 0 else -A, "a decision on values"),
        (lambda A: np.asarray(A), "the values of an array"),
        (lambda A: A.sum(axis=2), "axis 2 of an array with 2 axes"),
        (lambda A: np.add(A, 1, out=A), "numpy.add with __call__"),
        (lambda A: np.frexp(A), "numpy.frexp"),
        (lambda A: np.einsum("ij,j", A, A), "ij,j"),
    ],
)
def test_what_a_program_has_not_is_refused_by_name(function, words):
    with pytest.raises(ProgramError, match=words):
        trace(function, A=array("A", (3, 4)))
