"""Networks of many arrays, with indices beyond the alphabet, by the extension alone."""

from __future__ import annotations

from functools import reduce

import numpy as np
import opt_einsum
import pytest
from opt_einsum import get_symbol

import feinsum
from feinsum.contraction import IS_BUILT
from feinsum.options import DEVICE_VARIABLE, EFFORT_VARIABLE

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="installed without a compiler")

TOLERANCES = {"f4": 1e-3, "c8": 1e-3, "f8": 1e-9, "c16": 1e-9}
GREEK = "αβγδ"


@pytest.fixture(autouse=True)
def _usual_environment(monkeypatch):
    """As for a user who set nothing, in a process that has spent no time in calls."""
    from feinsum.contraction import _pairwise

    _pairwise.set_spent_s(-1e6)
    monkeypatch.delenv(EFFORT_VARIABLE, raising=False)
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    yield
    _pairwise.set_spent_s(0.0)


def compute(subscripts, *operands):
    from feinsum.contraction import _pairwise

    return _pairwise.einsum(subscripts, operands)


def random_network(seed):
    """Terms of up to three indices that lie close to each other, so that intermediates
    are small: diagonals, hyperedges, scalars, parts that share nothing, axes that are
    broadcast, and operands of any strides.
    """
    rng = np.random.default_rng(seed)
    n, n_indices = rng.integers(2, 60), rng.integers(2, 90)
    names = [get_symbol(200 + k) for k in range(n_indices)]
    extents = rng.choice([1, 2, 2, 3], n_indices)
    dtype = rng.choice([*TOLERANCES])
    terms, operands = [], []
    for _ in range(n):
        center = rng.integers(n_indices)
        near = (center + rng.integers(-3, 4, rng.integers(4))) % n_indices
        shape = [
            1 if rng.random() < 0.1 and (near == k).sum() == 1 else extents[k]
            for k in near
        ]
        values = np.asarray(rng.uniform(0.3, 0.7, shape))
        values = values * (1 + 0.2j) if dtype[0] == "c" else values
        array = np.asarray(values, dtype, order=rng.choice(["C", "F"]))
        terms.append("".join(names[k] for k in near))
        operands.append(array[::-1] if array.ndim and rng.random() < 0.2 else array)
    used = sorted({*"".join(terms)})
    output = "".join(rng.permutation(used)[: rng.integers(5)])
    return terms, output, operands


def expected_result(terms, output, operands):
    """By opt_einsum in double precision: a broadcast operand has not got its index."""
    extents = {}
    for term, array in zip(terms, operands, strict=True):
        for index, n in zip(term, array.shape, strict=True):
            extents[index] = max(extents.get(index, 1), n)
    kept = [[k for k, n in enumerate(x.shape) if n != 1] for x in operands]
    short = ["".join(t[k] for k in axes) for t, axes in zip(terms, kept, strict=True)]
    arrays = [
        x.reshape([x.shape[k] for k in axes]).astype(np.result_type(x, np.float64))
        for x, axes in zip(operands, kept, strict=True)
    ]
    long = "".join(index for index in output if extents[index] != 1)
    result = opt_einsum.contract(f"{','.join(short)}->{long}", *arrays)
    return np.reshape(result, [extents[index] for index in output])


@pytest.mark.parametrize("seed", range(40))
def test_random_networks(seed):
    """Five of each seed; every one of them is answered here."""
    for part in range(5):
        terms, output, operands = random_network(5 * seed + part)
        result = np.asarray(compute(f"{','.join(terms)}->{output}", *operands))
        expected = expected_result(terms, output, operands)
        assert result.dtype == operands[0].dtype
        assert result.shape == expected.shape
        tolerance = TOLERANCES[result.dtype.str[1:]]
        scale = np.abs(expected).max(initial=0.0)
        np.testing.assert_allclose(result, expected, tolerance, tolerance * scale)


