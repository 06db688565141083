"""Calls are computed in steps until a kernel of their own pays off: one law for all."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import inf
from time import sleep

import numpy as np
import opt_einsum
import pytest

import feinsum
from feinsum import call_einsum
from feinsum.calling import call, clear_call_cache, kernel_cache, prepare_call
from feinsum.calling.host import builder, general
from feinsum.calling.host.general import CallFamily, GeneralCall
from feinsum.calling.host.prepared import PreparedCall
from feinsum.calling.kernel_cache import Calls
from feinsum.contraction import steps
from feinsum.errors import BuildError, FeinsumWarning
from feinsum.memory import get_remembered
from feinsum.options import DEVICE_VARIABLE, EFFORT_VARIABLE
from feinsum.records import InMemoryStore
from feinsum.select import MAX_ROUNDS, PairedTimes

RNG = np.random.default_rng(7)
A, B, C = (RNG.random(shape) for shape in ((13, 17), (17, 11), (11, 5)))
NO_FACTS = InMemoryStore()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, builds_here):
    monkeypatch.delenv(EFFORT_VARIABLE)
    monkeypatch.delenv(DEVICE_VARIABLE, raising=False)
    clear_call_cache()
    yield
    clear_call_cache()


def the_call():
    """What is kept of the only call."""
    (call,) = the_calls()
    return call


def the_calls():
    """What is kept of all calls, those without a kernel first."""
    calls = get_remembered(Calls)
    return [*calls.general.values(), *calls.quick.values()]


CALLS = {
    "turned result": ("ij,jk->ki", (A, B)),
    "chain": ("ij,jk,kl->il", (A, B, C)),
    "sum": ("ij->j", (A,)),
    "scalar": ("ij,ij->", (A, A.copy())),
    "diagonal times": ("ii,ij->ij", (A[:13, :13], A)),
    "words": ("{row}{col}, {col}{out} -> {row}{out}", (A, B)),
    "broadcast": ("ij,ij->ij", (A, A[:1])),
    "ellipsis": ("...j,jk->...k", (A, B)),
    "views": ("ij,jk->ik", (A[::2, ::-1], B[::-1])),
    "half": ("ij->", ((9 * A).astype("f2"),)),
    "truth values": ("ij,jk,kl->il", (A > 0.5, B > 0.5, C > 0.5)),
    "complex": ("ij,jk->ik", (A + 1j, B - 2j)),
    "mixed": ("ij,jk->ik", (A.astype("f4"), (9 * B).astype("i8"))),
    "byte order": ("ij,jk->ik", (A.astype(">f8"), B)),
    "read-only": ("ij->j", (np.broadcast_to(A[0], (9, 17)),)),
}


@pytest.mark.parametrize("name", CALLS)
def test_steps_and_a_kernel_give_the_same(name):
    """The same numbers up to rounding, and memory of its own in C's order."""
    subscripts, operands = CALLS[name]
    first = call_einsum(subscripts, *operands)
    second = call_einsum(subscripts, *operands, effort="estimate", database=NO_FACTS)
    assert isinstance(first, np.ndarray)
    assert (first.shape, first.dtype) == (second.shape, second.dtype)
    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert not any(np.shares_memory(first, x) for x in operands)
    np.testing.assert_allclose(first, second, rtol=2e-3 if name == "half" else 1e-12)


def test_a_prepared_call_has_a_kernel():
    """Who prepares a call means to make it; later calls use what was built."""
    call_einsum("ij,jk->ik", A, B)
    assert isinstance(the_call(), GeneralCall)
    prepared = prepare_call("ij,jk->ik", A, B)
    assert prepared.kernel is not None
    np.testing.assert_allclose(prepared.run((A, B)), A @ B, rtol=1e-12)
    call_einsum("ij,jk->ik", A, B)
    assert the_call() is prepared


