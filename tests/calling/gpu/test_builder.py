"""Another process builds the calls of a GPU, while a library answers them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import feinsum
from feinsum import processes
from feinsum.cache import get_default_cache
from feinsum.calling.gpu import builder, building, cached
from feinsum.calling.gpu.builder import (
    BuildRequest,
    answer_request,
    load_built,
    read_call,
    write_call,
)
from feinsum.calling.gpu.cached import wait_for_builds
from feinsum.calling.gpu.flat import flatten_call
from feinsum.calling.gpu.prepared import LibraryCall
from feinsum.calling.gpu.site import Site, parse_arrays
from feinsum.calling.kernel_cache import Calls, LookupOptions
from feinsum.calling.operands import find_first_uses
from feinsum.db import open_store
from feinsum.errors import BuildError
from feinsum.ir.dtypes import BFLOAT16
from feinsum.libraries import ALIGNMENT
from feinsum.measure import open_device
from feinsum.memory import get_remembered, use_fresh_memory
from feinsum.records import InMemoryStore
from tests.calling.gpu.test_call import Native, OnGpu
from tests.targets.cuda.stand_in import needs_nvrtc, stand_in
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["stand_in"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-W", "ignore", "-m", "tests.calling.gpu.stand_in_builder")
LIMIT_S = 120.0
RNG = np.random.default_rng(5)
A, B, C = RNG.random((9, 8)), RNG.random((8, 7)), RNG.random((7, 6))


@pytest.fixture(autouse=True)
def _own(stand_in, tmp_path, monkeypatch):
    """A memory, a cache and a database of one's own; builders have the stand-in."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))
    monkeypatch.setattr(processes, "make_python_command", lambda _: COMMAND)
    monkeypatch.setattr(building, "PLAUSIBLE", 1.0)
    with use_fresh_memory():
        yield


def call(subscripts, *arrays, **options):
    """Call with the default effort, which the variable of other tests replaces."""
    given = [OnGpu(array) for array in arrays]
    return feinsum.call_einsum(subscripts, *given, **{"effort": "amortized", **options})


def get_calls():
    (calls,) = get_remembered(Calls).gpu.values()
    return calls


def request_of(subscripts, *arrays, **options):
    site = Site(arrays, None, open_device("cuda"), LookupOptions(**options))
    return BuildRequest.of(subscripts, find_first_uses(arrays), site)


CALLS = {
    "a product": ("ij,jk->ik", (A, B)),
    "a sum": ("ij->i", (RNG.random((40, 300)),)),
    "a chain": ("ij,jk,kl->li", (A, B, C)),
    "strides": ("ij,ij->i", (RNG.random((30, 40)).T[::2, ::-1], RNG.random((20, 30)))),
    "the same twice": ("ij,kj->ik", (A, A)),
}


def test_results_are_right_before_during_and_after_a_build():
    """A library computes until the other process has built the call, also for later
    processes, which build nothing. A build does not change the database: no later
    process would find what was built.
    """
    with open_store(os.environ["FEINSUM_DATABASE"]):
        pass
    session, kept = open_device("cuda").session, get_remembered(Calls).gpu
    for subscripts, arrays in CALLS.values():
        expected = np.einsum(subscripts, *arrays)
        for _ in range(3):
            session.launches.clear()
            assert np.allclose(call(subscripts, *arrays), expected)
            if [*kept.values()][-1].repeated is None:
                assert session.launches == ["library"]
    assert wait_for_builds(LIMIT_S)
    assert len(kept) == len(CALLS)
    assert all(calls.build.result() is calls.repeated for calls in kept.values())
    for subscripts, arrays in CALLS.values():
        expected = np.einsum(subscripts, *arrays)
        assert np.allclose(call(subscripts, *arrays), expected)
        with use_fresh_memory():
            session.launches.clear()
            assert np.allclose(call(subscripts, *arrays), expected)
            assert "library" not in session.launches
            assert get_calls().build is None


def test_one_call_builds_nothing():
    """A program that calls once starts no process."""
    call("ij,jk->ik", A, B)
    assert get_calls().build is None
    assert wait_for_builds(0.0)


