"""``feinsum.einsum`` and the names of opt_einsum: arrays give numbers, as there."""

import numpy as np
import opt_einsum
import pytest

import feinsum
from feinsum.errors import InvalidEinsumError
from feinsum.records import InMemoryStore
from feinsum.sparse import CSF, from_dense

RNG = np.random.default_rng(28)
A, B, C = (RNG.random(shape) for shape in [(3, 4), (4, 5), (5, 2)])
FACTS = InMemoryStore()


@pytest.mark.parametrize("dtype", ["c16", "f4"])
def test_out_is_written_as_casting_allows(dtype):
    """``out`` of the dtype of the result, a wider one, or a narrower one."""
    out, expected = np.empty((3, 5), dtype), np.empty((3, 5), dtype)
    casting = "same_kind" if dtype == "f4" else "safe"
    made = feinsum.einsum("ij,jk", A, B, out=out, casting=casting, database=FACTS)
    np.einsum("ij,jk", A, B, out=expected, casting=casting)
    assert made is out
    np.testing.assert_allclose(out, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"order": "Z"}, "order"),
        ({"optimize": "fastest"}, "optimize"),
        ({"optimize": [(0, 7)]}, "path"),
        ({"dtype": "f4"}, "casting"),
        ({"out": np.empty((5, 3)), "casting": "unsafe"}, "shape"),
        ({"dtype": "no dtype"}, "dtype"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(options, word):
    """The message names the option and what it expects."""
    with pytest.raises(InvalidEinsumError, match=word):
        feinsum.einsum("ij,jk", A, B, database=FACTS, **options)


@pytest.mark.parametrize("arguments", [(A, "ij"), (A, [[0]]), (A, [0, "a"])])
def test_lists_of_indices_are_checked(arguments):
    """What is no list of indices is refused, with the forms that are understood."""
    with pytest.raises(InvalidEinsumError, match="indices"):
        feinsum.einsum(*arguments)


def test_symbolic_operands_give_a_symbolic_einsum():
    """The kind of the operands decides, in both notations; they are not mixed."""
    M, x = feinsum.array("M", ("n", 4)), feinsum.array("x", 4)
    made = feinsum.einsum("ij,j->i", M, x)
    assert isinstance(made, feinsum.BatchedEinsum)
    lists = feinsum.einsum(M, [0, 1], x, [1], [0])
    assert feinsum.canonicalize(made).key == feinsum.canonicalize(lists).key
    with pytest.raises(InvalidEinsumError, match="operand 1 is of type ndarray"):
        feinsum.einsum("ij,j->i", M, np.ones(4))
    with pytest.raises(InvalidEinsumError, match="options"):
        feinsum.einsum("ij,j->i", M, x, dtype="f8")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimize": [(1, 2), (0, 1)]},
        {"optimize": opt_einsum.DynamicProgramming()},
        {"memory_limit": 10},
        {"memory_limit": "max_input"},
        {"use_blas": False, "backend": "numpy"},
    ],
)
def test_contract_is_called_as_that_of_opt_einsum(options):
    """One import is changed, and the results are the same."""
    result = feinsum.contract("ij,jk,kl->li", A, B, C, database=FACTS, **options)
    expected = opt_einsum.contract("ij,jk,kl->li", A, B, C, **options)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_contract_path_is_that_of_opt_einsum():
    """Path and report; long names are understood, too."""
    path, info = feinsum.contract_path("ij,jk,kl", A, B, C)
    known, report = opt_einsum.contract_path("ij,jk,kl", A, B, C)
    assert (path, str(info)) == (known, str(report))
    words = "{row}{mid}, {mid}{col} -> {row}{col}"
    assert feinsum.contract_path(words, (3, 4), (4, 5), shapes=True)[0] == [(0, 1)]
    assert feinsum.contract_path(A, [0, 1], B, [1, 2])[0] == [(0, 1)]


def test_a_path_is_followed(monkeypatch):
    """A path that is given decides what is multiplied, and in which order."""
    from feinsum.calling import call

    lines = []
    real = call.call_einsum

    def seen(text, *operands, **how):
        lines.append(text)
        return real(text, *operands, **how)

    monkeypatch.setattr(call, "call_einsum", seen)
    feinsum.contract("ij,jk,kl", A, B, C, optimize=[(1, 2), (0, 1)], database=FACTS)
    assert lines == ["jk,kl->jl", "ij,jl->il"]


