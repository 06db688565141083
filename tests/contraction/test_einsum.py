"""Calls that the extension answers alone: numpy's results, types and views."""

from __future__ import annotations

from functools import reduce
from itertools import cycle
from itertools import pairwise as neighbours
from string import ascii_letters

import hypothesis
import numpy as np
import opt_einsum
import pytest
from hypothesis import strategies as st
from opt_einsum import get_symbol

import feinsum
from feinsum.contraction import IS_BUILT
from feinsum.errors import DeviceUnavailableError
from feinsum.options import DEVICE_VARIABLE, EFFORT_VARIABLE
from tests.children import run_python
from tests.portions import spread

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="installed without a compiler")

RNG = np.random.default_rng(3)
LETTERS = "abcdEF"
TOLERANCES = {"f": 1e-5, "F": 1e-5}
DTYPES = "fdFDlibg?"


@pytest.fixture(autouse=True)
def _usual_environment(monkeypatch):
    """As for a user who set nothing, in a process that has spent no time in calls."""
    from feinsum.contraction import _pairwise

    _pairwise.set_spent_s(-1e6)
    monkeypatch.delenv(EFFORT_VARIABLE, raising=False)
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    yield
    _pairwise.set_spent_s(0.0)


def pairwise():
    from feinsum.contraction import _pairwise

    return _pairwise


def compute(subscripts, *operands):
    return pairwise().einsum(subscripts, operands)


def assert_near(result, expected, text, operands):
    tolerance = TOLERANCES.get(result.dtype.char, 1e-12)
    scale = np.einsum(text, *[abs(x).astype(float) for x in operands])
    assert np.all(abs(result.astype(complex) - expected) <= tolerance * scale)


@st.composite
def calls(draw):
    """Some operands, with diagonals, broadcast axes, and any strides."""
    extents = {x: draw(st.sampled_from((0, 1, 2, 3, 5, 9, 17))) for x in LETTERS}
    terms = draw(st.lists(st.text(LETTERS, max_size=4), min_size=1, max_size=12))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    operands = []
    for term in terms:
        is_short = {x: draw(st.integers(0, 9)) == 0 for x in term}
        shape = [1 if is_short[x] else extents[x] for x in term]
        order = draw(st.permutations(range(len(shape))))
        values = rng.standard_normal([shape[axis] for axis in order]) * 9
        array = values.astype(draw(st.sampled_from(DTYPES)))
        array = array.transpose(np.argsort(order)) if shape else array
        operands.append(array[::-1] if shape and draw(st.booleans()) else array)
    used = sorted({*"".join(terms)})
    text = ",".join(terms)
    if draw(st.booleans()):
        shown = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        text += "->" + "".join(shown)
    return text, operands


@hypothesis.given(calls())
@hypothesis.settings(max_examples=200, deadline=None)
def test_results_are_those_of_numpy(call):
    """In value, shape, dtype and type, for every call of up to twelve arrays."""
    text, operands = call
    result = compute(text, *operands)
    if result is NotImplemented:
        return
    expected = np.einsum(text, *operands)
    assert type(result) is type(expected)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert_near(result, expected, text, operands)


@hypothesis.given(calls(), st.integers(1, 3), st.sampled_from("CF"))
@hypothesis.settings(max_examples=100, deadline=None)
def test_out_gets_the_result(call, step, order):
    """In place, in any strides, and nothing else is written."""
    text, operands = call
    result = compute(text, *operands)
    dtypes = {x.dtype for x in operands}
    if result is NotImplemented or len(dtypes) > 1 or result.dtype.char not in "fdFD":
        return
    shape = [n * step + 1 for n in result.shape]
    memory = np.full(shape, 7, result.dtype, order)
    out = memory[(..., *[slice(1, None, step)] * result.ndim)]
    assert pairwise().einsum(text, tuple(operands), False, out) is out
    assert_near(out, result, text, operands)
    out[...] = 7
    assert (memory == 7).all()


@pytest.mark.parametrize("dtype", ["g", "G", "e", "i", "?"])
@pytest.mark.parametrize(
    ("text", "shapes"),
    [("ij,ik->ijk", [(3, 4), (3, 0)]), ("ij,jk->ik", [(3, 0), (0, 4)]),
     ("i,ij,ij->j", [(1,), (0, 4), (0, 1)])],
)  # fmt: skip
def test_an_empty_product_is_not_given_to_numpy(text, shapes, dtype, monkeypatch):
    """Which corrupts memory for some: these have no terms, or no entries."""
    operands = [np.ones(shape, dtype) for shape in shapes]
    expected = np.zeros(np.einsum(text, *map(np.ones, shapes)).shape, dtype)
    monkeypatch.setattr(np, "einsum", None)
    result = feinsum.einsum(text, *operands)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert (result == expected).all()