class WorkerHere:
    """Builds in this process, where no law of the other process is tested."""

    def __init__(self, _command):
        pass

    def request(self, line, _limit_s):
        return answer_request(line)

    def close(self):
        pass


@pytest.fixture
def builds_here(monkeypatch):
    """Requests are answered in this process, which has loaded Loopy already."""
    monkeypatch.setattr(processes, "Worker", WorkerHere)


@pytest.fixture
def unfinished(monkeypatch, builds_here):
    """Builds last until the event."""
    is_over, begun = threading.Event(), []

    def build(*given):
        begun.append(given)
        assert is_over.wait(LIMIT_S)
        return builder.build_elsewhere(*given)

    monkeypatch.setattr(cached, "build_elsewhere", build)
    is_over.begun = begun
    yield is_over
    is_over.set()
    assert wait_for_builds(LIMIT_S)


def test_no_call_waits_for_a_build(unfinished):
    """While a build does not end, calls do, from several threads; there is one build.
    The next call after its end has the kernel, also by its quick key.
    """
    a, b = A.view(Native), B.view(Native)

    def run(_=None):
        result = feinsum.call_einsum("ij,jk->ik", a, b, effort="amortized")
        assert np.allclose(result, A @ B)

    with ThreadPoolExecutor(4) as threads:
        assert len([*threads.map(run, range(40))]) == 40
    assert not wait_for_builds(0.0)
    assert get_calls().repeated is None
    assert not get_remembered(Calls).ready
    unfinished.set()
    assert wait_for_builds(LIMIT_S)
    assert len(unfinished.begun) == 1
    for _ in range(2):
        run()
    (ready,) = get_remembered(Calls).ready.values()
    assert ready.call is get_calls().repeated


def test_builds_that_wait_are_bounded(unfinished):
    """Calls of further kinds begin their builds later."""
    process = get_remembered(builder.Builder)
    process._n_requests = builder.MAX_WAITING + 1
    for _ in range(3):
        call("ij,jk->ik", A, B)
    assert get_calls().build is None
    process._n_requests = builder.MAX_WAITING
    call("ij,jk->ik", A, B)
    process._n_requests = 0
    assert get_calls().build is not None


def test_requests_that_wait_share_a_process(monkeypatch):
    """It ends with the last of them."""
    everyone, started = threading.Barrier(3), []

    class Worker:
        def __init__(self, _command):
            self.is_closed = False
            started.append(self)

        def request(self, line, _limit_s):
            assert not self.is_closed
            if line == "0":
                everyone.wait(LIMIT_S)
                while process._n_requests < 3:
                    pass
            return '{"call": ""}'

        def close(self):
            self.is_closed = True

    monkeypatch.setattr(processes, "Worker", Worker)
    process = builder.Builder()

    def ask(k):
        if k:
            everyone.wait(LIMIT_S)
        with process._counted(), process._turn:
            return process._ask(str(k))

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(ask, range(3))] == 3 * [{"call": ""}]
    assert [worker.is_closed for worker in started] == [True]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", "ended with SIGKILL"),
        ("import time; time.sleep(60)", r"gave no answer within 0\.5 s"),
        ("raise OSError('exclusive mode')", "code 1: .*exclusive mode"),
        ("""channel.answer('{"failure": "no memory"}')""", "no memory"),
        ("""channel.answer('{"call": "aaaa"}')""", "cannot be read"),
    ],
)
def test_a_build_that_fails_leaves_the_library(monkeypatch, caplog, program, words):
    """With the reason in the log, once for all calls."""
    head = "from feinsum.processes import Channel; channel = Channel(); "
    command = (sys.executable, "-c", head + program)
    monkeypatch.setattr(processes, "make_python_command", lambda _: command)
    monkeypatch.setattr(builder, "LIMIT_S", 0.5 if "sleep" in program else 60.0)
    for k in range(4):
        assert np.allclose(call("ij,jk->ik", A, B), A @ B)
        if k == 1:
            assert wait_for_builds(LIMIT_S)
    assert type(get_calls().repeated) is LibraryCall
    for _ in range(2):
        call("ij,jk->ki", A, B)
    assert wait_for_builds(LIMIT_S)
    (record,) = (x for x in caplog.records if x.name == cached.__name__)
    assert record.levelname == "WARNING"
    with pytest.raises(BuildError, match=words):
        raise BuildError(record.getMessage())


