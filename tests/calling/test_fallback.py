"""A call has a result whatever goes wrong with its kernel; one warning says why."""

from __future__ import annotations

import sqlite3
import tempfile
import warnings

import numpy as np
import pytest

import feinsum
from feinsum.calling import clear_call_cache, prepare_call
from feinsum.calling.host import building
from feinsum.errors import (
    BuildError,
    DeviceUnavailableError,
    FeinsumWarning,
    InvalidEinsumError,
    MeasurementError,
)
from feinsum.memory import use_fresh_memory
from feinsum.records import InMemoryStore
from feinsum.sparse import COO, CSF, random_uniform, to_csf, to_csr, to_dense

RNG = np.random.default_rng(0)
A, B = RNG.random((4, 5)), RNG.random((5, 3))
NO_FACTS = InMemoryStore()

FAILURES = [
    OSError(24, "Too many open files"),
    sqlite3.OperationalError("database or disk is full"),
    BuildError("gcc ended with signal 9"),
    RuntimeError("can't register atexit after shutdown"),
    ImportError("libgomp.so.1 is missing"),
    MemoryError(),
]


@pytest.fixture(autouse=True)
def _new_process():
    with use_fresh_memory():
        yield
    clear_call_cache()


def fail(monkeypatch, error):
    def build_call(*_arguments):
        raise error

    monkeypatch.setattr(building, "build_call", build_call)


@pytest.mark.parametrize("error", FAILURES, ids=lambda e: type(e).__name__)
def test_whatever_goes_wrong_in_a_build_numpy_answers(error, monkeypatch):
    """Every call, also a repeated one; the first one warns, and names the cause."""
    fail(monkeypatch, error)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(3):
            C = feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)
            np.testing.assert_allclose(C, A @ B)
        feinsum.contract("ij,jk,kl->il", A, B, B.T, database=NO_FACTS)
        feinsum.tensordot(A, B, 1)
    (warning,) = warned
    assert warning.category is FeinsumWarning
    assert str(error) in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("subscripts", "operands"),
    [
        ("ij,jk->ik", (A.astype("f2"), B.astype("f2"))),
        ("ij,jk->ik", ((9 * A).astype("i8"), (9 * B).astype("i8"))),
        ("ij,jk->ik", (A + 1j, B)),
        ("ij->ji", (A,)),
        ("ii->i", (RNG.random((3, 3)),)),
        ("ij,jk->ik", (A[:0], B)),
        ("...j,jk->...k", (RNG.random((2, 4, 5)), B)),
        ("ij,kj->ik", (A[::-1], B.T[:, ::-1])),
    ],
)
def test_numpy_answers_any_call(subscripts, operands, monkeypatch):
    """Of any dtype and memory layout, into ``out`` or a new array."""
    fail(monkeypatch, OSError("no room"))
    expected = np.einsum(subscripts, *operands)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeinsumWarning)
        found = feinsum.einsum(subscripts, *operands, database=NO_FACTS)
        out = np.full(expected.shape, 7, expected.dtype)
        assert feinsum.einsum(subscripts, *operands, out=out, database=NO_FACTS) is out
    assert (np.shape(found), found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    np.testing.assert_allclose(out, expected, rtol=2e-3)


def test_a_view_is_a_view_without_a_kernel(monkeypatch):
    """As in numpy, writing to it writes to the operand."""
    fail(monkeypatch, OSError("no room"))
    x = A.copy()
    with pytest.warns(FeinsumWarning):
        feinsum.einsum("ij->ji", x, database=NO_FACTS)[0, 1] = 7
    assert x[1, 0] == 7


def test_a_warning_is_an_error_where_the_user_asked_for_it(monkeypatch):
    """Once."""
    fail(monkeypatch, OSError("no room"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FeinsumWarning)
        with pytest.raises(FeinsumWarning):
            feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)
        feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)


def test_what_was_asked_for_is_refused(monkeypatch):
    """A named device, a recipe that has to be there, and more than there is memory."""
    fail(monkeypatch, BuildError("no"))
    with pytest.raises(BuildError):
        feinsum.einsum("ij,jk->ik", A, B, device="host", database=NO_FACTS)
    with pytest.raises(BuildError):
        feinsum.einsum("ij,jk->ik", A, B, on_miss="raise", database=NO_FACTS)
    fail(monkeypatch, MeasurementError("9 GB are needed, 1 GB are free"))
    with pytest.raises(MeasurementError):
        feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)


def test_a_kernel_that_fails_to_run_is_replaced(monkeypatch):
    """As where there is no memory for its temporaries."""
    feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)
    from feinsum.calling.host.prepared import PreparedCall

    def run(*_arguments):
        raise RuntimeError("crashed")

    monkeypatch.setattr(PreparedCall, "run", run)
    with pytest.warns(FeinsumWarning, match="crashed"):
        C = feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)
    np.testing.assert_allclose(C, A @ B)