@pytest.mark.parametrize(
    "out",
    [
        np.zeros((4, 5)),
        np.zeros(4),
        np.zeros((4, 4), "f4"),
        np.broadcast_to(np.zeros(4), (4, 4)),
        np.zeros((4, 4)).view(np.matrix),
        np.zeros((4, 4), ">f8"),
        [[0.0] * 4] * 4,
    ],
)
def test_an_out_that_does_not_fit_is_left_to_python(out):
    operand = np.ones((4, 4))
    call = "ij,jk->ik", (operand, operand), False, out
    assert pairwise().einsum(*call) is NotImplemented


def test_an_out_in_the_memory_of_an_operand_is_left_to_python():
    """Which computes the result elsewhere first."""
    memory = np.arange(20.0)
    a, out = memory[:16].reshape(4, 4), memory[4:].reshape(4, 4)
    assert pairwise().einsum("ij,jk->ik", (a, a), False, out) is NotImplemented
    expected = a @ a
    assert feinsum.einsum("ij,jk->ik", a, a, out=out) is out
    np.testing.assert_allclose(out, expected)


@pytest.mark.parametrize("variable", ["FEINSUM_NUM_THREADS", "OMP_NUM_THREADS"])
def test_the_number_of_threads_may_change_between_calls(variable, monkeypatch):
    """It is read again if a variable has changed: a wrong one is an error then."""
    operands = np.ones((2, 80, 80))
    monkeypatch.setenv(variable, "1")
    result = compute("ij,jk->ik", *operands)
    monkeypatch.setenv("FEINSUM_NUM_THREADS", "many")
    with pytest.raises(DeviceUnavailableError, match="many"):
        compute("ij,jk->ik", *operands)
    # what the extension leaves to Python, before it reads the number
    chain = ",".join(map("".join, neighbours(ascii_letters[:41])))
    with pytest.raises(DeviceUnavailableError, match="many"):
        feinsum.einsum(chain, *[np.eye(130)] * 40)
    monkeypatch.setenv("FEINSUM_NUM_THREADS", "2")
    assert (compute("ij,jk->ik", *operands) == result).all()


@pytest.mark.parametrize(
    ("text", "dtype"),
    [("ij->ji", "f8"), ("iij->ij", "i2"), ("ii->i", "f8"), ("ijk->kij", "O"),
     ("ij", "U3"), ("ii->i", "m8[s]"), ("ij->ji", "V0")],
)  # fmt: skip
def test_without_a_sum_the_result_is_a_view(text, dtype):
    """Of arrays of any dtype, writable if the operand is."""
    array = np.zeros([3] * len(text.split("->")[0]), dtype)
    view = compute(text, array)
    assert view.base is array
    assert view.dtype == array.dtype
    if dtype in ("f8", "i2"):
        np.copyto(array, np.arange(array.size).reshape(array.shape))
        assert (view == np.einsum(text, array)).all()
        assert view.strides == np.einsum(text, array).strides
    array.flags.writeable = False
    assert not compute(text, array).flags.writeable


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)]),
        ("ij->ii", [(2, 2)]),
        ("ij->k", [(2, 2)]),
        ("ij,jk->ik", [(2, 3)]),
        ("ij->ij", [(2, 3), (3, 2)]),
        ("ii->i", [(1, 3)]),
        ("i...->i", [(2, 2)]),
        ("i......->i...", [(2,)]),
        ("i->...i", [(2,)]),
        ("ij...->...", [(2,)]),
        ("i..j->ij", [(2, 2)]),
        ("...,...", [(2, 3), (3, 2)]),
        ("{row}j->j", [(2, 2)]),
        ("ij->i->j", [(2, 2)]),
        ("i,j-k", [(2,), (2,)]),
        ("ij", [(2,)]),
        ("i,,j->ij", [(2,), (2,)]),
        ("αβ->βα", [(2, 2)]),
        ("αβ,βγ", [(2, 3), (3, 4)]),
        ("αβ,βγ->αα", [(2, 3), (3, 4)]),
        ("αβ,βγ->αδ", [(2, 3), (3, 4)]),
        ("αβ,βγ->αγ", [(2, 3), (4, 4)]),
        ("αβ,βγ->αγ", [(2, 3)]),
        ("αα,βγ->αγ", [(2, 1), (3, 4)]),
        ("αβ,{β}γ->αγ", [(2, 3), (3, 4)]),
        ("αβ,β...->α...", [(2, 3), (3, 4)]),
        ("αβ,βγ->αγ", [(2, 0), (0, 4)]),
        ("αβ,βγ->αγ", [(2, 3), (3, 40_000)]),
        ("ij->" + "i" * 40, [(2, 2)]),
        ("i" * 40, [(2, 2)]),
    ],
)
def test_other_notation_and_mistakes_are_left_to_python(text, shapes):
    """Which knows more notation, and says what is wrong."""
    assert compute(text, *map(np.ones, shapes)) is NotImplemented