@pytest.mark.parametrize(
    "options",
    [
        {"effort": "recorded"},
        {"device": "host"},
        {"on_miss": "warn"},
    ],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.filterwarnings("ignore::feinsum.FeinsumWarning")
def test_who_says_how_a_kernel_is_found_gets_one_at_once(options):
    """Errors of these options come with the first call, too."""
    call_einsum("ij,jk->ik", A, B, **{"database": NO_FACTS, **options})
    assert not isinstance(the_call(), GeneralCall)


def test_the_variable_of_the_effort_counts_at_every_call(monkeypatch):
    """Like those of the device and the database: calls are kept for each value."""
    call_einsum("ij,jk->ik", A, B)
    assert isinstance(the_call(), GeneralCall)
    monkeypatch.setenv(EFFORT_VARIABLE, "recorded")
    call_einsum("ij,jk->ik", A, B)
    _, other = the_calls()
    assert not isinstance(other, GeneralCall)


def test_threads_that_call_first_at_the_same_time_get_the_same():
    """Each is answered by numpy or by the one kernel that is built."""
    with ThreadPoolExecutor(4) as pool:
        results = [
            pool.submit(call_einsum, "ij,jk->ik", A, B, database=NO_FACTS)
            for _ in range(12)
        ]
    for result in results:
        np.testing.assert_allclose(result.result(), A @ B, rtol=1e-12)


def test_a_first_call_loads_neither_loopy_nor_the_database_nor_anything_for_gpus():
    """They take longer than many a program that calls once. An array that is given
    twice is found by another key than different arrays, but is on the host as they.
    """
    code = (
        "import sys, numpy, feinsum\n"
        "A = numpy.eye(3)\n"
        "feinsum.call_einsum('ij,jk->ik', A, A.copy())\n"
        "feinsum.call_einsum('ij,jk->ik', A, A)\n"
        "heavy = {'loopy', 'sqlalchemy', 'pydantic', 'feinsum.calling.gpu'}\n"
        "print(sorted(heavy & {*sys.modules}))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


@pytest.fixture
def eager(monkeypatch, tmp_path):
    """A kernel is worth building after the second call; caches are empty."""
    monkeypatch.setattr(kernel_cache, "BUILD_S", 0.0)
    monkeypatch.setattr(general, "SHORT_S", 0.0)
    monkeypatch.setattr(general, "LOOK_UP_S", 0.0)
    monkeypatch.setattr(general, "SHARE", 1e9)
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))
    clear_call_cache()


def call_until(is_reached):
    """Call until something has come about in another thread."""
    for _ in range(6000):
        np.testing.assert_allclose(call_einsum("ij,jk->ik", A, B), A @ B)
        if is_reached():
            return
        sleep(0.01)
    raise TimeoutError


def has_begun_a_build():
    shared = the_call().shared
    return shared is not None and shared.build is not None


def wait_for_build(first=lambda: None):
    """Do something; then wait until no kernel is being built."""
    first()
    assert get_remembered(Calls).builds.lock.acquire(timeout=120)
    get_remembered(Calls).builds.lock.release()


@pytest.mark.usefixtures("eager")
def test_no_call_waits_for_a_build(monkeypatch):
    """While a build does not end, a hundred calls do."""
    is_over = threading.Event()

    def build(_):
        is_over.wait(120)
        raise BuildError("the compiler was stopped")

    monkeypatch.setattr(builder, "build_elsewhere", build)
    call_until(has_begun_a_build)
    for _ in range(100):
        np.testing.assert_allclose(call_einsum("ij,jk->ik", A, B), A @ B)
    assert the_call().built is None
    assert get_remembered(Calls).builds.lock.locked()
    with pytest.warns(FeinsumWarning, match="the compiler was stopped"):
        wait_for_build(is_over.set)


@pytest.mark.parametrize("is_faster", [True, False])
@pytest.mark.usefixtures("eager")
def test_a_kernel_is_used_if_it_is_faster(monkeypatch, is_faster):
    """After some calls in turns; otherwise the steps go on."""
    monkeypatch.setattr(PairedTimes, "is_faster", is_faster)
    call_until(has_begun_a_build)
    wait_for_build()
    (general_call,) = the_calls()
    assert general_call.trial is not None
    for _ in range(2 * MAX_ROUNDS + 2):
        np.testing.assert_allclose(call_einsum("ij,jk->ik", A, B), A @ B)
    assert general_call.trial is None
    assert isinstance(the_call(), PreparedCall if is_faster else GeneralCall)
    assert the_call().run([A, B]).shape == (13, 11)


@pytest.mark.usefixtures("eager")
def test_a_later_process_finds_the_kernel():
    """It is tried without a build."""
    call_until(has_begun_a_build)
    wait_for_build()
    clear_call_cache()
    get_remembered(Calls).builds.expected_s = inf
    call_until(lambda: the_call().trial is not None)
    assert the_call().shared.build is None


