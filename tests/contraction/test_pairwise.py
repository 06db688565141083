"""The kernel of two operands computes what numpy does, for any axes and strides."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from itertools import permutations, product

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from feinsum.contraction import (
    DTYPES,
    IS_BUILT,
    Affine,
    contract_pair,
    direct,
    find_steps,
    run_steps,
)
from feinsum.contraction.pairwise import encode_indices
from tests.children import run_python

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="installed without a compiler")

TOLERANCES = {"f4": 1e-5, "c8": 1e-5, "f8": 1e-13, "c16": 1e-13}
N_PROCESSORS = len(getattr(os, "sched_getaffinity", lambda _: [0])(0))
EXTENTS = (0, 1, 2, 3, 5, 8, 13, 17, 33)


def contracted(subscripts, first, second, out=None):
    """The result in an array that had no number before."""
    inputs, output = subscripts.split("->")
    terms = inputs.split(",")
    if out is None:
        out = np.full_like(np.einsum(subscripts, first, second), np.nan)
    contract_pair(encode_indices(*terms, output), first, second, out)
    return out


def assert_right(subscripts, first, second, out=None):
    """To rounding, relative to the sum of the magnitudes."""
    expected = np.einsum(subscripts, first, second)
    found = contracted(subscripts, first, second, out)
    scale = np.einsum(subscripts, abs(first), abs(second)).astype(float)
    tolerance = TOLERANCES[first.dtype.str[1:]]
    assert found.dtype == expected.dtype
    assert np.all(abs(found - expected) <= tolerance * scale)


@st.composite
def arrays(draw, term, extents, dtype):
    """Contiguous, in steps, backwards, and with axes that are broadcast."""
    shape = [extents[index] for index in term]
    seed = draw(st.integers(0, 99))
    steps = [draw(st.sampled_from((1, 1, 2, -1))) for _ in term]
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(
        [n * abs(s) for n, s in zip(shape, steps, strict=True)]
    )
    if dtype[0] == "c":
        values = values + 1j * rng.standard_normal(values.shape)
    order = draw(st.sampled_from("CF"))
    array = np.array(values, dtype, order=order)[
        tuple(slice(None, None, s) for s in steps)
    ]
    for axis, index in enumerate(term):
        if term.count(index) == 1 and draw(st.integers(0, 9)) == 0:
            array = array[tuple(slice(0, 1) if k == axis else slice(None)
                                for k in range(array.ndim))]  # fmt: skip
    return np.asarray(array)


def drawn(term, extents, dtype):
    values = np.random.default_rng(len(term)).standard_normal(
        [2, *(extents[index] for index in term)]
    )
    complex_values = values[0] + 1j * values[1] if dtype[0] == "c" else values[0]
    return np.asarray(complex_values, dtype)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("extents", [(3, 40, 17), (35, 2, 50), (5, 9, 1), (20, 33, 4)])
def test_products_without_a_sum_in_any_order(extents, dtype):
    """Neighbours in the operands are none in the result; edges of tiles are partial."""
    named = dict(zip("abc", extents, strict=True))
    for order in permutations("abc"):
        for first, second in (("abc", "b"), ("abc", "ca"), ("cba", "abc"), ("a", "cb")):
            operands = (drawn(term, named, dtype) for term in (first, second))
            assert_right(f"{first},{second}->{''.join(order)}", *operands)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n", [16, 37, 300])
def test_sums_along_neighbours_that_are_none_in_the_result(n, dtype):
    """Their results are spread; ``r`` is a row that few have, or all of them."""
    extents = {"i": n, "j": 5, "k": 6, "r": 2}
    for subscripts in ("kji,ki->ij", "kji,jki->ij", "ji,kji->ij", "krji,kji->rij"):
        terms = subscripts.partition("->")[0].split(",")
        assert_right(subscripts, *(drawn(term, extents, dtype) for term in terms))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    "subscripts", ["b,cba->ac", "cba,b->ac", "ba,bac->cb", "ad,abcd->dcb"]
)
def test_results_in_another_order_than_a_large_operand(subscripts, dtype):
    """They are computed in its order; ``out`` may have any strides."""
    first, second, output = subscripts.replace("->", ",").split(",")
    extents = {"a": 19, "b": 23, "c": 34, "d": 9}
    operands = [drawn(term, extents, dtype) for term in (first, second)]
    assert_right(subscripts, *operands)
    spread = np.empty([2 * extents[index] for index in output], dtype)
    assert_right(subscripts, *operands, spread[::2, ::-2] if len(output) == 2 else None)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("subscripts", [
    "bda,dc->abc", "dca,bd->abc", "dbea,ec->abcd", "deca,be->abcd", "ecba,bc->ae",
    "acd,dbc->ab", "cad,dcb->ab", "cda,bcd->ab", "bda,ed->eab", "dae,da->e",
])  # fmt: skip
@pytest.mark.parametrize("least", [5, 19])
def test_large_operands_are_read_by_lines(subscripts, dtype, least):
    """Lines, runs and blocks of rows, columns and terms are partial."""
    first, second, output = subscripts.replace("->", ",").split(",")
    # the terms lie across each other in two large operands
    extents = dict.fromkeys("abcde", 58 if len(second) == 3 else least)
    lengths = (61, 19, 67) if len(first) == 3 else (33, 9, 19, 27)
    extents |= dict(zip(first, lengths, strict=True))
    operands = [drawn(term, extents, dtype) for term in (first, second)]
    assert max(x.size for x in operands) >= 1 << 16
    assert_right(subscripts, *operands)
    spread = np.empty([2 * extents[index] for index in output], dtype)
    assert_right(subscripts, *operands, spread[(np.s_[::2],) * len(output)])


APART = {
    "lone sums come first": ("abc,badecf->bea", (3, 8, 5, 30, 4, 3)),
    "short runs are summed last": ("acbd,->bc", (50, 2, 9, 5)),
    "joined runs are not short": ("bca,->b", (3, 32, 512)),
    "short rows are repeated": ("acd,bd->acbd", (7, 41, 10, 6)),
    "rows of one are short": ("ab,cd->cba", (10, 300, 8, 2)),
    "terms lie across each other": ("cab,abc->", (61, 29, 53)),
    "and in a batch": ("cab,abcd->d", (31, 29, 83, 2)),
    "lanes across the result": ("bacd,bcad->bda", (50, 3, 20, 10)),
    "two terms in another order": ("bac,->ca", (40, 2, 48)),
    "many rows and few terms": ("ba,->a", (9001, 2)),
    "many columns": ("ka,kb->ab", (4, 5003, 40)),
    "entries of a batch across": ("cb,ba->cab", (3, 130, 20)),
    "both operands across": ("ba,ba->ab", (130, 50)),
}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("case", APART)
@pytest.mark.usefixtures("usual_calls")
def test_products_that_are_computed_apart(case, dtype):
    """Blocks, tiles and vectors are partial; lengths belong to the sorted letters."""
    subscripts, lengths = APART[case]
    letters = sorted({*subscripts} & {*"abcdefk"}, key="kabcdef".index)
    extents = dict(zip(letters, lengths, strict=True))
    terms = subscripts.partition("->")[0].split(",")
    assert_right(subscripts, *(drawn(term, extents, dtype) for term in terms))
    operands = [drawn(term, extents, dtype) for term in terms if term]
    alone = subscripts.replace(",->", "->")
    found = direct.compute(alone, tuple(operands), True)
    exact = np.einsum(alone, *(operand.astype(complex) for operand in operands))
    np.testing.assert_allclose(found, exact, rtol=0, atol=2e-3)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 23, 70])
def test_sums_in_which_one_operand_lies_in_runs(n, dtype):
    """The other has one factor for a run; runs may be shorter than a vector."""
    extents = {"a": 5, "b": 9, "c": n}
    for subscripts in (
        "abc,->b",
        ",bac->",
        "abc,b->a",
        "a,abc->b",
        "bac,ab->",
        "a,bac->",
    ):
        terms = subscripts.partition("->")[0].split(",")
        assert_right(subscripts, *(drawn(term, extents, dtype) for term in terms))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    "subscripts",
    ["da,acd->ca", "db,cabd->cba", "abd,da->db", "dca,acbd->abc", "acd,cbad->acb"],
)
def test_a_small_operand_whose_neighbours_are_none_in_the_large_one(subscripts, dtype):
    """It is copied, once, also if no copy has neighbours: along broadcast axes."""
    extents = {"a": 33, "b": 9, "c": 11, "d": 17}
    first, second = (
        drawn(term, extents, dtype) for term in subscripts.partition("->")[0].split(",")
    )
    assert_right(subscripts, first, second)
    assert_right(subscripts, np.broadcast_to(first[:1], first.shape), second)
    assert_right(subscripts, first, np.broadcast_to(second[..., :1], second.shape))
    assert_right(subscripts, first[:, ::-1], second[::-1])


@pytest.mark.usefixtures("usual_calls")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("subscripts", [
    "abc->a", "abc->b", "abc->ac", "cab->ca", "bca->ab", "aab->b", "abc->",
    "ab,b->", "ab,a->a", "abc,cb->b", "e,fea->fe", "ac,db->da", "abc,bd,cde->ad",
])  # fmt: skip
def test_sums_over_indices_of_one_operand(subscripts, dtype):
    """They are taken before products, or within them, at all lengths of runs."""
    for n in (1, 2, 6, 19, 130):
        extents = {"a": n, "b": 7, "c": 12, "d": 5, "e": 21, "f": 10}
        terms = subscripts.partition("->")[0].split(",")
        operands = [drawn(term, extents, dtype) for term in terms]
        expected = np.einsum(subscripts, *operands, optimize=True)
        result = direct.compute(subscripts, tuple(operands), True)
        scale = np.einsum(subscripts, *map(abs, operands), optimize=True)
        assert result.dtype == operands[0].dtype
        assert np.all(abs(result - expected) <= TOLERANCES[dtype] * scale)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("subscripts", [
    "kib,kjb->ijb", "ikb,bkj->ijb", "bik,kbj->jib", "kibc,ckbj->ijcb", "bki,bkj->ijb",
    "kib,kjb->bij",
])  # fmt: skip
@pytest.mark.parametrize("extents", [(40, 37, 6, 19), (7, 5, 30, 40), (130, 140, 3, 5)])
def test_products_of_a_batch_that_is_innermost_in_the_result(
    subscripts, dtype, extents
):
    """Some entries of the batch are computed at a time, and fewer the last time."""
    named = dict(zip("ijkb", extents, strict=True)) | {"c": 2}
    first, second, output = subscripts.replace("->", ",").split(",")
    operands = [drawn(term, named, dtype) for term in (first, second)]
    assert_right(subscripts, *operands)
    spread = np.empty([2 * named[index] for index in output], dtype)
    assert_right(subscripts, *operands, spread[(np.s_[::-2],) * len(output)])


def test_blocks_of_a_large_result_have_some_of_its_rows():
    """The last block has fewer of them."""
    named = {"i": 1501, "j": 1003, "k": 2, "b": 3}
    assert_right("ikb,kjb->ijb", *(drawn(term, named, "f8") for term in ("ikb", "kjb")))


def test_infinite_products_across_the_result():
    """An infinity times (1, 0) is not a number, so nothing is multiplied by one."""
    a = np.full((16, 17), 1e200 + 0j)
    assert (contracted("ba,ba->ab", a, a) == complex("inf+0j")).all()
    steps = find_steps(["ab"], "a")
    assert (run_steps(steps, [np.full((3, 4), complex("inf"))]) == complex("inf")).all()


@pytest.mark.usefixtures("usual_calls")
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n_rows", [64, 100, 97])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 9])
def test_sums_of_rows_shorter_than_a_vector(dtype, n_rows, length):
    """Several of them fill one, if their number has a divisor."""
    array = drawn("abc", {"a": 12, "b": n_rows, "c": length}, dtype)
    for subscripts in ("abc->ac", "abc->ca", "abc->c"):
        found = direct.compute(subscripts, (array,), True)
        expected = np.einsum(subscripts, array.astype(float))
        scale = np.einsum(subscripts, abs(array).astype(float))
        assert np.all(abs(found - expected) <= TOLERANCES[dtype] * scale)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_both_operands_may_be_broadcast(dtype):
    """All entries are one number then, however many lanes there are."""
    number = drawn("a", {"a": 1}, dtype)
    for n in (1, 9, 40):
        assert_right("a,a->a", *[np.broadcast_to(number, (n,))] * 2)


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(data=st.data())
def test_any_contraction(data):
    """Of ranks up to five, with diagonals, sums of one operand and empty axes."""
    letters = "abcdef"
    extents = {i: data.draw(st.sampled_from(EXTENTS)) for i in letters}
    first, second = (
        "".join(data.draw(st.lists(st.sampled_from(letters), max_size=4)))
        for _ in range(2)
    )
    used = sorted({*first, *second})
    output = "".join(data.draw(st.permutations(used))[: data.draw(st.integers(0, 5))])
    size = np.prod([float(extents[i]) for i in used])
    hypothesis.assume(size <= 1e6)
    dtype = data.draw(st.sampled_from(sorted(TOLERANCES)))
    a = data.draw(arrays(first, extents, dtype))
    b = data.draw(arrays(second, extents, dtype))
    subscripts = f"{first},{second}->{output}"
    try:
        np.einsum(subscripts, a, b)
    except ValueError:  # an index of the result that is broadcast in both
        hypothesis.assume(False)
    assert_right(subscripts, a, b)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 1, 1), "c8"), ((7, 300, 5), "f8"), ((200, 600, 90), "f4"),
     ((200, 600, 90), "c16"), ((2, 9000, 3), "f8"), ((100, 40, 60), "f8"),
     ((100, 12, 60), "c8")],
)  # fmt: skip
def test_products_of_matrices_beyond_the_blocks(dtype, shape):
    """In all orders of all axes, by all ways: packed, direct and by dot products."""
    rng, (m, k, n) = np.random.default_rng(0), shape
    extents = {"m": m, "k": k, "n": n}
    for first in map("".join, permutations("mk")):
        for second in map("".join, permutations("kn")):
            for output in map("".join, permutations("mn")):
                a, b = (rng.random([extents[i] for i in t]).astype(dtype)
                        for t in (first, second))  # fmt: skip
                assert_right(f"{first},{second}->{output}", a, b)


@pytest.mark.parametrize("dtype", ["f8", "c8"])
@pytest.mark.parametrize("subscripts", ["ka,kb->ab", "kac,kbd->abcd", "kac,kbd->acbd"])
def test_results_that_fit_no_cache(subscripts, dtype):
    """They are written past the caches: whole lines so, the others as they lie."""
    extents = {"k": 5, "a": 130, "b": 61, "c": 24, "d": 24}
    if subscripts == "ka,kb->ab":
        extents |= {"a": 2064, "b": 2112}
    rng = np.random.default_rng(0)
    a, b = (
        rng.random([extents[index] for index in term]).astype(dtype)
        for term in subscripts.split("->")[0].split(",")
    )
    assert_right(subscripts, a, b)
    left, right = a.reshape(5, -1), b.reshape(5, -1)
    rows = left.T @ right
    memory = np.full((rows.size + 16) * a.itemsize, 7, np.uint8)
    start = -memory.ctypes.data % 64 + a.itemsize  # no line begins a row
    out = memory[start : start + rows.nbytes].view(dtype).reshape(rows.shape)
    contracted("ka,kb->ab", left, right, out)
    np.testing.assert_allclose(out, rows, rtol=1e-5)
    assert set(memory[:start]) | set(memory[start + rows.nbytes :]) == {7}


def test_long_sums_of_single_precision_are_accurate():
    """The error does not grow with the number of terms."""
    n = 1 << 20
    a = np.random.default_rng(0).random((3, n), np.float32)
    ones = np.ones(n, np.float32)
    exact = a.sum(axis=1, dtype=float)
    for order in "CF":
        given = np.array(a, order=order)
        for found in (
            contracted("ij,j->i", given, ones),
            contracted("ij,j->i", given, ones[::-1]),
            contracted("j,ij->i", ones, given),
        ):
            assert np.max(abs(found / exact - 1)) < 2e-6
    # terms that lie anywhere: all additions to a large total round in one direction
    tenths, ones = np.full(8 * n, 0.1, "f4")[::2], np.ones(8 * n, "f4")[::2]
    assert abs(contracted("i,i->", tenths, ones) / (0.4 * n) - 1) < 2e-5
    assert abs(contracted("i,ij->j", ones, tenths[:, None])[0] / (0.4 * n) - 1) < 2e-5


LONG = {
    "one result, axes in another order": ("ijab,ibja->", (8, 9, 30, 31)),
    "a result of a batch": ("ijab,ibja->i", (3, 9, 30, 31)),
    "few rows": ("ik,kj->ij", (2, 5000)),
    "a matrix of columns": ("ki,kj->ij", (5003, 20)),
    "many rows, and far more terms": ("acd,dbc->ab", (129, 97, 86, 5)),
    "rows that fill no vector": ("ki,kj->ji", (5003, 37)),
    "a vector times a matrix": ("k,kr->r", (5003, 21)),
    "a batch between": ("eh,ehd->hd", (5003, 3, 21)),
    "lanes of a short index": ("eqi,eqi->ei", (4000, 20, 10)),
    "many short sums at once": ("eqi,eiq->ei", (4000, 3, 5)),
    "short sums in runs": ("ehd,ehd->eh", (500, 3, 20)),
    "short sums of short rows": ("eh,eh->e", (5000, 9)),
    "products of a matrix and a transpose": ("ij,ji->", (303, 301)),
    "transposed with an axis between": ("ijk,kji->", (41, 39, 30)),
    "transposed in a batch": ("bij,jbi->b", (3, 38, 43)),
    "short runs, and a small operand": ("bijk,jik->b", (70, 9, 11, 3)),
    "sums in runs of a batch in steps": ("edh,edh->he", (70, 9, 35)),
}
"""Sums of many terms with few results, which threads share, or of many short ones."""


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", LONG)
def test_sums_with_few_results_or_few_terms(monkeypatch, name, dtype):
    """However many threads share a sum, in results of any strides."""
    subscripts, shape = LONG[name]
    terms = subscripts.split("->")[0].split(",")
    letters = dict.fromkeys("".join(terms))
    extents = dict(zip(letters, [*shape, 13, 13], strict=False))
    rng = np.random.default_rng(0)

    def draw(term):
        values = rng.standard_normal([extents[i] for i in term])
        if dtype[0] == "c":
            values = values + 1j * rng.standard_normal(values.shape)
        return values.astype(dtype)

    first, second = map(draw, terms)
    n_axes = len(subscripts.split("->")[1])
    for n_threads in ("1", "3"):
        monkeypatch.setenv("OMP_NUM_THREADS", n_threads)
        assert_right(subscripts, first, second)
        if n_axes:
            extents_out = [extents[i] for i in subscripts.split("->")[1]]
            out = np.empty([2 * n for n in extents_out], dtype)
            view = out[(slice(None, None, -2),) * n_axes]
            assert_right(subscripts, first, second, view)


@pytest.mark.skipif(N_PROCESSORS < 2, reason="Linux with several processors")
def test_threads_leave_the_processor_of_the_caller():
    """A helper may run on all processors but that one; the caller as before."""
    code = """