@pytest.mark.parametrize(
    "operand",
    [
        [1.0, 2.0],
        np.ma.masked_array([1.0, 2.0]),
        np.ones(2, "f2"),
        np.ones(2, "O"),
        np.ones(2, "m8[s]"),
    ],
)
def test_other_operands_are_left_to_python(operand):
    """Lists, subclasses, and dtypes that numpy does not add up as they are."""
    assert compute("i,i->", operand, operand) is NotImplemented
    assert compute("α,α->", operand, operand) is NotImplemented


@pytest.mark.parametrize("variable", [DEVICE_VARIABLE, EFFORT_VARIABLE])
def test_settings_are_left_to_python(variable, monkeypatch):
    """A device, or an effort, asks for a kernel."""
    array = np.ones(3)
    assert compute("i,i->", array, array) == 3.0
    monkeypatch.setenv(variable, "estimate")
    assert compute("i,i->", array, array) is NotImplemented


def test_a_limit_of_intermediates_and_a_longer_search_are_left_to_python(monkeypatch):
    """Of networks with indices of any alphabet."""
    A, B, C = np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 2))
    text = "αβ,βγ,γδ->αδ"
    assert (compute("αβ , βγ -> γα", A, B) == np.full((4, 2), 3.0)).all()
    assert compute(text, A, B, C) is not NotImplemented
    assert compute(text, A, B.astype(int), C) is NotImplemented
    assert compute(text, *[np.ones((300, 300))] * 3) is NotImplemented
    monkeypatch.setenv("FEINSUM_INTERMEDIATE_BYTES", "1000")
    assert compute(text, A, B, C) is NotImplemented


def test_large_results_are_in_memory_that_is_used_again():
    """As those of all other calls."""
    from feinsum.result_memory import LINE

    rng = np.random.default_rng(0)
    A, B = rng.standard_normal((300, 20)), rng.standard_normal((20, 400))
    result = compute("ij,jk->ik", A, B)
    np.testing.assert_allclose(result, A @ B)
    address = result.ctypes.data
    assert address % LINE == 0
    del result
    assert compute("ij,jk->ik", A, B).ctypes.data == address


FIRST_CALLS = """
import sys, numpy as np, feinsum
before = {*sys.modules}
A, B = np.ones((30, 40)), np.ones((40, 50))
assert feinsum.einsum("ij,jk->ik", A, B)[0, 0] == 40.0
assert feinsum.einsum("ij->j", A, optimize=True)[0] == 30.0
letters = [chr(200 + k) for k in range(101)]
terms = ",".join(a + b for a, b in zip(letters, letters[1:]))
assert feinsum.einsum(terms + "->", *[np.ones((1, 1))] * 100) == 1.0
print(*sorted({*sys.modules} - before))
"""


def test_first_calls_load_almost_nothing():
    """What they load takes a twentieth of the time in which numpy is loaded."""
    printed = run_python("-c", FIRST_CALLS).stdout.split()
    assert len(printed) < 12, printed


LONG_PROGRAM = """
import sys, numpy as np, feinsum
A = np.ones((700, 700))
n_calls = 0
while "feinsum.calling.call" not in sys.modules:
    feinsum.einsum("ij,jk->ik", A, A)
    n_calls += 1
print(n_calls)
small = np.ones((4, 4))
from feinsum.contraction import _pairwise
print(_pairwise.einsum("ij,jk->ik", (small, small)) is NotImplemented)
"""


def test_programs_that_compute_for_long_choose_among_kernels():
    """Calls that took a quarter of a second go on in Python; short ones never do."""
    printed = run_python("-c", LONG_PROGRAM).stdout.split()
    assert int(printed[0]) > 1
    assert printed[1] == "False"