@pytest.mark.usefixtures("eager")
def test_a_kernel_that_fails_breaks_no_call(monkeypatch):
    """The steps answer the call, and go on."""

    class Broken:
        def call(self, structure):
            return self

        def run(self, arrays, out=None):
            raise MemoryError

    monkeypatch.setattr(builder, "build_elsewhere", lambda _: Broken())
    monkeypatch.setattr(builder, "load_built", lambda _: None)
    call_until(has_begun_a_build)
    wait_for_build()
    for _ in range(5):
        np.testing.assert_allclose(call_einsum("ij,jk->ik", A, B), A @ B)
    assert the_call().trial is None
    assert the_call().built is None


@pytest.mark.usefixtures("eager")
def test_a_build_that_fails_is_told_once_and_breaks_no_call(monkeypatch):
    """The steps go on, and nothing else is built: others miss what is missing, too."""

    def build(_):
        raise BuildError("there is no compiler")

    monkeypatch.setattr(builder, "build_elsewhere", build)
    with pytest.warns(FeinsumWarning, match="there is no compiler"):
        wait_for_build(lambda: call_until(has_begun_a_build))
    for _ in range(3):
        np.testing.assert_allclose(call_einsum("ij,jk->ik", A, B), A @ B)
    assert the_call().built is None
    assert get_remembered(Calls).builds.expected_s == inf
    clear_call_cache()
    assert get_remembered(Calls).builds.expected_s < inf


class Sizes:
    """Products of matrices with many rows, and the kernels that were built for them."""

    def __init__(self, monkeypatch, is_faster):
        self.built = []
        build = builder.build_elsewhere

        def counted(request):
            self.built.append(request)
            return build(request)

        monkeypatch.setattr(builder, "build_elsewhere", counted)
        monkeypatch.setattr(PairedTimes, "is_faster", is_faster)
        get_remembered(Calls).builds.expected_s = 1e9  # none is built on its own

    def call(self, n_rows):
        X = np.arange(n_rows * 17.0).reshape(n_rows, 17)
        np.testing.assert_allclose(call_einsum("ij,jk->ik", X, B), X @ B)
        return next(c for c in the_calls() if c.parsed.shape == (n_rows, 11))

    def build(self, n_rows):
        """Call until a kernel is built."""
        get_remembered(Calls).builds.expected_s = 0.0
        n_before = len(self.built)
        for _ in range(6000):
            self.call(n_rows)
            if len(self.built) > n_before:
                break
            sleep(0.01)
        wait_for_build()


@pytest.mark.parametrize("is_faster", [True, False])
@pytest.mark.usefixtures("eager")
def test_a_new_size_is_computed_by_the_kernel_of_another_one(monkeypatch, is_faster):
    """Sizes that are called once each decide together whether it is used."""
    sizes = Sizes(monkeypatch, is_faster)
    sizes.build(600)
    for n in range(2 * MAX_ROUNDS):
        kept = sizes.call(700 + n)
        assert kept.trial is not None or kept.has_had_trial
    kept = sizes.call(1000)
    assert kept.has_had_trial
    assert (kept.built is not None) == is_faster
    assert len(sizes.built) == 1


@pytest.mark.usefixtures("eager")
def test_short_extents_that_vary_share_a_kernel_too(monkeypatch):
    """From the fourth one on, an extent is run-time data of the kernel."""
    sizes = Sizes(monkeypatch, is_faster=True)
    for n in (20, 21, 22, 23, 24):
        while sizes.call(n).shared is None:
            sleep(0.01)
    sizes.build(25)
    assert sizes.built[-1].varying == ("i0",)
    for n in range(2 * MAX_ROUNDS):
        sizes.call(30 + n)
    assert sizes.call(70).built is not None
    assert len(sizes.built) == 1


def test_structures_are_found_out_as_far_as_it_pays_off():
    """As a small part of all time, or where a kernel saves more than it takes."""
    family = CallFamily(spent_s=1.0, n_calls=100)
    assert family.may_look_up
    family.look_up_s, family.n_look_ups = 0.02, 40
    assert not family.may_look_up
    family.saved = 0.04
    assert not family.may_look_up
    family.saved = 0.06
    assert family.may_look_up
    family.add(1.0)
    family.saved = 0.0
    assert family.may_look_up


def test_a_structure_gets_the_seconds_of_sizes_that_nobody_looked_at():
    """Once each: the next one gets those since then."""
    family = CallFamily()
    for seconds in (1.0, 2.0):
        family.add(seconds)
    assert family.take_seconds() == 3.0
    family.add(0.5)
    assert family.take_seconds() == 0.5