def test_what_fails_is_answered(builds_here):
    """The answer has the reason."""
    request = request_of("ij,jk->ik", A, B)
    elsewhere = replace(request, slot="0000:ff:00")
    opened = open_device("cuda")
    with pytest.raises(BuildError, match="has no GPU at 0000:ff:00"):
        builder.build_elsewhere(elsewhere, opened)


@pytest.mark.filterwarnings("ignore::feinsum.FeinsumWarning")
def test_options_and_stores_need_this_process(monkeypatch):
    """The caller asks for a kernel then, or nobody else can read the store; likewise
    calls that are too large for a library.
    """
    monkeypatch.setattr(cached, "build_elsewhere", None)
    for options in (
        {"database": InMemoryStore()},
        {"effort": "estimate"},
        {"on_miss": "warn"},
        {},
    ):
        if not options:  # the library may need several times the memory
            monkeypatch.setattr(cached, "MAX_FIRST_BYTES", A.nbytes)
        with use_fresh_memory():
            for _ in range(2):
                assert np.allclose(call("ij->i", A, **options), A.sum(1))
            assert get_calls().repeated is not None


def test_what_another_process_has_stored_is_not_built(monkeypatch):
    """It may have waited for that process."""
    request = request_of("ij,jk->ik", A, B)
    line = json.dumps(builder.asdict(request))
    answer = answer_request(line)
    assert "call" in json.loads(answer)
    monkeypatch.setattr(building, "build", None)
    assert answer_request(line) == answer


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x05N.", b"\x80\x05U\x01xQ."])
def test_a_damaged_entry_is_no_call(content):
    """It is built anew."""
    opened, request = open_device("cuda"), request_of("ij,jk->ik", A, B)
    get_default_cache().write(request.make_key(opened), content)
    assert load_built(request, opened) is None
    (entry,) = get_default_cache().folder.glob("*.entry")
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert load_built(request, opened) is None
    assert np.allclose(call("ij,jk->ik", A, B), A @ B)


def test_every_kind_of_call_can_be_passed_on(monkeypatch):
    """Whatever computes it, step by step or with all launches prepared."""
    monkeypatch.setattr(building, "N_FAMILIES", 1)
    monkeypatch.setattr(building, "has_cutensor", lambda: True)
    kinds = set()
    for subscripts, arrays in (
        CALLS["a chain"],
        CALLS["strides"],
        ("ij,jk->ik", (A.astype("f4"), B)),
        ("tij,tjk->ik", (RNG.random((40, 3, 4)), RNG.random((40, 4, 5)))),
        ("iij,kjl->lk", (RNG.random((5, 5, 4)), RNG.random((3, 4, 6)))),
    ):
        opened, first = open_device("cuda"), find_first_uses(arrays)
        site = Site(arrays, None, opened, LookupOptions(effort="estimate"))
        parsed = parse_arrays(subscripts, arrays, first)
        expected = np.einsum(subscripts, *arrays)
        for contender in building._list_contenders(parsed, site):
            made = contender.make()
            for original in (made, flatten_call(made, opened, arrays)):
                assert np.allclose(original(arrays, None), expected)  # prepares it
                passed = read_call(write_call(original), opened)
                kinds.add(type(passed).__name__)
                assert repr(passed) == repr(original)
                result = passed(arrays, None)
                assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
                assert np.allclose(result, expected)
    assert kinds == {
        "FlatCall", "KernelCall", "ProductCall", "StepsCall", "CutensorCall",
        "LibraryCall",
    }  # fmt: skip