def test_a_build_may_call_einsum(monkeypatch):
    """As a transform of the user might, in the thread that builds."""
    usual = building.build_call

    def build_call(parsed, *arguments):
        if parsed.einsum.n_operands > 1:
            total = feinsum.einsum("ij->", A, database=NO_FACTS)
            np.testing.assert_allclose(total, A.sum())
        return usual(parsed, *arguments)

    monkeypatch.setattr(building, "build_call", build_call)
    C = feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)
    np.testing.assert_allclose(C, A @ B)


@pytest.mark.parametrize("name", ["icc", "false"])
def test_calls_need_no_compiler(name, monkeypatch):
    """Such as that of a module system, inherited with ``CC``."""
    monkeypatch.delenv("FEINSUM_CC", raising=False)
    monkeypatch.setenv("CC", name)
    with pytest.warns(FeinsumWarning, match="FEINSUM_CC"):
        feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)
    C = feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)
    np.testing.assert_allclose(C, A @ B)


def test_calls_build_again_once_there_is_room(monkeypatch, tmp_path):
    """Nothing else remembers that it failed."""
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
        with pytest.warns(FeinsumWarning, match="missing"):
            feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS)
    clear_call_cache()
    assert prepare_call("ij,jk->ik", A, B, database=NO_FACTS).kernel is not None


def test_kernels_without_a_compiler_are_reported_once(monkeypatch):
    """``retrieve`` gives each kernel back, and warns once of the machine's cause."""
    monkeypatch.delenv("FEINSUM_CC", raising=False)
    monkeypatch.setenv("CC", "icc")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for n in (4, 5, 4):
            A, x = feinsum.array("A", ("n", n)), feinsum.array("x", n)
            t_unit = feinsum.generate_loopy(feinsum.einsum("ij,j->i", A, x))
            assert feinsum.retrieve(t_unit, database=NO_FACTS) is t_unit
    (warning,) = warned
    assert "FEINSUM_CC" in str(warning.message)


TREE = random_uniform((4, 5), 9, seed=0)
TENSOR = random_uniform((4, 5, 3), 20, seed=1)


@pytest.mark.parametrize(
    ("subscripts", "operands"),
    [
        ("ij,jk->ik", (TREE, B)),
        ("ijk,ja,ka->ia", (TENSOR, B, B[:3])),
        ("ijk,ja->aik", ((to_csf(TENSOR), to_csf(TENSOR, (2, 1, 0))), B)),
        ("ij,kl->kl", (to_csr(TREE), B)),
        ("ij,ij->ji", (COO((4, 5), ([1, 1], [2, 2]), [1.0, 2.0]), A)),
    ],
)
def test_sparse_operands_need_no_compiler(subscripts, operands, monkeypatch):
    """The result is that of the dense array, with the same single warning."""
    monkeypatch.delenv("FEINSUM_CC", raising=False)
    monkeypatch.setenv("CC", "icc")
    dense = [
        x if isinstance(x, np.ndarray)
        else to_dense(x[0] if isinstance(x, tuple) else x)
        for x in operands
    ]  # fmt: skip
    expected = np.einsum(subscripts, *dense)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(2):
            found = feinsum.einsum(subscripts, *operands, database=NO_FACTS)
        feinsum.einsum("ij,jk->ik", TREE, B, database=NO_FACTS)
        feinsum.einsum("ij,jk->ik", A, B, database=NO_FACTS, effort="estimate")
    found = to_dense(found) if isinstance(found, CSF) else found
    assert (np.shape(found), found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    (warning,) = warned
    assert warning.category is FeinsumWarning
    assert warning.filename == __file__
    with pytest.raises(DeviceUnavailableError):
        feinsum.einsum(subscripts, *operands, database=NO_FACTS, device="host")
    with pytest.raises(InvalidEinsumError):
        feinsum.einsum("ij,jk->ik", TREE, B[:3], database=NO_FACTS)


def test_more_indices_than_numpy_has_letters(monkeypatch):
    """Axes of extent 1 need none, with and without a kernel that fails."""
    fail(monkeypatch, OSError("no room"))
    names = [f"{{i{k}}}" for k in range(56)]
    terms = "".join(names[:28]), "".join(names[28:])
    x, y = RNG.random((2, 3) + 26 * (1,)), RNG.random((4,) + 27 * (1,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeinsumWarning)
        for effort in ("amortized", "recorded"):
            found = feinsum.einsum(
                f"{terms[0]},{terms[1]}->{names[30]}{names[28]}{names[1]}",
                x, y, database=NO_FACTS, effort=effort,
            )  # fmt: skip
            expected = y.reshape(1, 4, 1) * x.sum(0).reshape(1, 1, 3)
            np.testing.assert_allclose(found, expected)