@pytest.mark.usefixtures("eager")
def test_trials_of_calls_of_other_magnitudes_are_others(monkeypatch):
    """What is faster for 600 rows may be slower for a million."""
    sizes = Sizes(monkeypatch, is_faster=True)
    sizes.build(600)
    for _ in range(2 * MAX_ROUNDS + 2):
        sizes.call(600)
    assert sizes.call(601).built is not None
    assert sizes.call(600 * 64).trial is not None


def test_short_calls_never_get_a_kernel():
    """What they take is not the kernel's."""
    for _ in range(50):
        call_einsum("i,i->", A[0], A[1])
    call = the_call()
    call.spent_s = call.family.spent_s = 1e3
    call.n_calls = call.family.n_calls = 10**9
    call_einsum("i,i->", A[0], A[1])
    assert call.built is None
    assert not get_remembered(Calls).builds.lock.locked()


def test_out_takes_the_result_of_the_steps():
    """In its own strides; what does not fit is refused before anything is computed."""
    out = np.full((26, 11), -1.0)
    assert call_einsum("ij,jk->ik", A, B, out=out[::2]) is not None
    np.testing.assert_allclose(out[::2], A @ B)
    assert (out[1::2] == -1).all()
    with pytest.raises(ValueError, match="out has shape"):
        call_einsum("ij,jk->ik", A, B, out=out)


def test_an_out_that_is_an_operand_gets_the_result():
    """As if it were computed elsewhere first."""
    square = RNG.random((9, 9))
    expected = square @ square
    call_einsum("ij,jk->ik", square, square, out=square)
    np.testing.assert_allclose(square, expected)


def test_a_loop_over_hundreds_of_sizes_reads_each_once(monkeypatch):
    """The second pass finds all calls, and no kernel was built for any of them."""
    for n in range(1, 200):
        call_einsum("ij,jk->ik", A[:1].repeat(n, axis=0), B)
    monkeypatch.setattr(call, "_prepare", None)
    for n in range(1, 200):
        result = call_einsum("ij,jk->ik", A[:1].repeat(n, axis=0), B)
        assert result.shape == (n, 11)
    assert all(kept.built is None for kept in the_calls())


@pytest.mark.parametrize(("search", "n"), [("auto-hq", 60), ("auto", 200), (True, 60)])
def test_networks_of_more_operands_than_letters(search, n):
    """Along the path of any search, as along one that is given."""
    matrices = [RNG.random((3, 3)) for _ in range(n)]
    letters = [opt_einsum.get_symbol(k) for k in range(n + 1)]
    terms = ",".join(map("".join, pairwise(letters)))
    subscripts = f"{terms}->{letters[0]}{letters[-1]}"
    expected = np.linalg.multi_dot(matrices)
    found = feinsum.einsum(subscripts, *matrices, optimize=search)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    path, _ = opt_einsum.contract_path(subscripts, *matrices)
    along = feinsum.contract(subscripts, *matrices, optimize=path)
    np.testing.assert_allclose(along, expected, rtol=1e-10)
    lists = [x for k in range(n) for x in (matrices[k], [k, k + 1])]
    found = feinsum.einsum(*lists, [0, n], optimize=search)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_an_interrupt_ends_a_network(monkeypatch):
    """Between two steps at the latest; the next call is as good as the first."""

    def interrupted(*_):
        raise KeyboardInterrupt

    # with a limit of intermediates, which the extension leaves to Python
    monkeypatch.setenv("FEINSUM_INTERMEDIATE_BYTES", "1000000")
    chain = [RNG.random((9, 9)) for _ in range(40)]
    letters = [opt_einsum.get_symbol(k) for k in range(41)]
    terms = ",".join(map("".join, pairwise(letters)))
    subscripts = f"{terms}->{letters[0]}{letters[-1]}"
    with monkeypatch.context() as patch:
        patch.setattr(steps, "make_aligned", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feinsum.einsum(subscripts, *chain)
    expected = np.linalg.multi_dot(chain)
    np.testing.assert_allclose(feinsum.einsum(subscripts, *chain), expected)


def test_a_prepared_call_is_shown_in_one_line():
    """Its kernel has thousands of characters, which a prompt should not print."""
    call = prepare_call("ij,jk->ik", np.ones((3, 4)), np.ones((4, 5)))
    assert repr(call).startswith("<PreparedCall")
    assert len(repr(call)) < 200
    assert "\n" not in repr(call)