def test_a_call_is_numpys_for_users(monkeypatch):
    """``feinsum.einsum`` and ``numpy.einsum`` agree on scalars, views and warnings."""
    A = np.full((2, 2), 1e300)
    assert np.isinf(feinsum.einsum("ij,jk->ik", A, A)).all()
    assert type(feinsum.einsum("ij,ij", A, A)) is np.float64
    assert feinsum.einsum("ij->ji", A).base is A
    with pytest.raises(feinsum.FeinsumError, match="extent"):
        feinsum.einsum("ij,jk", A, np.ones((3, 3)))


METHODS = {
    "packed": ("ij,jk->ik", (150, 300), (300, 170)),
    "packed, nothing in runs": ("aib,bja->ji", (9, 40, 11), (11, 50, 9)),
    "batch of products": ("bij,bjk->bik", (7, 30, 40), (7, 40, 50)),
    "rows in runs": ("ji,jk->ki", (30, 7), (30, 5000)),
    "rows copied": ("ij,ekj->eki", (9, 8), (600, 5, 8)),
    "rows copied for each entry of the batch": (
        "bij,bnj->bni",
        (90, 3, 3),
        (90, 24, 3),
    ),
    "terms in runs": ("ij,j->i", (300, 2000), (2000,)),
    "several terms, the last in runs": ("iajb,ajb->i", (30, 6, 20, 50), (6, 20, 50)),
    "one sum": ("ij,ij->", (3, 40_003), (3, 40_003)),
    "entries of the batch in runs": ("ije,je->ie", (5, 6, 300), (6, 300)),
    "one operand without the batch": ("ij,je->ie", (12, 9), (9, 4000)),
    "elementwise": ("ij,ji->ij", (90, 70), (70, 90)),
    "two turned operands": ("ijk,kij->jki", (37, 18, 35), (35, 37, 18)),
    "a small operand across the result": ("ijk,kj->jik", (40, 9, 50), (50, 9)),
    "small operands across the result": ("kj,ki->ijk", (30, 21), (30, 25)),
    "in place": ("kj,ijk,jik,j->kij", (33, 18), (35, 18, 33), (18, 35, 33), (18,)),
    "in place after a sum": ("ijk,kl,jli->lij", (12, 18, 30), (30, 35), (18, 35, 12)),
    "lanes of four": ("bdc,bc->dc", (60, 13, 4), (60, 4)),
    "outer": ("i,jk->jki", (40,), (30, 50)),
    "sum before the product": ("ijk,jl->il", (20, 30, 40), (30, 50)),
    "network": ("pqrs,pi,qj,rk,sl->ijkl", (9,) * 4, *[(9, 5)] * 4),
    "network of a batch": ("xre,rij,ej->xei", (3, 3, 500), (3, 10, 10), (500, 10)),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*zip([*METHODS] * 2, cycle(["f4", "c16", "f8", "c8", "f8"]), strict=False)],
)
def test_every_method_of_the_kernel_is_right(name, dtype, monkeypatch):
    """With one thread, and with more than there are parts of any size."""
    text, *shapes = METHODS[name]
    rng = np.random.default_rng(0)
    operands = [rng.standard_normal(shape) for shape in shapes]
    if dtype[0] == "c":
        operands = [x + 1j * rng.standard_normal(x.shape) for x in operands]
    operands = [x.astype(dtype) for x in operands]
    exact = [x.astype("c16" if dtype[0] == "c" else "f8") for x in operands]
    path = np.einsum_path(text, *exact, optimize="greedy")[0]
    expected = np.einsum(text, *exact, optimize=path)
    scale = np.einsum(text, *map(abs, exact), optimize=path)
    tolerance = 1e-6 if dtype in ("f4", "c8") else 1e-14
    for n_threads in ("1", "3"):
        monkeypatch.setenv("FEINSUM_NUM_THREADS", n_threads)
        result = compute(text, *operands)
        assert result.dtype == dtype
        assert np.all(abs(result - expected) <= 5 * tolerance * scale)


@pytest.mark.parametrize("shape", [(3, 4, 5), (40, 30, 20)])
def test_products_of_several_arrays_are_computed_here(shape, monkeypatch):
    """Without a sum, too: numpy's loop over all of them reads some across."""
    monkeypatch.setattr(np, "einsum", None)
    a, b, c = (RNG.standard_normal(shape) for _ in range(3))
    b, c = b.transpose(2, 0, 1).copy(), c.transpose(1, 2, 0).copy()
    result = compute("ijk,kij,jki,j->jik", a, b, c, c[:, 0, 0])
    product = a * b.transpose(1, 2, 0) * c.transpose(2, 0, 1) * c[:, 0, 0][:, None]
    np.testing.assert_allclose(result, product.transpose(1, 0, 2), 1e-14)


