"""Another process builds the kernel of a call; this one loads no code generator."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from feinsum import processes
from feinsum.cache import get_default_cache
from feinsum.calling.host import builder
from feinsum.calling.host.builder import BuildRequest, build_elsewhere, load_built
from feinsum.calling.operands import find_first_uses, get_form
from feinsum.errors import BuildError
from tests.calling.conftest import build_here

RNG = np.random.default_rng(3)
A, B = RNG.random((13, 17)), RNG.random((17, 11))
D = RNG.random((3, 10, 10))


@pytest.fixture(autouse=True)
def _own(tmp_path, monkeypatch):
    """A cache and a database of one's own; calls are tuned by nobody."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))


def request_of(subscripts, *operands):
    return BuildRequest.of(
        subscripts, [*map(get_form, operands)], find_first_uses(operands), None
    )


CALLS = {
    "views": ("ij,jk->ki", (A[::2, ::-1], B[::-1])),
    "mixed": ("ij,jk->ik", (A.astype("f4"), (9 * B).astype("i8"))),
    "complex, byte order": ("ij,jk->ik", ((A + 1j).astype(">c16"), B)),
    "the same twice": ("ij,kj->ik", (A, A)),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_it_builds_is_right(name):
    """For the operands of the call, whose entries it never saw; once for later ones."""
    subscripts, operands = CALLS[name]
    request = request_of(subscripts, *operands)
    assert load_built(request) is None
    built = build_here(request)
    expected = np.einsum(subscripts, *operands)
    for kernel in (built, load_built(request)):
        again = kernel.call(request.structure)
        found = again.run(operands)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        out = np.empty_like(expected)
        assert again.run(operands, out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-6)


def lies(shape, order="C", dtype="f8"):
    """Return an array whose memory has that order."""
    return RNG.random(shape).astype(dtype, order=order)


SIZES = {
    "both long, a view": (
        "ij,jk->ki",
        lambda n: (lies((2 * n, 17))[::2], lies((17, n + 1), "F")),
    ),
    "merged axes": (
        "...j,jk->...k",
        lambda n: (lies((n, 3, 17)), B),
    ),
    "elements": (
        "xre,rij,ej->xei",
        lambda n: (lies((3, 3, n)), D, lies((n, 10))),
    ),
    "broadcast": (
        "ei,e->ei",
        lambda n: (np.broadcast_to(A[0], (n, 17)), lies(n)),
    ),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_kernel_serves_all_sizes_of_its_structure(name):
    """Long extents and strides are run-time data: a new size finds the kernel."""
    subscripts, operands_of = SIZES[name]
    build_here(request_of(subscripts, *operands_of(600)))
    for n in (500, 601, 2311):
        operands = operands_of(n)
        request = request_of(subscripts, *operands)
        found = load_built(request).call(request.structure).run(operands)
        expected = np.einsum(subscripts, *operands)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_structures_that_differ_have_kernels_of_their_own():
    """By a short extent, a unit stride, an array given twice, or a length of sums."""
    whole = lies((600, 17))
    calls = [
        ("ij,jk->ik", (whole, B)),
        ("ij,jk->ik", (whole, B[:, :10])),
        ("ij,jk->ik", (lies((600, 17), "F"), B)),
        ("ij,jk->ik", (whole.astype("f4"), B)),
        ("ij,kj->ik", (whole, whole)),
        ("ij,kj->ik", (whole, whole.copy())),
        ("ij,ij->", (lies((600, 40)), lies((600, 40)))),
        ("ij,ij->", (lies((601, 40)), lies((601, 40)))),
    ]
    keys = {request_of(subscripts, *operands).key for subscripts, operands in calls}
    assert len(keys) == len(calls)


def test_short_extents_that_vary_are_run_time_data():
    """Where the request says so, also of axes that become one with others."""
    subscripts = "bij,jk->bik"

    def request(n_batches):
        operands = lies((n_batches, 3, 17)), B
        return operands, replace(request_of(subscripts, *operands), varying=("i0",))

    _, first = request(5)
    assert first.structure.normal.parsed.sizes == {"n0": 15}
    build_here(first)
    for n_batches in (2, 7, 130, 500):
        operands, other = request(n_batches)
        found = load_built(other).call(other.structure).run(operands)
        np.testing.assert_allclose(found, np.einsum(subscripts, *operands), rtol=1e-10)


def test_a_kernel_with_intermediates_is_for_sizes_with_which_they_fit(monkeypatch):
    """They grow with the sizes; the limit is that of other kernels."""
    monkeypatch.setenv("FEINSUM_INTERMEDIATE_BYTES", f"{1 << 20}")

    def request(n):
        shapes = (n, 300), (300, 5), (5, 300)
        return request_of("ij,jk,kl->il", *map(lies, shapes))

    built = build_here(request(600))
    # 5 n entries fit as long as n is no larger, if rows are not done one by one
    assert built.limits in ({}, {"n0": 32 * 600})
    limited = replace(built, limits={"n0": 600}, is_normal=True)
    for n, fits in ((500, True), (600, True), (601, False)):
        assert (limited.call(request(n).structure) is not None) == fits


def test_the_calling_process_loads_no_code_generator():
    """Neither to ask for a kernel nor to run it; nor the records, or the compiler."""
    code = """
import sys, numpy as np
from feinsum.calling.host.builder import BuildRequest, build_elsewhere
forms = ((6, 7), (56, 8), "<f8"), ((7, 5), (40, 8), "<f8")
request = BuildRequest("ij,jk->ik", forms, (0, 1), None)
call = build_elsewhere(request).call(request.structure)
assert np.allclose(call.run((np.ones((6, 7)), np.ones((7, 5)))), 7)
heavy = "loopy", "pymbolic", "islpy", "sqlalchemy", "pydantic", "archspec", "pynauty"
print(sorted({*heavy} & {*sys.modules}))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", "ended with SIGKILL"),
        ("import time; time.sleep(60)", r"gave no answer within 0\.5 s"),
        ("raise OSError('No space left on device')", "code 1: .*No space left"),
        ("""channel.answer('{"failure": "no compiler"}')""", "no compiler"),
    ],
)
def test_a_process_that_fails_says_why(monkeypatch, program, words):
    """Killed, hanging, without room or without a compiler."""
    head = "from feinsum.processes import Channel; channel = Channel(); "
    command = (sys.executable, "-c", head + program)
    monkeypatch.setattr(processes, "make_python_command", lambda _: command)
    monkeypatch.setattr(builder, "LIMIT_S", 0.5 if "sleep" in program else 60.0)
    with pytest.raises(BuildError, match=words):
        build_elsewhere(request_of("ij,jk->ik", A, B))


def test_without_processes_there_is_no_kernel(monkeypatch):
    """As in a sandbox."""

    def refused(*_, **__):
        raise PermissionError("no processes here")

    monkeypatch.setattr(processes, "Worker", refused)
    with pytest.raises(BuildError, match="no processes here"):
        build_elsewhere(request_of("ij,jk->ik", A, B))


def test_what_fails_is_answered():
    """The process itself ends well, and says what the matter is."""
    request = replace(request_of("ij,jk->ik", A, B), forms=(((2,), (8,), "<f8"),))
    with pytest.raises(BuildError, match="InvalidEinsumError"):
        build_elsewhere(request)


@pytest.mark.parametrize("content", [b"{}", b"{", b'{"content": "!"}'])
def test_a_damaged_entry_is_no_kernel(content):
    """It is built anew."""
    request = request_of("ij,jk->ik", A, B)
    get_default_cache().write(request.key, content)
    assert load_built(request) is None


def test_operands_that_cannot_be_made_again():
    """Not aligned, or of more memory than a second time is spent on."""
    raw = np.zeros(8 * 6 + 1, np.uint8)[1:]
    assert request_of("ij->i", raw.view("f8").reshape(2, 3)) is None
    assert request_of("ij->i", np.broadcast_to(A[0, 0], (2**20, 2**20))) is None