RAW = np.zeros(128, np.uint8)
BEHIND = -RAW.ctypes.data % ALIGNMENT + 8
LAID_OUT = {
    "a transpose": A.T,
    "backwards": A[::-2, ::-1],
    "broadcast": np.broadcast_to(A[0], (5, 8)),
    "no entries": np.ones((0, 3)),
    "not aligned": RAW[BEHIND : BEHIND + 96].view("f8").reshape(3, 4),
    "half": A.astype("f2")[1:],
    "complex": (A + 1j)[:, 1:],
    **({} if BFLOAT16 is None else {"bfloat16": A.astype(BFLOAT16)}),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_operands_have_the_forms_of_the_call(name):
    """Shape, strides, dtype and alignment, and one array for an array given twice."""
    array, other = LAID_OUT[name], np.ones(2)
    request = request_of("ij,k,ij->", array, other, array)
    first, _, third = request.make_arrays(open_device("cuda"))
    assert first is third
    assert (first.shape, first.dtype) == (array.shape, array.dtype)
    assert first.strides == array.strides
    is_aligned = array.ctypes.data % ALIGNMENT == 0
    assert (first.ctypes.data % ALIGNMENT == 0) == is_aligned
    assert np.all(first == 1)


def test_keys_differ_by_what_a_call_depends_on(monkeypatch):
    """A fact that is recorded later may be about it. The slot of the GPU is not one."""
    opened = open_device("cuda")
    requests = [
        request_of("ij,jk->ik", A, B),
        request_of("ij,jk->ki", A, B),
        request_of("ij,jk->ik", A, B[:, :3]),
        request_of("ij,jk->ik", A.astype("f4"), B),
        request_of("ij,kj->ik", A, A),
        request_of("ij,kj->ik", A, A.copy()),
        request_of("ij,jk->ik", A, B, database="facts.sqlite"),
    ]
    keys = {request.make_key(opened) for request in requests}
    assert len(keys) == len(requests)
    other = replace(requests[0], slot="0000:ff:00")
    assert other.make_key(opened) in keys
    facts = replace(opened.facts, name="another")
    assert requests[0].make_key(replace(opened, facts=facts)) not in keys
    database = Path(os.environ["FEINSUM_DATABASE"])
    database.touch()
    assert (key := requests[0].make_key(opened)) not in keys
    os.utime(database, ns=(1, 1))
    assert requests[0].make_key(opened) not in {key, *keys}
    monkeypatch.setenv("FEINSUM_DATABASE", str(database.with_name("other")))
    assert requests[0].make_key(opened) not in {key, *keys}


PROGRAM = """
import sys
import numpy as np
import feinsum
from feinsum.targets.cuda import session
from tests.targets.cuda.stand_in import StandInDriver, StandInSession

class OnGpu:
    def __init__(self, host):
        self.host = host
    def __dlpack_device__(self):
        return (2, 0)

session._DRIVERS.append(StandInDriver())
asked = []
library = StandInSession.einsum
StandInSession.einsum = lambda *given: asked.append("library") or library(*given)
A, B = np.ones((9, 8)), np.ones((8, 7))
result = feinsum.call_einsum("ij,jk->ik", OnGpu(A), OnGpu(B), effort="amortized")
assert np.allclose(result, 8)
heavy = {"loopy", "pymbolic", "islpy", "pydantic", "sqlalchemy", "archspec"}
print(asked, sorted(heavy & {*sys.modules}))
"""


def test_first_calls_of_a_process_load_no_code_generator(builds_here):
    """Neither the library's, nor what an earlier process has built; nor the records."""
    for asked in ("['library']", "[]"):
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )
        assert ended.stdout == f"{asked} []\n"
        if asked != "[]":
            for _ in range(2):
                call("ij,jk->ik", A, B)
            assert wait_for_builds(LIMIT_S)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # if JAX was imported
def test_a_forked_process_is_answered_by_the_library(unfinished):
    """It lacks the thread that builds, and begins nothing of its own."""
    for _ in range(2):
        call("ij,jk->ik", A, B)
    assert not wait_for_builds(0.0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in range(3):
                assert np.allclose(call("ij,jk->ik", A, B), A @ B)
            assert wait_for_builds(LIMIT_S)
            assert type(get_calls().repeated) is LibraryCall
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    unfinished.set()
    assert wait_for_builds(LIMIT_S)
    assert np.allclose(call("ij,jk->ik", A, B), A @ B)