@pytest.mark.parametrize("output", ["i", "j", "", "ij"])
def test_sums_of_complex_numbers_keep_infinities(output):
    """An infinite number is not multiplied by (1, 0), whose second part makes a NaN."""
    x = np.full((9, 12), 2 + 1j)
    x[3, 4] = complex(np.inf, 1)
    result = compute(f"ij->{output}", x)
    np.testing.assert_array_equal(result, np.einsum(f"ij->{output}", x))


def test_other_ways_to_write_a_call_end_in_the_extension():
    """Index lists, ``tensordot`` and ``contract``, with numpy's results and types."""
    A, B = RNG.standard_normal((5, 6)), RNG.standard_normal((6, 7))
    np.testing.assert_allclose(feinsum.einsum(A, [0, 1], B, [1, 2], [0, 2]), A @ B)
    np.testing.assert_allclose(feinsum.tensordot(A, B, 1), A @ B)
    np.testing.assert_allclose(feinsum.contract("ij,jk->ik", A, B), A @ B)
    with pytest.raises(feinsum.FeinsumError, match="best"):
        feinsum.einsum("i,i->", A[0], A[0], optimize="best")
    assert type(feinsum.contract("ij,ij->", A, A)) is np.float64


NETWORK_TOLERANCES = {"f4": 1e-3, "c8": 1e-3, "f8": 1e-9, "c16": 1e-9}


def random_network(seed):
    """Terms of up to three indices that lie close to each other, so that intermediates
    are small: diagonals, hyperedges, scalars, parts that share nothing, axes that are
    broadcast, and operands of any strides.
    """
    rng = np.random.default_rng(seed)
    n, n_indices = rng.integers(2, 60), rng.integers(2, 90)
    names = [get_symbol(200 + k) for k in range(n_indices)]
    extents = rng.choice([1, 2, 2, 3], n_indices)
    dtype = rng.choice([*NETWORK_TOLERANCES])
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


@pytest.mark.parametrize("seed", spread(range(40), 10))
def test_random_networks(seed):
    """Five of each seed; every one of them is answered here."""
    for part in range(5):
        terms, output, operands = random_network(5 * seed + part)
        result = np.asarray(compute(f"{','.join(terms)}->{output}", *operands))
        expected = expected_result(terms, output, operands)
        assert result.dtype == operands[0].dtype
        assert result.shape == expected.shape
        tolerance = NETWORK_TOLERANCES[result.dtype.str[1:]]
        scale = np.abs(expected).max(initial=0.0)
        np.testing.assert_allclose(result, expected, tolerance, tolerance * scale)


@pytest.mark.parametrize("n", [33, 3000])
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


def test_networks_that_take_long_are_left_to_python():
    """It searches for longer, and can be interrupted between two steps."""
    operands = [np.broadcast_to(1.0, (9,) * 13) for _ in range(3)]
    assert compute("abcdefghijklm,abcdefghijkln,nopqrstuvwxyz->mopq", *operands) is (
        NotImplemented
    )


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("...ij,...jk->...ik", [(4, 1, 2, 3), (5, 3, 2)]),
        ("...ij,...jk", [(4, 2, 3), (3, 2)]),
        ("i...,j...->...ij", [(2, 3, 4), (5, 4)]),
        ("...", [(2, 3)]),
        ("...ii->...i", [(4, 3, 3)]),
        ("...,...->...", [(), (2, 3)]),
        ("k...,k->...", [(2,), (2,)]),
        ("i...i...", [(2, 2)]),
    ],
)
def test_an_ellipsis_is_further_axes(text, shapes):
    """From the right, broadcast, and first in a result that is not written."""
    operands = [RNG.standard_normal(shape) for shape in shapes]
    result = compute(text, *operands)
    if "i...i..." in text:
        assert result is NotImplemented
        return
    expected = np.einsum(text, *operands)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected)


def test_calls_that_python_has_chosen_go_on_as_they_were():
    """After a quarter of a second, unless a kernel of their own is faster."""
    from feinsum.contraction import _pairwise

    operands = tuple(RNG.standard_normal((90, 90)) for _ in range(3))
    text = "ij,jk,kl->il"
    before = compute(text, *operands)
    _pairwise.set_spent_s(1e6)
    assert compute(text, *operands) is NotImplemented
    assert (_pairwise.einsum(text, operands, True) == before).all()
    assert (feinsum.einsum(text, *operands) == before).all()
