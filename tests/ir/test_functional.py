"""Functional einsums: operands as functions of indices, in a closed grammar."""

from __future__ import annotations

import numpy as np
import pytest
from constantdict import constantdict
from hypothesis import given
from hypothesis import strategies as st

from feinsum.errors import InvalidEinsumError
from feinsum.ir import (
    BatchedEinsum,
    FunctionalBatchedEinsum,
    OperandFunction,
    array,
    einsum,
    evaluate,
)
from tests.strategies import arrays_of, einsums, relabelings

U = np.array([[3.0, 1.0, 4.0, 1.0], [5.0, 9.0, 2.0, 6.0]])
V = np.array([2.0, 7.0, 1.0, 8.0, 2.0, 8.0, 1.0, 8.0])
MAP = np.array([3, 0, 2, 1])
EJ_E, EJ_J = np.indices((2, 4))
EJ = np.array([[0, 1, 2, 3], [1, 1, 2, 3]])  # the larger of the two indices


@given(einsums(n_indices=4), st.data())
def test_idealized_is_plain(e: BatchedEinsum, data: st.DataObject) -> None:
    """Functions that read their arrays make no difference, whatever the names."""
    e = data.draw(relabelings(e)).apply(e)
    sizes = {param.name: 2 + k for k, param in enumerate(e.size_params)}
    arrays, idealized = arrays_of(e, sizes), FunctionalBatchedEinsum.idealized(e)
    assert all(function.is_plain_read() for function in idealized.functions.values())
    results = idealized.evaluate(arrays, sizes)
    for first, second in zip(results, evaluate(e, arrays), strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", ["_0", "x_0", "_"])
def test_idealized_names(name: str) -> None:
    """The parameters of a plain read never hide the array that is read."""
    e = einsum("i->i", array(name, 3))
    (result,) = FunctionalBatchedEinsum.idealized(e).evaluate({name: V[:3]}, {})
    np.testing.assert_array_equal(result, V[:3])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("u[e, j]", U),
        ("rsqrt(u[e, j])", 1 / np.sqrt(U)),
        ("real(u[e, j])", U),
        ("u[e, j]*((j & 1) + (e << 1))", U * ((EJ_J & 1) + (EJ_E << 1))),
        ("0.5*(u[e, j] + w)", 0.5 * (U + 10)),
        ("u[e, j] - v[j]", U - V[:4]),
        ("u[e, j] / v[j]", U / V[:4]),
        ("-u[e, j]**2", -(U**2)),
        ("v[4*e + j]", V.reshape(2, 4)),
        ("v[2*j + e]", V.reshape(4, 2).T),
        ("v[7 - 4*e - j]", V[::-1].reshape(2, 4)),
        ("u[e, map[j]]", U[:, MAP]),
        ("v[(4*e + j) // 2] % 3", V[np.arange(8).reshape(2, 4) // 2] % 3),
        ("u[e, j] if j < 2 else 0", np.where(np.arange(4) < 2, U, 0)),
        ("u[e, j] if j > 0 and not e == 1 else -1", [[-1, 1, 4, 1], [-1] * 4]),
        ("1 if u[e, j] > 4 or j == 3 else 0", [[0, 0, 0, 1], [1, 1, 0, 1]]),
        ("sqrt(u[e, j]) + maximum(e, j)", np.sqrt(U) + EJ),
        ("10*e + j", [[0, 1, 2, 3], [10, 11, 12, 13]]),
        ("w", np.full((2, 4), 10)),
        ("2", np.full((2, 4), 2)),
    ],
)
def test_functions(body: str, expected: np.ndarray) -> None:
    """A body means what Python and numpy say, for every value of the indices."""
    function = OperandFunction(("e", "j"), body)
    table = function.tabulate((2, 4), {"u": U, "v": V, "w": 10, "map": MAP})
    np.testing.assert_array_equal(table, expected, strict=False)


def test_functional_einsum() -> None:
    """Functions are tabulated, cast to the operand's dtype, and contracted."""
    e = einsum("ej,j->e", array("f", ("N", 4), "f4"), array("x", 4))
    functions = {
        "f": OperandFunction(("e", "j"), "um[e, j] - up[e, j]"),
        "x": OperandFunction(("k",), "1"),
    }
    functional = FunctionalBatchedEinsum(e, constantdict(functions))
    (result,) = functional.evaluate({"um": 3 * U, "up": U}, {"N": 2})
    np.testing.assert_array_equal(result, 2 * U.sum(axis=1))


@pytest.mark.parametrize(
    "body",
    [
        "nothing[e]",  # unknown names
        "nothing",
        "u.T",  # attributes
        "u.__class__.__base__.__subclasses__()",
        "__import__('os').system('touch /tmp/feinsum-was-here')",  # calls
        "__import__('os')",
        "open('/etc/passwd')",
        "eval('1')",
        "u(e)",
        "load(u)",
        "frompyfunc(e, 1, 1)",
        "sin(x=e)",
        "sin(*u)",
        "add(e, e, u)",  # would write to u
        "matmul(u, u)",
        "modf(e)",
        "lambda: e",  # other syntax
        "(lambda: e)()",
        "[e for e in u]",
        "(e := 1)",
        "f'{e}'",
        "'text'",
        "u[0:1]",
        "e in u",
        "e is u",
        "0 < e < 3",
        "u[e",
        "e; e",
        "",
    ],
)
def test_everything_else_is_refused(body: str) -> None:
    """What is not in the grammar is refused; nothing is called or changed."""
    u = np.zeros(3, dtype=int)
    with pytest.raises(InvalidEinsumError) as caught:
        OperandFunction(("e",), body).tabulate((3,), {"u": u})
    assert caught.value.rules == ("function",)
    np.testing.assert_array_equal(u, 0)


def test_refusal_names_what_is_known() -> None:
    """The message quotes the part that is refused and lists the known names."""
    function = OperandFunction(("e",), "2*(u[e] + nothing)")
    with pytest.raises(InvalidEinsumError, match=r"'nothing'.*\['e', 'u'\]"):
        function.tabulate((3,), {"u": np.ones(3)})


@pytest.mark.parametrize("functions", [{}, {"x": OperandFunction(("i", "j"), "0")}])
def test_each_operand_has_a_function(functions: dict[str, OperandFunction]) -> None:
    """A missing function, or one of another arity, is refused."""
    e = einsum("i->i", array("x", 3))
    with pytest.raises(InvalidEinsumError, match="needs a function of 1 index"):
        FunctionalBatchedEinsum(e, constantdict(functions))


@pytest.mark.parametrize(
    ("body", "is_plain"),
    [
        ("u[e, j]", True),
        (" (u[e,j]) ", True),
        ("u[j, e]", False),
        ("u[e]", False),
        ("u[e, j, 0]", False),
        ("u[e, 0]", False),
        ("u[e, j + 1]", False),
        ("2*u[e, j]", False),
        ("u", False),
    ],
)
def test_plain_reads(body: str, is_plain: bool) -> None:
    """Plain is: one array, subscripted by all the parameters in their order."""
    assert OperandFunction(("e", "j"), body).is_plain_read() == is_plain


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("x[i - 1] if i > 0 else 0.0", [0, 1, 2]),
        ("0.0 if i > 1 or x[i + 1] > 2 else x[i + 1]", [2, 0, 0]),
        ("x[i + 1] if i < 2 and x[i + 1] > 2 else 7.0", [7, 3, 7]),
        ("x[min(i, 1)]", [1, 2, 2]),
        ("float32(i)*x[i // 2]", [0, 1, 4]),
    ],
)
def test_a_condition_guards_what_it_chooses(body: str, expected: list[float]) -> None:
    """What a condition excludes is not read."""
    function = OperandFunction(("i",), body)
    found = function.tabulate((3,), {"x": np.array([1.0, 2.0, 3.0])})
    assert found.tolist() == expected


@pytest.mark.parametrize(
    "body", ["x[i - 1]", "x[i + 1]", "x[0.5*i]", "x[i, i]", "x[-1]"]
)
def test_nothing_is_read_outside_of_an_array(body: str) -> None:
    """Unlike numpy, functions do not count from the end of an array."""
    with pytest.raises(InvalidEinsumError) as caught:
        OperandFunction(("i",), body).tabulate((3,), {"x": np.ones(3)})
    assert caught.value.rules == ("function",)