import os, numpy as np
from pathlib import Path
from feinsum.contraction import contract_pair
from feinsum.contraction.pairwise import encode_indices
a = np.ones((600, 600))
def threads():
    contract_pair(encode_indices("ij", "jk", "ik"), a, a, np.empty((600, 600)))
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}
before = os.sched_getaffinity(0)
here = {int(path.name) for path in Path("/proc/self/task").iterdir()}
(helper,) = threads() - here
allowed = os.sched_getaffinity(helper)
print(len(before) - len(allowed), allowed < before, os.sched_getaffinity(0) == before)
"""
    variables = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
    done = run_python("-c", code, **variables)
    assert done.stdout.split() == ["1", "True", "True"]


def test_results_are_written_into_views():
    """Of any strides; what lies between their entries stays."""
    rng = np.random.default_rng(0)
    a, b = rng.random((20, 30)), rng.random((30, 40))
    out = np.full((80, 60), -1.0)
    contracted("ij,jk->ki", a, b, out[::2, ::3])
    np.testing.assert_allclose(out[::2, ::3], (a @ b).T)
    assert (out[1::2] == -1).all()
    assert (out[:, 1::3] == -1).all()


def test_more_indices_than_letters():
    """Sixty axes of extent 1 and 2."""
    first = tuple(f"i{k}" for k in range(40))
    second = tuple(f"i{k}" for k in range(20, 60))
    output = (*first[:20], *second[20:])
    long = {f"i{k}" for k in (3, 22, 30, 45)}
    a, b = (np.random.default_rng(0).random([2 if i in long else 1 for i in t])
            for t in (first, second))  # fmt: skip
    out = np.empty([2 if i in long else 1 for i in output])
    contract_pair(encode_indices(first, second, output), a, b, out)
    expected = np.einsum("ajk,jkb->ab", a.reshape(2, 2, 2), b.reshape(2, 2, 2))
    np.testing.assert_allclose(out.reshape(2, 2), expected)


def test_threads_that_call_at_once():
    """One has the pool; the others compute alone."""
    rng = np.random.default_rng(0)
    a, b = rng.random((300, 300)), rng.random((300, 300))
    expected, wrong = a @ b, []

    def call():
        results = (contracted("ij,jk->ik", a, b) for _ in range(20))
        wrong.extend(1 for result in results if not np.allclose(result, expected))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_leave_no_memory_behind():
    """Each has a megabyte or two to pack into, which goes with it."""
    import psutil

    a = np.ones((300, 300))

    def some(n):
        for _ in range(n):
            thread = threading.Thread(target=contracted, args=("ij,jk->ik", a, a))
            thread.start()
            thread.join()
        return psutil.Process().memory_info().rss

    before = some(20)
    assert some(150) - before < 100e6


FORK = """
import os, numpy as np
from feinsum.contraction import contract_pair
from feinsum.contraction.pairwise import encode_indices
a = np.ones((300, 300))
def is_right():
    out = np.empty_like(a)
    contract_pair(encode_indices("ij", "jk", "ik"), a, a, out)
    return (out == 300).all()