@pytest.mark.parametrize("n", [33, 300, 3000])
def test_a_chain_of_matrices(n):
    """An order along the chain; in steps from one end it would be the same number."""
    rng = np.random.default_rng(n)
    matrices = [rng.random((4, 4)) / 2 for _ in range(n)]
    terms = ",".join(get_symbol(k) + get_symbol(k + 1) for k in range(n))
    result = compute(f"{terms}->{get_symbol(0)}{get_symbol(n)}", *matrices)
    expected = reduce(np.matmul, matrices)
    np.testing.assert_allclose(result, expected, 1e-9)


def test_an_index_that_all_operands_have():
    """More of them than are looked at as pairs: a product of 100 diagonals."""
    rng = np.random.default_rng(0)
    vectors = [rng.uniform(0.9, 1.1, 5) for _ in range(100)]
    result = compute(",".join("α" * 100) + "->α", *vectors)
    np.testing.assert_allclose(result, np.prod(vectors, axis=0), 1e-9)
    total = compute(",".join("α" * 100) + "->", *vectors)
    assert isinstance(total, np.float64)
    np.testing.assert_allclose(total, np.prod(vectors, axis=0).sum(), 1e-9)


def test_indices_of_any_alphabet():
    """Of two operands, too; blanks mean nothing."""
    A, B = np.ones((2, 3)), np.ones((3, 4))
    assert (compute("αβ , βγ -> γα", A, B) == np.full((4, 2), 3.0)).all()
    assert (feinsum.einsum("αβ,βγ->αγ", A, B) == A @ B).all()


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("αβ,βγ", [(2, 3), (3, 4)]),
        ("αβ,βγ->αα", [(2, 3), (3, 4)]),
        ("αβ,βγ->αδ", [(2, 3), (3, 4)]),
        ("αβ,βγ->αγ", [(2, 3), (4, 4)]),
        ("αβ,βγ->αγ", [(2, 3), (3, 4, 5)]),
        ("αβ,βγ->αγ", [(2, 3)]),
        ("αβ,βγ,γ->αγ", [(2, 3), (3, 4)]),
        ("αα,βγ->αγ", [(2, 1), (3, 4)]),
        ("αβ,{β}γ->αγ", [(2, 3), (3, 4)]),
        ("αβ,β...->α...", [(2, 3), (3, 4)]),
        ("αβ,βγ-", [(2, 3), (3, 4)]),
        ("αβ,βγ->α,γ", [(2, 3), (3, 4)]),
        ("αβ,βγ->αγ", [(2, 0), (0, 4)]),
        ("αβ,βγ->αγ", [(2, 3), (3, 40_000)]),
    ],
)
def test_other_notation_and_mistakes_are_left_to_python(text, shapes):
    """Which computes them, or says what is wrong."""
    assert compute(text, *map(np.ones, shapes)) is NotImplemented


def test_other_operands_and_settings_are_left_to_python(monkeypatch):
    """Other dtypes, several of them, and what is no array of numpy; a limit of
    intermediates; and networks for which a longer search may pay off.
    """
    A, B, C = np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 2))
    text = "αβ,βγ,γδ->αδ"
    assert compute(text, A, B, C) is not NotImplemented
    assert compute(text, A, B.astype(int), C) is NotImplemented
    assert compute(text, *(x.astype("f2") for x in (A, B, C))) is NotImplemented
    assert compute(text, A, B.tolist(), C) is NotImplemented
    large = [np.ones((300, 300))] * 3
    assert compute(text, *large) is NotImplemented
    monkeypatch.setenv("FEINSUM_INTERMEDIATE_BYTES", "1000")
    assert compute(text, A, B, C) is NotImplemented


def test_users_get_one_error_of_the_projects_own_tree():
    """Of a large network as of a small one."""
    matrices = [np.ones((3, 3))] * 40
    terms = [get_symbol(k) + get_symbol(k + 1) for k in range(40)]
    matrices[7] = np.ones((3, 4))
    with pytest.raises(feinsum.errors.InvalidEinsumError, match="operand"):
        feinsum.einsum(",".join(terms) + "->", *matrices)
