"""The session by way of CuPy, with a fake of it: see the fake driver."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from feinsum.errors import DeviceLostError, MeasurementError
from feinsum.measure import compile_kernel
from feinsum.targets.cuda import cupy_session
from feinsum.targets.cuda.cupy_session import Launcher
from feinsum.targets.cuda.cutensor import load_cutensor
from feinsum.targets.devices import open_device
from tests.targets.cuda.fake_driver import (
    CUDARuntimeError,
    Event,
    Stream,
    current,
    cutensor,
    fake_gpu,
    ndarray,
)
from tests.targets.cuda.kernels import doubled, doubled_backwards
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["cutensor", "fake_gpu"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]

N = 40
VALUES = np.arange(float(N))
ILLEGAL = CUDARuntimeError(
    "cudaErrorIllegalAddress: an illegal memory access was encountered"
)
TOO_MANY = CUDARuntimeError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources")


@pytest.fixture
def session(fake_gpu):
    return open_device("cuda").session


def bound_kernel(unit):
    bound = compile_kernel(unit, open_device("cuda")).bind({"x": VALUES, "n": N})
    bound.poison()
    return bound


def arguments_of(bound):
    return {name: getattr(x, "array", x) for name, x in bound.slots.items()}


@pytest.mark.parametrize("timer", ["cuda-events", "wall"])
def test_a_run_is_timed_and_right(fake_gpu, timer):
    """By events that are recorded around it, or from the first launch to its end."""
    bound = bound_kernel(doubled_backwards())
    seconds = bound.run(timer)
    assert seconds == 1e-3 if timer == "cuda-events" else seconds > 0
    assert np.array_equal(bound.read()["y"], 2 * VALUES[::-1])


def test_launches_go_to_the_given_stream(session):
    """Prepared ones and others; nothing else is done, and nothing at once."""
    built = compile_kernel(doubled(), open_device("cuda")).built
    x, out = session.allocate(N, VALUES.dtype), session.allocate(N, VALUES.dtype)
    session.write(x, VALUES)
    launch_all = built.list_launches(["x"], {"n": N}).prepare(session)
    for k, launch in enumerate((
        lambda stream: built.launcher({"x": x, "y": out, "n": N}, stream)(),
        lambda stream: launch_all([x], out, stream),
    )):  # fmt: skip
        session.clear(out)
        session.synchronize()
        stream = Stream()
        launch(stream)
        assert not out.host.any(), k
        stream.synchronize()
        assert np.array_equal(out.host, 2 * VALUES)


def test_arrays_of_numpy_take_no_memory_that_another_stream_still_reads(
    fake_gpu, monkeypatch
):
    """What the host has freed on the caller's stream may be in use there."""
    freed, seen = np.full(1 << 16, 7, np.uint8), []
    malloc = fake_gpu.malloc

    def pooled(n_bytes):
        return freed[:n_bytes] if current() is theirs else malloc(n_bytes)

    monkeypatch.setattr(fake_gpu, "malloc", pooled)
    built = compile_kernel(doubled_backwards(), open_device("cuda")).built
    with Stream() as theirs:
        theirs.do(lambda: seen.append(freed.copy()))
        result = built.caller(["x"], {"n": N})([VALUES])
    theirs.synchronize()
    assert np.array_equal(result, 2 * VALUES[::-1])
    assert (seen[0] == 7).all()


def test_arrays_there_are_read_on_the_current_stream(session):
    """If no other one is given; the result is ready there."""
    call = compile_kernel(doubled(), open_device("cuda")).built.caller(["x"], {"n": N})
    with Stream() as theirs:
        x = ndarray((N,))
        x[...] = VALUES
        result = call([x])
    theirs.synchronize()
    assert np.array_equal(result.host, 2 * VALUES)


def test_a_graph_repeats_all_launches_in_order(session):
    """Nothing runs while it is captured; each replay reads what the arrays hold."""
    bound = bound_kernel(doubled_backwards())
    built, arguments = bound.compiled.built, arguments_of(bound)
    replay = built.repeated(arguments, 3)
    session.synchronize()
    assert np.isnan(bound.read()["y"]).all()
    for factor in (1.0, 5.0):
        session.write(arguments["x"].flat, factor * VALUES)
        bound.poison()
        replay()
        assert len(session.stream.left) == 3 * built.n_launches
        assert np.array_equal(bound.read()["y"], 2 * factor * VALUES[::-1])


def test_a_graph_keeps_what_its_launches_share(session, monkeypatch):
    """Else the memory would be that of other arrays, when it is replayed."""
    bound = bound_kernel(doubled_backwards())
    made, allocate = [], type(session).allocate

    def noted(*given):
        array = allocate(*given)
        made.append(weakref.ref(array))
        return array

    monkeypatch.setattr(type(session), "allocate", noted)
    replay = bound.compiled.built.repeated(arguments_of(bound), 2)
    gc.collect()
    assert [array() is not None for array in made] == [True]
    replay()
    del replay
    gc.collect()
    assert [array() for array in made] == [None]


def test_a_capture_that_fails_ends(session):
    """The stream takes launches again."""
    with pytest.raises(MeasurementError, match=r"cannot be captured: .* smaller one"):
        session.repeated(lambda: _raise(TOO_MANY), 2)
    bound = bound_kernel(doubled())
    bound.run()
    assert np.array_equal(bound.read()["y"], 2 * VALUES)


def _raise(error):
    raise error