assert is_right()
child = os.fork()
if not child:
    os._exit(7 if is_right() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7 and is_right()
"""


def test_a_child_has_threads_of_its_own():
    """Those of its parent are not there, and locks that they held are free."""
    env = {**os.environ, "FEINSUM_NUM_THREADS": "3"}
    subprocess.run([sys.executable, "-c", FORK], env=env, check=True, timeout=60)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("subscripts", [
    "ac,cb->ab", "ca,bc->ba", "bac,bca->b", "abc,c->ab", "bca,dc->abd", "ac,bc->c",
    "ab,cab->c", "ab,ca->", "a,b->ba",
])  # fmt: skip
@pytest.mark.parametrize("least", [1, 5, 41])
def test_affine_functions_of_operands(subscripts, dtype, least):
    """They are applied to packed entries, not to those that fill the last strip."""
    first, second, output = subscripts.replace("->", ",").split(",")
    extents = {"a": 83, "b": 7 * least, "c": 13 * least, "d": 3}
    a, b = (drawn(term, extents, dtype) for term in (first, second))
    functions = Affine(-0.5, 3), Affine(2, 0.25)
    out = np.full([extents[index] for index in output], np.nan, dtype)
    contract_pair(encode_indices(first, second, output), a, b, out, functions)
    x, y = -0.5 * a.astype(float), 2 * b.astype(float)
    expected = np.einsum(subscripts, x + 3, y + 0.25, optimize=True)
    scale = np.einsum(subscripts, abs(x) + 3, abs(y) + 0.25, optimize=True)
    assert np.all(abs(out - expected) <= TOLERANCES[dtype] * scale)


def test_affine_functions_of_complex_operands_are_refused():
    """By an error: their scale would have to be complex."""
    a, out = np.eye(2, dtype=complex), np.empty((2, 2), complex)
    with pytest.raises(TypeError, match="of real arrays"):
        contract_pair(
            encode_indices("ij", "jk", "ik"), a, a, out, (Affine(2), Affine())
        )


@pytest.mark.parametrize(
    ("first", "second", "out", "kind"),
    [
        (np.ones((2, 3)), np.ones((4, 5)), np.ones((2, 5)), ValueError),
        (np.ones((2, 3)), np.ones((3, 5)), np.ones((2, 6)), ValueError),
        (np.ones((2, 3)), np.ones(3), np.ones((2, 5)), ValueError),
        (np.ones((2, 3)), np.ones((3, 5), "f4"), np.ones((2, 5)), TypeError),
        (np.ones((2, 3), int), np.ones((3, 5), int), np.ones((2, 5), int), TypeError),
        (np.ones((2, 3)), np.ones((3, 5)), np.ones((2, 5)).astype(">f8"), TypeError),
        (
            np.zeros(50, "V9").view([("x", "<f8"), ("y", "i1")])["x"][:6].reshape(2, 3),
            np.ones((3, 5)), np.ones((2, 5)), TypeError,
        ),
    ],
    ids=["extents", "result", "rank", "dtypes", "integers", "bytes", "steps"],
)  # fmt: skip
def test_what_it_does_not_take_is_refused(first, second, out, kind):
    """By an error, and nothing is read or written."""
    with pytest.raises(kind):
        contract_pair(encode_indices("ij", "jk", "ik"), first, second, out)


def test_a_result_that_is_read_only_is_refused():
    """As one of another dtype."""
    out = np.empty((2, 2))
    out.flags.writeable = False
    with pytest.raises(TypeError, match="writable"):
        contracted("ij,jk->ik", np.eye(2), np.eye(2), out)
    assert all(dtype.name in {"float32", "float64", "complex64", "complex128"}
               for dtype in DTYPES)  # fmt: skip


FORMS = {
    "lanes of the batch": "ije,je->ie",
    "lanes of the batch, one operand without it": "ij,je->ie",
    "lanes of the batch in both and the result": "ie,ie->e",
    "few of each": "eij,ej->ei",
    "short dot products": "ei,ei->e",
    "vectors of rows": "eij,ejk->eik",
    "sum factorization": "eijk,lj->eilk",
    "outer product": "ei,ej->eij",
}


@pytest.mark.parametrize("subscripts", FORMS.values(), ids=FORMS)
def test_many_small_products(subscripts):
    """Each way of the kernel, for entries that fill vectors and that do not."""
    for n, dtype in product((1, 3, 9, 40), TOLERANCES):
        rng = np.random.default_rng(n)
        extents = {"e": 517, **dict.fromkeys("ijkl", n if n < 40 else 7), "i": n}
        a, b = (rng.random([extents[i] for i in term]).astype(dtype)
                for term in subscripts.split("->")[0].split(","))  # fmt: skip
        assert_right(subscripts, a, b)
