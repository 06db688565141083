"""Calls at the edges: extents of 0 and 1, offsets beyond 32 bits, full memory."""

from __future__ import annotations

import tracemalloc
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from feinsum import call_einsum, contract, einsum, explain, tune
from feinsum.calling import clear_call_cache, prepare_call
from feinsum.errors import FeinsumError, InvalidEinsumError, MeasurementError
from feinsum.measure import cases
from feinsum.targets.host.kernel import HostKernel
from tests.calling.comparing import NO_FACTS, assert_as_numpy
from tests.portions import spread

HERE = {"database": NO_FACTS, "device": "host"}
CLASSES = [
    "ij,jk->ik", "bhqd,bhkd->bhqk", "ij,ij->", "ii->", "baa,bcc->ac", "i,j->ij",
    "ai,bi,aj,bj->", "xre,rij,ej->xei", "ij->ji",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _fresh():
    """Calls of one form share a kernel, here as for users."""
    clear_call_cache()
    yield
    clear_call_cache()


def operands(subscripts, extents, dtype="f8"):
    """Small whole numbers, which every order of a sum adds up exactly."""
    terms = subscripts.split("->")[0].split(",")
    rng = np.random.default_rng(0)
    shapes = [[extents[i] for i in term] for term in terms]
    return [rng.integers(-2, 3, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize(
    ("operand", "words"),
    [
        (None, "operand 1 of type NoneType cannot be read by numpy"),
        ([[1.0], [2.0, 3.0]], "operand 1 of type list cannot be read by numpy"),
        (np.ma.masked_less(np.eye(3), 0.5), "operand 1 of type MaskedArray hides"),
        (np.ones((3, 3), "S3"), r"operand 1 has dtype \|S3"),
    ],
)
def test_a_refused_operand_has_its_position(operand, words):
    """By the call itself, and by what explains, tunes or prepares it."""
    for use in (call_einsum, einsum, explain, contract, tune, prepare_call):
        with pytest.raises(FeinsumError, match=words):
            use("ij,jk->ik", np.ones((3, 3)), operand)
    with pytest.raises(FeinsumError, match="operand 1 has dtype object; supported"):
        tune("ij,jk->ik", np.ones((3, 3)), np.ones((3, 3), object))


@pytest.mark.parametrize("subscripts", ["ij->i", "->", ""])
def test_a_call_without_operands_is_refused(subscripts):
    for use in (call_einsum, einsum, contract):
        with pytest.raises(InvalidEinsumError, match="0 operands were given"):
            use(subscripts)


# extents of 0 and 1


@pytest.mark.parametrize("subscripts", CLASSES)
def test_an_extent_of_zero_gives_what_numpy_gives(subscripts):
    """Whichever index has it: nothing, or zeros; of every dtype."""
    indices = sorted(set(subscripts) - set(",->"))
    for index in indices:
        for dtype in ("c16", "?"):
            extents = {**dict.fromkeys(indices, 3), index: 0}
            assert_as_numpy(subscripts, *operands(subscripts, extents, dtype))
    assert_as_numpy(subscripts, *operands(subscripts, dict.fromkeys(indices, 0)))


@pytest.mark.parametrize("subscripts", CLASSES)
def test_extents_of_one_give_what_numpy_gives(subscripts):
    """All of them, or one index among longer ones: the first or the last."""
    indices = sorted(set(subscripts) - set(",->"))
    number = CLASSES.index(subscripts)
    some = indices[:1] if number % 2 else indices[-1:]
    for ones in (indices, some) if number % 3 == 0 else (some,):
        extents = dict.fromkeys(indices, 5) | dict.fromkeys(ones, 1)
        assert_as_numpy(subscripts, *operands(subscripts, extents))


def test_zero_and_one_meet_as_in_numpy():
    """An axis of one entry is broadcast to none."""
    assert_as_numpy("ij,ij->i", np.ones((3, 1)), np.ones((3, 0)))
    assert_as_numpy("ij,ij->ij", np.ones((1, 0)), np.ones((4, 1)))


# counts and offsets beyond 32 bits


@pytest.mark.parametrize(
    ("n", "subscripts"),
    [(2**31 - 2**20, "i->"), (2**31, "i->i"), (2**32 + 1, "i,i->"), (2**40, "i,j->j")],
)
def test_a_kernel_of_more_entries_than_it_counts_is_refused(n, subscripts):
    """Never counted modulo 2**32; nothing of that size is made.

    Numpy computes such calls, unless a recorded recipe is asked for.
    """
    huge = np.broadcast_to(np.int8(1), (n,))
    given = [huge, np.ones(3, "i1")] if "j" in subscripts else [huge, huge]
    tracemalloc.start()
    with pytest.raises(InvalidEinsumError, match="at most 2146435071") as caught:
        call_einsum(
            subscripts, *given[: subscripts.count(",") + 1], **HERE, on_miss="raise"
        )
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert caught.value.rules == ("extent",)


def test_a_result_of_more_entries_than_a_kernel_counts_is_refused():
    """Though its operands are small."""
    with pytest.raises(InvalidEinsumError, match="at most 2146435071"):
        call_einsum(
            "i,j->ij",
            np.ones(2**16, "i1"),
            np.ones(2**16, "i1"),
            **HERE,
            on_miss="raise",
        )


def test_nearly_as_many_entries_as_a_kernel_counts_are_all_read():
    """The first and the last one, which are all that is not zero."""
    x = np.zeros(2**31 - 2**20 - 1, "i1")  # pages that nobody wrote take no memory
    x[0], x[-1] = 2, 5
    assert call_einsum("i->", x, **HERE) == 7


def test_a_nest_of_more_points_than_32_bits_count_is_right():
    """Three thousand million products, of views in which each entry is read often."""
    a, b = np.ones(60_000, "i8"), np.ones(50_000, "i8")
    assert call_einsum("i,j->", a, b, **HERE) == 3_000_000_000


def test_sums_of_small_integers_wrap():
    """A sum of twenty million terms, beyond 2**32, is numpy's, modulo 2**8.

    C does not say what happens when integers with a sign overflow, and gcc makes wrong
    code of such sums.
    """
    n, m = 40_000, 500
    entries = np.random.default_rng(0).integers(-100, 100, n).astype("i1")
    x = np.broadcast_to(entries[:, None], (n, m))
    expected = np.int64((entries.astype("i8") ** 2).sum() * m).astype("i1")
    assert prepare_call("ij,ji->", x, x.T, **HERE).run([x, x.T]) == expected


@pytest.fixture
def sparse(tmp_path):
    """Five rows of 10**9 entries in a file that takes some pages."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(5 * 10**9)
    rows = np.memmap(path, "i1", "r+", shape=(5, 10**9))
    for k in range(5):
        rows[k, :20] = k + 1
        rows[k, -20:] = 2 * k + 1
        rows[k, 500_000_000] = 7 - k
    rows.flush()
    return np.asarray(np.memmap(path, "i1", "r", shape=(5, 10**9)))


VIEWS = {
    "first columns": lambda x: x[:, :10],
    "far columns": lambda x: x[:, ::250_000_000],
    "every other row": lambda x: x[::2, :10],
    "backwards": lambda x: x[::-1, -1:-20:-2],
    "far rows alone": lambda x: x[4:, ::100_000_000],
    "rows that repeat": lambda x: np.broadcast_to(x[4, -10:], (6, 10)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_entries_beyond_four_gigabytes_are_found(name, sparse):
    """Offsets do not fit 32 bits; steps of an axis do not, either."""
    view = VIEWS[name](sparse)
    for subscripts in ("ij->i", "ij->j", "ij,kj->ik", "ij,ij->"):
        given = [view] * (subscripts.count(",") + 1)
        assert_as_numpy(subscripts, *given, device="host")


# memory


def free(n_bytes):
    """What psutil says where so much is free."""
    return SimpleNamespace(available=n_bytes, total=1 << 34)


CROWDED = {
    "a copy": ("ij,j->i", [np.broadcast_to(np.float32(1), (40_000, 30_000)), 1.0]),
    "a result": ("i,j->ij", [np.ones(40_000), np.ones(30_000)]),
    "a result of views": (
        "i,j->ij", [np.broadcast_to(1.0, 40_000), np.broadcast_to(1.0, 30_000)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CROWDED)
def test_what_does_not_fit_the_memory_is_refused_before_anything_is_made(
    name, monkeypatch
):
    """No copy is made, no result, no kernel is built; the message says what to do."""
    subscripts, given = CROWDED[name]
    if len(given) == 2 and np.ndim(given[1]) == 0:
        given = [given[0], np.ones(given[0].shape[1])]
    monkeypatch.setattr("psutil.virtual_memory", lambda: free(1 << 29))
    monkeypatch.setattr(HostKernel, "of", lambda _: pytest.fail("a kernel is built"))
    tracemalloc.start()
    with pytest.raises(MeasurementError, match=r"GB .* are free: compute it in parts"):
        call_einsum(subscripts, *given, **HERE)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_a_copy_that_has_no_room_in_a_later_call_is_refused(monkeypatch):
    """The kernel is there, and the memory is not any more."""
    x = np.broadcast_to(np.float32(1), (40_000, 3_000))
    y = np.ones(3_000)
    call = prepare_call("ij,j->i", x[:400], y, **HERE)
    assert np.array_equal(call.run([x[:400], y]), [3_000.0] * 400)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free(1 << 29))
    (_, take), *_ = call.inputs
    monkeypatch.setattr("feinsum.result_memory.CHECKED_BYTES", 1 << 10)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free(1 << 11))
    with pytest.raises(MeasurementError, match="a copy of an operand"):
        take(x[:400])


def test_a_check_of_a_large_view_copies_a_part_at_a_time(monkeypatch):
    """Entries of the result are compared on the operands of the call."""
    monkeypatch.setattr(cases, "BOX_ENTRIES", 1 << 16)
    x = np.broadcast_to(np.arange(6_000.0)[:, None], (6_000, 5_000))
    tracemalloc.start()
    found = call_einsum("ij,ji->", x, x.T, **HERE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == np.sum(np.arange(6_000.0) ** 2) * 5_000
    assert peak < 1 << 25  # a copy takes 240 MB


# what is not finite


ODD_REALS = [np.nan, np.inf, -np.inf]
ODD_NUMBERS = [
    *((dtype, value) for dtype in ("f4", "f8", "c8", "c16") for value in ODD_REALS),
    *((dtype, complex(np.inf, np.nan)) for dtype in ("c8", "c16")),
]


@pytest.mark.parametrize(("dtype", "value"), spread(ODD_NUMBERS, 5))
@pytest.mark.parametrize("subscripts", ["ij->", "ij,jk->ik", "ij,ij->ij"])
def test_what_is_not_finite_is_where_numpy_has_it(subscripts, value, dtype):
    """In sums, beside others of its kind, and in products with zeros."""
    extents = dict.fromkeys("ijk", 33)
    arrays = operands(subscripts, extents, dtype)
    arrays[0][3, 4] = value
    arrays[0][5, 4:6] = value, -value
    arrays[0][7, 7] = value
    arrays[-1][4, :5] = 0 if len(arrays) > 1 else arrays[-1][4, :5]
    with np.errstate(all="ignore"):
        expected = np.asarray(np.einsum(subscripts, *arrays))
        found = call_einsum(subscripts, *arrays, **HERE)
    assert np.array_equal(np.isfinite(found), np.isfinite(expected))
    finite = np.isfinite(expected)
    assert np.array_equal(found[finite], expected[finite])
    if np.dtype(dtype).kind == "f":
        assert np.array_equal(found, expected, equal_nan=True)


# results that lie on operands


ALIASED = {
    "the operand itself": lambda x: (x[:6, :6], x[:6, :6]),
    "its transpose": lambda x: (x[:6, :6], x[:6, :6].T),
    "one row further": lambda x: (x[:6, :6], x[1:7, :6]),
    "one column further": lambda x: (x[:6, :6], x[:6, 1:7]),
    "one row before": lambda x: (x[1:7, :6], x[:6, :6]),
    "backwards": lambda x: (x[:6, :6], x[5::-1, :6]),
    "between its rows": lambda x: (x[::2][:6, :6], x[1::2][:6, :6]),
    "the corner": lambda x: (x[:6, :6], x[5:11, 5:11]),
}


@pytest.mark.parametrize(
    ("subscripts", "name"),
    spread(product(["ij,jk->ik", "ij,ij->ij", "ij->ji"], ALIASED), 12),
)
def test_a_result_that_lies_on_an_operand_is_that_of_what_was_there(name, subscripts):
    """As if the operands had been copied before; nothing else is written."""
    memory = np.arange(13.0 * 13).reshape(13, 13) % 5
    operand, out = ALIASED[name](memory)
    given = [operand] * (subscripts.count(",") + 1)
    expected = np.einsum(subscripts, *[x.copy() for x in given])
    untouched = memory.copy()
    ALIASED[name](untouched)[1][...] = expected
    assert call_einsum(subscripts, *given, out=out, **HERE) is out
    assert np.array_equal(memory, untouched)


def test_a_result_that_is_the_second_operand_is_that_of_what_was_there():
    """Though the first one lies elsewhere."""
    a, b = np.arange(36.0).reshape(6, 6) % 5, np.arange(36.0).reshape(6, 6) % 7
    expected = a @ b
    call_einsum("ij,jk->ik", a, b, out=b, **HERE)
    assert np.array_equal(b, expected)