@pytest.mark.parametrize(
    ("fault", "is_late", "said"),
    [
        (TOO_MANY, False, "failed to start: .* use a smaller one"),
        (ILLEGAL, True, "failed to run: .* memory that is not its own"),
    ],
)
@pytest.mark.parametrize("timer", ["cuda-events", "wall"])
def test_what_fails_in_a_run_is_explained(fake_gpu, timer, fault, is_late, said):
    """At the launch, or at the end of what was launched."""
    bound = bound_kernel(doubled())
    fake_gpu.fault, fake_gpu.is_late = fault, is_late
    with pytest.raises(MeasurementError, match=said):
        bound.run(timer)


@pytest.mark.parametrize(
    ("allocate", "said"),
    [
        (lambda s, x: s.allocate(1000, x.dtype), r"an array of \(1000,\) entries of f"),
        (lambda s, x: s.cast(x, np.dtype("c16")), r"\(40,\) entries of complex128"),
        (lambda s, x: s.packed(x), "a copy of 320 bytes"),
    ],
)
def test_a_lack_of_memory_is_explained(session, fake_gpu, allocate, said):
    """With what was asked for, what CuPy says, and what to do."""
    x = ndarray.of(session.allocate(2 * N, VALUES.dtype).host[::2])
    fake_gpu.free = 100
    what_to_do = "the GPU lacks the memory; compute it in parts.*Out of memory"
    with pytest.raises(MeasurementError, match=f"{said}.*{what_to_do}"):
        allocate(session, x)


def test_cutensor_contracts_on_the_given_stream(session, cutensor):
    """Arrays of any strides, into an array there."""
    host = np.arange(12.0).reshape(3, 4)
    first, second, result = ndarray((4, 3)), ndarray((4, 5)), ndarray((5, 3))
    first[...], second[...] = ndarray.of(host.T), np.ones((4, 5))
    Stream.null.synchronize()
    session.contract([(0, 1), (0, 2), (2, 1)], [first, second, result], Stream.null)
    assert np.isnan(result.host).all()
    Stream.null.synchronize()
    assert np.array_equal(result.host, np.ones((5, 4)) @ host.T)


def test_cutensor_is_found_with_its_version_or_not_at_all(fake_gpu, request):
    """CuPy's module may be there without the library."""
    assert load_cutensor() is None
    request.getfixturevalue("cutensor")
    assert load_cutensor()[1] == "2.3.1"


def test_memory_of_another_allocator_is_not_counted(session, fake_gpu):
    """It may keep some for reuse, which the driver counts as taken."""
    assert session.free_bytes() == fake_gpu.free
    fake_gpu.allocator = None
    assert session.free_bytes() > fake_gpu.free


def test_few_binaries_are_kept(session, monkeypatch):
    """They take memory of the GPU; functions keep theirs as long as they live."""
    monkeypatch.setattr(cupy_session, "MAX_MODULES", 2)
    for block in (1, 2, 4):
        compile_kernel(doubled(block), open_device("cuda"))
        assert 0 < len(session._modules) <= 2


def test_arrays_are_taken_over_in_order(session):
    """What its library enqueued for an array comes before what is done with it here."""
    with Stream() as theirs:
        array = ndarray((N,))
        array[...] = VALUES
    found, stream = session.adopted(
        SimpleNamespace(__dlpack__=lambda stream: exported(array, theirs, stream))
    )
    assert stream is Stream.null
    assert np.array_equal(found.get(), VALUES)
    assert session.adopted(array) == (array, Stream.null)


def exported(array, own, stream):
    event = Event()
    event.record(own)
    Stream.known[stream].wait_event(event)
    return array.host


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError])
def test_arrays_that_cannot_be_taken_over_are_refused(session, error):
    """With the type and the library's words."""
    array = SimpleNamespace(__dlpack__=lambda stream: _raise(error("it is sparse")))
    with pytest.raises(
        MeasurementError, match=r"a SimpleNamespace cannot .* is sparse"
    ):
        session.adopted(array)


def test_a_lost_gpu_is_told_from_an_array_that_cannot_be_taken_over(session):
    """Another array would not do either."""
    array = SimpleNamespace(__dlpack__=lambda stream: _raise(ILLEGAL))
    with pytest.raises(DeviceLostError, match="start another one"):
        session.adopted(array)


def test_a_stream_waits_for_another_one(session):
    """Only for what was enqueued before."""
    done, first, second = [], Stream(), Stream()
    first.do(lambda: done.append("before"))
    session.wait(second, first)
    first.do(lambda: done.append("after"))
    second.do(lambda: done.append("waited"))
    second.synchronize()
    assert done == ["before", "waited"]


def test_a_kernel_gets_its_arguments_in_order():
    """By a pointer to each: addresses of arrays as given, numbers in their own type."""
    seen = []

    def launch(function, *sizes_and_stream):
        *sizes, stream, places, extra = sizes_and_stream
        slots = (ctypes.c_void_p * 4).from_address(places)
        kinds = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_double)
        values = [k.from_address(at).value for k, at in zip(kinds, slots, strict=True)]
        seen.append((function, sizes, stream, extra, values))

    values = [None, np.int32(-7), None, np.float64(2.5)]
    launcher = Launcher(launch, SimpleNamespace(ptr=99), range(1, 8), values)
    launcher([1 << 40, 512], 5)
    launcher([1024, 3], 6)
    sizes = [1, 2, 3, 4, 5, 6, 7]
    assert seen == [
        (99, sizes, 5, 0, [1 << 40, -7, 512, 2.5]),
        (99, sizes, 6, 0, [1024, -7, 3, 2.5]),
    ]