@pytest.mark.parametrize(
    ("constants", "optimize"),
    [((), True), ((0,), [(0, 1), (0, 1)]), ((1, 2), True), ((0, 1, 2), True)],
)
def test_expressions_take_constants(constants, optimize):
    """What is constant is given once; the rest when the expression is called."""
    arrays = [A, B, C]
    given = [x if k in constants else x.shape for k, x in enumerate(arrays)]
    rest = [x for k, x in enumerate(arrays) if k not in constants]
    expression = feinsum.contract_expression(
        "ij,jk,kl->il", *given, constants=constants, optimize=optimize, database=FACTS
    )
    np.testing.assert_allclose(expression(*rest), A @ B @ C, rtol=1e-12)
    out = np.empty((3, 2))
    assert expression(*rest, out=out) is out
    np.testing.assert_allclose(out, A @ B @ C, rtol=1e-12)
    with pytest.raises(InvalidEinsumError, match="takes"):
        expression(*rest, A)


def test_products_of_constants_are_computed_once():
    """The einsum that is left has them as one operand."""
    expression = feinsum.contract_expression(
        "ij,jk,kl->il", A.shape, B, C, constants=[1, 2], database=FACTS
    )
    assert len(expression.constants) == 1
    assert repr(expression) == "<ContractExpression('ij,[jk],[kl]->il')>"


def test_products_of_sparse_constants_stay_sparse():
    """They have the pattern of the sparse one."""
    dense = np.where(A > 0.5, A, 0.0)
    expression = feinsum.contract_expression(
        "ij,ij,jk->ik", from_dense(dense), A, B.shape, constants=[0, 1], database=FACTS
    )
    assert isinstance(expression.constants[1], CSF)
    np.testing.assert_allclose(expression(B), (dense * A) @ B, rtol=1e-12)


def test_an_expression_refuses_what_does_not_fit_at_once():
    """Shapes that clash and positions that are not there, before any array comes."""
    with pytest.raises(InvalidEinsumError, match="index 'j' has extent 4 on axis 1"):
        feinsum.contract_expression("ij,jk", (3, 4), (5, 5))
    with pytest.raises(InvalidEinsumError, match=r"constants=\[1\]"):
        feinsum.contract_expression("ij,jk", A.shape, np.ones((4, 5)))
    with pytest.raises(InvalidEinsumError, match="positions from 0 to 1"):
        feinsum.contract_expression("ij,jk", A, (4, 5), constants=[2])
    for given in ({"optimize": False}, {"out": np.empty((3, 5))}):
        with pytest.raises(InvalidEinsumError, match="give out to the expression"):
            feinsum.contract_expression("ij,jk", (3, 4), (4, 5), **given)


def test_a_path_that_leaves_arrays_is_an_error_of_numpy_too():
    """``RuntimeError``, and our own."""
    A, B, C = np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 5))
    for path in ([(0, 1)], [(0, 1), (0, 2)], [(0, 0), (0, 1)]):
        with pytest.raises(RuntimeError) as refused:
            feinsum.einsum("ij,jk,kl", A, B, C, optimize=["einsum_path", *path])
        assert isinstance(refused.value, InvalidEinsumError)


@pytest.mark.parametrize("function", [feinsum.einsum, feinsum.contract])
def test_an_option_with_a_slip_is_named(function):
    """The nearest one is proposed, and the function is the one that was called."""
    with pytest.raises(TypeError, match="'optmize'; did you mean 'optimize'"):
        function("ij,jk", A, B, optmize=True)
    with pytest.raises(TypeError, match="'bachend'; there are casting, "):
        function("ij,jk", A, B, bachend="x")


def test_another_backend_is_refused_by_name():
    """Feinsum computes by itself."""
    with pytest.raises(InvalidEinsumError, match="backend='torch'"):
        feinsum.contract("ij,jk", A, B, backend="torch")


def test_feinsum_is_a_backend_of_opt_einsum():
    """opt_einsum calls ``feinsum.einsum`` and ``tensordot`` along its own path."""
    result = opt_einsum.contract("ij,jk,kl->il", A, B, C, backend="feinsum")
    np.testing.assert_allclose(result, A @ B @ C, rtol=1e-12)


@pytest.mark.parametrize("axes", [0, 1, ([1, 0], [0, 1]), (-1, 0)])
def test_tensordot_is_that_of_numpy(axes):
    """Axes are numbers, or lists of pairs."""
    square = RNG.random((4, 4))
    result = feinsum.tensordot(square, square.T, axes)
    np.testing.assert_allclose(result, np.tensordot(square, square.T, axes), rtol=1e-12)


@pytest.mark.parametrize("axes", [3, "ab", ([0], [1, 0]), ([5], [0])])
def test_axes_that_do_not_pair_are_refused(axes):
    """The message has the axes and the ranks."""
    with pytest.raises(InvalidEinsumError, match="do not match"):
        feinsum.tensordot(A, B, axes)
