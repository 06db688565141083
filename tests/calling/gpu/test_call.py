"""Calls of arrays on a GPU: with a driver's stand-in, and arrays that are said to be
there.
"""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest

import feinsum
from feinsum.calling import kernel as kernels
from feinsum.calling.einsum_call import parse_call
from feinsum.calling.gpu import building
from feinsum.calling.gpu.cached import CachedCalls
from feinsum.calling.gpu.flat import flatten_call
from feinsum.calling.gpu.site import Site
from feinsum.calling.kernel import (
    build_predicted_kernel,
    is_faulty,
    list_predicted_families,
)
from feinsum.calling.kernel_cache import LookupOptions
from feinsum.errors import (
    DeviceLostError,
    DeviceUnavailableError,
    InvalidEinsumError,
    MeasurementError,
)
from feinsum.measure import open_device
from feinsum.memory import use_fresh_memory
from feinsum.records import InMemoryStore
from tests.targets.cuda.stand_in import StandInDriver, needs_nvrtc, stand_in
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["stand_in"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]


@pytest.fixture(autouse=True)
def without_timing(monkeypatch):
    """What is predicted to be the fastest is taken: the times here mean nothing."""
    monkeypatch.setattr(building, "PLAUSIBLE", 1.0)


@pytest.fixture
def set_times(monkeypatch):
    """Sets the seconds of a call to a function of its launches; returns the session."""

    def set_times(seconds_of):
        session = open_device("cuda").session

        def timed(_self, run, _stream):
            session.launches.clear()
            run()
            return seconds_of(session.launches)

        monkeypatch.setattr(building, "PLAUSIBLE", np.inf)
        monkeypatch.setattr(type(session), "timed", timed)
        return session

    return set_times


class OnGpu:
    """An array of some library, on a GPU by what DLPack says."""

    def __init__(self, host, ordinal=0):
        self.host, self.ordinal = np.asarray(host), ordinal

    def __dlpack_device__(self):
        return (2, self.ordinal)


def call(subscripts, *arrays, **options):
    given = [OnGpu(array) for array in arrays]
    how = {"database": InMemoryStore(), "effort": "estimate", **options}
    return feinsum.call_einsum(subscripts, *given, **how)


def place_of(subscripts, *arrays):
    """What is read of a call, and the place where it is computed."""
    given = [(x.shape, x.dtype) for x in arrays]
    options = LookupOptions(InMemoryStore(), effort="estimate")
    parsed = parse_call(subscripts, given, tuple(range(len(arrays))))
    return parsed, Site([*arrays], None, open_device("cuda"), options)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(9, 40), (40, 70)]),
        ("i,j->ij", [(5,), (3,)]),
        ("...ij,jk", [(2, 5, 4), (4, 3)]),
        ("iij,kjl->lk", [(5, 5, 4), (3, 4, 6)]),
        ("ijk,i->ijk", [(3, 20, 30), (3,)]),
        ("ij,jk->ik", [(0, 4), (4, 3)]),
        ("ij,jk,kl->il", [(11, 11)] * 3),  # in pairs: one nest would do far more
    ],
)
def test_a_call_computes_where_the_operands_are(stand_in, subscripts, shapes):
    """By what is predicted, where nothing is recorded."""
    arrays = [RNG.random(shape) for shape in shapes]
    assert np.allclose(call(subscripts, *arrays), np.einsum(subscripts, *arrays))


@pytest.mark.parametrize(
    ("subscripts", "shapes", "family"),
    [
        ("ij,jk->ik", [(200, 64), (64, 200)], "gpu_matrices"),
        ("ij->i", [(40, 3000)], "gpu_rows"),
        ("ij,ij->ij", [(50, 70), (50, 70)], "gpu_points"),
        ("ij->", [(90, 170)], "gpu_split_sum"),
    ],
)
def test_the_family_is_the_one_that_is_predicted(
    stand_in, monkeypatch, subscripts, shapes, family
):
    """The first that is right, and spills little."""
    made = []
    predicted = building.build_predicted_kernel

    def seen(*given):
        made.append(predicted(*given))
        return made[-1]

    monkeypatch.setattr(building, "build_predicted_kernel", seen)
    monkeypatch.setattr(building, "plan_step", lambda *_, **__: (1.0, None))
    call(subscripts, *(RNG.random(shape).astype("float32") for shape in shapes))
    assert [found[0].spec.name for found in made] == [family]


def test_a_kernel_that_spills_is_skipped(stand_in, monkeypatch):
    """If there is no other one, libraries compute the einsum."""
    monkeypatch.setattr("feinsum.targets.cuda.figures.MAX_SPILLED", -1)
    session = open_device("cuda").session
    session.launches.clear()
    a = RNG.random((5, 6))
    assert np.array_equal(call("ij,ij->ij", a, a), a * a)
    assert session.launches[-1] == "library"


def test_steps_may_have_more_indices_than_letters(stand_in, monkeypatch):
    """Only libraries need a letter for each."""
    monkeypatch.setattr(building, "list_kernel_contenders", lambda *_: iter(()))
    shapes = (3, 2, *27 * [1]), (2, *27 * [1], 4)
    arrays = [RNG.random(shape) for shape in shapes]
    one, two = ("".join(f"{{{name}{k}}}" for k in range(27)) for name in "xy")
    text = f"ij{one}, j{two}k -> ik"
    found = building._list_contenders(*place_of(text, *arrays))
    made = next(x for x in found if x.kind == "steps").make()
    expected = arrays[0].reshape(3, 2) @ arrays[1].reshape(2, 4)
    assert np.allclose(made(arrays, None), expected)


def test_integers_are_summed_as_numpy_does(stand_in):
    """In the dtype of the result."""
    arrays = [np.arange(12, dtype=np.int32).reshape(3, 4), np.arange(4, dtype=np.int32)]
    result = call("ij,j->i", *arrays)
    assert result.dtype == np.int32
    assert np.array_equal(result, arrays[0] @ arrays[1])


def test_arrays_elsewhere_are_refused(stand_in):
    """On the host, on another GPU, or where there is no GPU; also for the result."""
    store = InMemoryStore()
    with pytest.raises(MeasurementError, match="operand 1 is an ndarray that is not"):
        feinsum.call_einsum("i,i", OnGpu(np.ones(3)), np.ones(3), database=store)
    with pytest.raises(MeasurementError, match=r"on the GPUs \[0, 1\]"):
        feinsum.call_einsum("i,i", OnGpu(np.ones(3)), OnGpu(np.ones(3), 1))
    with pytest.raises(DeviceUnavailableError, match="there is no GPU 7"):
        feinsum.call_einsum("i->i", OnGpu(np.ones(3), 7), database=store)
    with pytest.raises(DeviceUnavailableError, match="omit device="):
        call("i->i", np.ones(3), device="host")
    with pytest.raises(MeasurementError, match="out is an ndarray that is not on a"):
        call("i->i", np.ones(3), out=np.ones(3))
    with pytest.raises(InvalidEinsumError, match="out has shape"):
        call("i->i", np.ones(3), out=OnGpu(np.ones(4)))


@pytest.mark.parametrize(
    ("subscripts", "dtype"), [("ij,jk->ki", "complex128"), ("ij,ik->jk", "complex64")]
)
def test_complex_numbers_are_for_libraries(stand_in, subscripts, dtype):
    """Families for GPUs have no complex numbers."""
    arrays = [(RNG.random((4, 4)) + 1j * RNG.random((4, 4))).astype(dtype)] * 2
    result = call(subscripts, *arrays)
    assert result.dtype == dtype
    assert np.allclose(result, np.einsum(subscripts, *arrays))


def test_large_products_are_for_libraries(stand_in):
    """Unless a recipe is expected to be far faster; small ones are for kernels."""
    session = open_device("cuda").session
    for n, is_library in ((200, True), (3, False)):
        session.launches.clear()
        arrays = RNG.random((n, n)), RNG.random((n, n))
        assert np.allclose(call("ij,jk->ik", *arrays), arrays[0] @ arrays[1])
        assert ("product" in session.launches) == is_library


@pytest.mark.parametrize("is_kernel", [True, False])
def test_a_recorded_recipe_is_timed_against_the_library(
    stand_in, monkeypatch, set_times, is_kernel
):
    """Once, and the faster one is taken."""
    expected = "launch" if is_kernel else "product"

    def recorded(problem, opened, _options):
        every = list_predicted_families(problem, opened)
        (family,) = [some for some in every if some[0].spec.name == "gpu_product"]
        return build_predicted_kernel(problem, opened, candidates=family)[0]

    monkeypatch.setattr(building, "build_recorded_kernel", recorded)
    session = set_times(lambda launches: 1e9 * (launches != [expected]))
    arrays = RNG.random((40, 50)), RNG.random((50, 60))
    database = InMemoryStore()
    for _ in range(2):
        session.launches.clear()
        result = feinsum.call_einsum(
            "ij,jk->ik", *map(OnGpu, arrays), database=database
        )
        assert np.allclose(result, arrays[0] @ arrays[1])
    assert session.launches == [expected]


def test_a_call_is_kept(stand_in, monkeypatch):
    """A library answers the first one of such arrays. With a store of this process,
    the second one builds a kernel, and later ones only launch it.
    """
    session = open_device("cuda").session
    given = OnGpu(RNG.random((5, 33)))
    options = {"database": InMemoryStore(), "effort": "amortized"}
    made = building.build
    session.launches.clear()
    for k in range(4):
        result = feinsum.call_einsum("ij->i", given, **options)
        assert np.allclose(result, given.host.sum(1))
        assert (session.launches[0] == "library") == (k == 0)
        session.launches.clear()
        gc.collect()
        forbidden = made if k == 0 else lambda *_: pytest.fail("made again")
        monkeypatch.setattr(building, "build", forbidden)


@pytest.mark.parametrize("shape", [(7, 5), (0, 5)])
def test_a_result_can_be_given_an_array(stand_in, shape):
    """With any strides; it is returned."""
    out = OnGpu(np.ones(shape[::-1]).T)
    a, b = RNG.random((shape[0], 3)), RNG.random((3, shape[1]))
    assert call("ij,jk->ik", a, b, out=out) is out
    assert np.allclose(out.host, a @ b)


def test_einsum_writes_into_an_array_there(stand_in):
    """As ``call_einsum`` does: numpy's casts and orders are for arrays of the host."""
    out, a, b = OnGpu(np.ones((4, 5))), RNG.random((4, 3)), RNG.random((3, 5))
    options = {"database": InMemoryStore(), "effort": "estimate"}
    assert feinsum.einsum("ij,jk", OnGpu(a), OnGpu(b), out=out, **options) is out
    assert np.allclose(out.host, a @ b)
    with pytest.raises(MeasurementError, match="out is an ndarray that is not on a"):
        feinsum.einsum("ij,jk", OnGpu(a), OnGpu(b), out=np.ones((4, 5)), **options)


def test_nothing_is_predicted_for_the_effort_that_takes_records_alone(
    stand_in, monkeypatch
):
    """Libraries compute what has none."""
    monkeypatch.setattr(building, "list_predicted_families", None)
    arrays = [RNG.random((3, 4)), RNG.random((4, 5)), RNG.random((5, 2))]
    result = call("ij,jk,kl->li", *arrays, effort="recorded")
    assert np.allclose(result, np.einsum("ij,jk,kl->li", *arrays))


def test_parts_of_a_call_need_no_record(stand_in, monkeypatch):
    """Only the einsum that was given has to be on record, if one has to."""
    monkeypatch.setattr(building, "PLAUSIBLE", np.inf)
    asked = set()

    def recorded(problem, _opened, options):
        asked.add((problem.einsum.n_operands, options.on_miss))

    monkeypatch.setattr(building, "build_recorded_kernel", recorded)
    monkeypatch.setattr(building, "list_predicted_families", lambda *_: [])
    arrays = [RNG.random((3, 4)), RNG.random((4, 5)), RNG.random((5, 2))]
    call("ij,jk,kl->li", *arrays, on_miss="raise")
    assert (3, "raise") in asked
    assert {on_miss for n, on_miss in asked if n < 3} == {"return"}


@pytest.mark.parametrize("has_room", [True, False])
def test_recorded_kernels_are_shared_where_the_memory_does_not_decide(
    stand_in, monkeypatch, has_room
):
    """Other sizes may exceed the limit of intermediate results."""
    asked = []

    def recorded(problem, opened, _options):
        asked.append(problem.sizes)
        return build_predicted_kernel(problem, opened)[0]

    monkeypatch.setattr(building, "build_recorded_kernel", recorded)
    monkeypatch.setattr("feinsum.calling.kernel.do_all_fit", lambda *_: has_room)
    opened, options, kept = open_device("cuda"), LookupOptions(InMemoryStore()), []
    for n in (600, 700):
        parsed = parse_call("ij->i", [((n, 5), np.dtype(float))], (0,))
        site = Site([np.ones((n, 5))], None, opened, options)
        kept += building.list_kernel_contenders(parsed, site)
    assert len(asked) == (1 if has_room else 2)


def test_a_way_with_an_intermediate_result_that_is_too_large_is_skipped(
    stand_in, monkeypatch
):
    """One kernel computes what has no other way."""
    monkeypatch.setattr(building, "PLAUSIBLE", np.inf)
    monkeypatch.setattr(building, "N_FAMILIES", 1)
    monkeypatch.setattr("feinsum.calling.operands.MAX_ENTRIES", 30)
    arrays = [RNG.random((2, 9)) for _ in range(3)]
    result = call("ax,bx,cx->abc", *arrays)
    assert np.allclose(result, np.einsum("ax,bx,cx->abc", *arrays))


def test_threads_wait_for_the_one_that_builds(stand_in, monkeypatch):
    """The others take what it has built."""
    both, built = Barrier(2), []

    def build(*_):
        built.append("a call")
        with suppress(BrokenBarrierError):
            both.wait(0.1)  # for a second one that builds
        return built[-1]

    monkeypatch.setattr(building, "build", build)
    kept = CachedCalls(parsed=None, library=None)
    with ThreadPoolExecutor(2) as threads:
        found = [*threads.map(kept.next, [None, None])]
    assert found == ["a call"] * 2
    assert len(built) == 1


def test_arrays_with_other_strides_are_copied(stand_in):
    """There, where they are."""
    a = RNG.random((30, 40))
    assert np.allclose(call("ij->i", a.T), a.sum(0))
    assert np.allclose(call("ij,ij->ij", a[::2, ::-1], a[::2]), a[::2, ::-1] * a[::2])


def test_a_repeated_call_does_not_ask_the_driver(stand_in, monkeypatch):
    """Listing its GPUs takes a driver longer than a small call."""
    a, b = RNG.random((9, 8)), RNG.random((8, 7))
    assert np.allclose(call("ij,jk->ik", a, b), a @ b)
    monkeypatch.setattr(StandInDriver, "gpus", None)
    assert np.allclose(call("ij,jk->ik", a, b), a @ b)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "kind"),
    [
        ("ja,a,ka,ikcd->ijcd", [(40, 90), (90,), (40, 90), (40, 40, 90, 90)], "steps"),
        ("ab,cd,de->be", [(900, 900)] * 3, "steps"),
        ("xre,rij,ej->xei", [(3, 3, 90000), (3, 20, 20), (90000, 20)], "kernel"),
        ("ij,jk->ik", [(900, 900)] * 2, "product"),
        ("obk,ijk->ioj", [(48, 48, 102), (36, 102, 102)], "steps"),
    ],
)
def test_the_way_to_compute_is_the_one_that_is_predicted(
    stand_in, subscripts, shapes, kind
):
    """A path where one kernel takes longer; an operator of elements is one kernel."""
    arrays = [np.broadcast_to(np.float64(1), shape) for shape in shapes]
    every = building._list_contenders(*place_of(subscripts, *arrays))
    found = {one.kind: one.seconds for one in every}
    assert min(found, key=found.__getitem__) == kind


@pytest.mark.parametrize(
    ("subscripts", "shapes", "dtype"),
    [
        ("ja,ka,ikc->ijc", [(3, 4), (5, 4), (2, 5, 6)], "float64"),
        ("iij,kjl->lk", [(5, 5, 4), (3, 4, 6)], "float64"),
        ("ij,kj->ki", [(5, 4), (3, 4)], "float16"),
        ("tij,tjk->tik", [(2, 33, 24), (2, 24, 40)], "float16"),
        ("ij->j", [(300, 4)], "float16"),
        ("tij,tjk->ik", [(40, 3, 4), (40, 4, 5)], "float64"),
    ],
)
def test_every_contender_computes_the_einsum(
    stand_in, monkeypatch, subscripts, shapes, dtype
):
    """Step by step, and with all launches prepared, where that is possible."""
    monkeypatch.setattr(building, "N_FAMILIES", 1)
    arrays = [RNG.random(shape).astype(dtype) for shape in shapes]
    parsed, site = place_of(subscripts, *arrays)
    expected = np.einsum(subscripts, *(x.astype("float64") for x in arrays))
    tolerance = 100 * np.finfo(dtype).eps
    n_flat = 0
    for contender in building._list_contenders(parsed, site):
        call = contender.make()
        quick = flatten_call(call, site.opened, arrays)
        n_flat += quick is not call
        for one in (call, quick):
            result = one(arrays, None)
            assert (result.shape, result.dtype) == (expected.shape, dtype)
            assert np.allclose(result, expected, tolerance, tolerance)
    assert n_flat


@pytest.mark.parametrize(
    ("subscripts", "shapes", "dtype"),
    [
        ("iabj,kbal->jkli", [(5, 2, 3, 6), (7, 3, 2, 8)], "float64"),
        ("oij,jk->iko", [(1, 5, 6), (6, 7)], "complex64"),
        ("bij,bkj->bki", [(2, 5, 4), (2, 3, 4)], "float16"),
        ("ij,ij->", [(5, 4), (5, 4)], "float32"),
    ],
)
def test_cutensor_is_a_candidate_for_products(
    stand_in, monkeypatch, subscripts, shapes, dtype
):
    """It takes arrays in place, and is one of those that are timed."""
    monkeypatch.setattr(building, "has_cutensor", lambda: True)
    arrays = [RNG.random(shape).astype(dtype).swapaxes(0, 1).copy() for shape in shapes]
    arrays = [array.swapaxes(0, 1) for array in arrays]
    every = building._list_contenders(*place_of(subscripts, *arrays))
    (call,) = (x.make() for x in every if x.kind == "cutensor")
    result = call(arrays, None)
    expected = np.einsum(subscripts, *(x.astype("complex128") for x in arrays))
    assert (result.shape, result.dtype) == (expected.shape, dtype)
    assert np.allclose(result, expected, rtol=100 * np.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "dtype", "has_library"),
    [
        ("ij,jk->ik", [(5, 6), (6, 7)], "float64", False),
        ("ij,jk->ik", [(5, 6), (6, 7)], "int64", True),
        ("ij,ij->ij", [(5, 6), (5, 6)], "float64", True),
        ("ij,jk->k", [(5, 6), (6, 7)], "float64", True),
        ("ij,jk,kl->il", [(5, 6), (6, 7), (7, 8)], "float64", True),
        ("iij,jk->ik", [(5, 5, 6), (6, 7)], "float64", True),
    ],
)
def test_cutensor_is_no_candidate(
    stand_in, monkeypatch, subscripts, shapes, dtype, has_library
):
    """Without the library, for other dtypes, and for what is no product."""
    monkeypatch.setattr(building, "has_cutensor", lambda: has_library)
    arrays = [RNG.random(shape).astype(dtype) for shape in shapes]
    every = building._list_contenders(*place_of(subscripts, *arrays))
    assert "cutensor" not in {one.kind for one in every}


def test_cutensor_is_chosen_where_it_is_the_fastest(stand_in, monkeypatch, set_times):
    """By the times, as the others are."""
    monkeypatch.setattr(building, "has_cutensor", lambda: True)
    session = set_times(lambda launches: 1e9 * (launches != ["cutensor"]))
    a, b = RNG.random((9, 8)), RNG.random((8, 7))
    assert np.allclose(call("ij,jk->ik", a, b), a @ b)
    assert session.launches[-1] == "cutensor"


def test_views_are_views(stand_in):
    """Of a single operand without a sum, as numpy gives them."""
    a = np.asarray(RNG.random((5, 7, 3)))
    result = call("ijk->kij", a)
    assert np.array_equal(result, a.transpose(2, 0, 1))
    assert np.shares_memory(result, a)
    diagonal = call("iij->ji", a[:3].transpose(0, 2, 1))
    assert np.array_equal(diagonal, np.einsum("iji->ji", a[:3]))
    assert np.shares_memory(diagonal, a)


class Native(np.ndarray):
    """An array of the stand-in's own kind."""

    def __dlpack_device__(self):
        return (2, 0)


def test_a_repeated_call_of_native_arrays_is_at_hand(stand_in, monkeypatch):
    """Nothing is read or looked up again: only the launch is left."""
    a, b = (RNG.random(shape).view(Native) for shape in ((9, 8), (8, 7)))
    options = {"database": InMemoryStore(), "effort": "estimate"}
    for _ in range(2):
        assert np.allclose(feinsum.call_einsum("ij,jk->ik", a, b, **options), a @ b)
    monkeypatch.setattr("feinsum.calling.gpu.call.call_on_gpu", None)
    for other in (b, 2 * b):
        result = feinsum.call_einsum("ij,jk->ik", a, other, **options)
        assert np.allclose(result, a @ other)
    with pytest.raises(TypeError, match="not callable"):  # of other strides
        feinsum.call_einsum("ij,jk->ik", a, b.T.copy().T, **options)


def test_contenders_are_timed(stand_in, set_times):
    """The fastest one is kept, whatever was predicted; one that fails is skipped."""

    def seconds_of(launches):
        if "product" in launches:
            raise MeasurementError("cuBLAS is not there")
        return 1.0

    session = set_times(seconds_of)
    a, b = RNG.random((9, 8)), RNG.random((8, 7))
    assert np.allclose(call("ij,jk->ik", a, b), a @ b)
    assert session.launches[-1] == "launch"


def lose_gpu(*_):
    raise DeviceLostError("start another process")


def test_a_recipe_that_costs_the_gpu_is_left_out_later(stand_in, monkeypatch, tmp_path):
    """The call ends with the reason; the next process takes another recipe."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    checked, tried = kernels.build_checked_kernel, []

    def seen(spec, *given):
        tried.append(spec)
        return checked(spec, *given)

    monkeypatch.setattr(kernels, "build_checked_kernel", seen)
    session, a = open_device("cuda").session, RNG.random((40, 300))
    with monkeypatch.context() as patch, use_fresh_memory():
        patch.setattr(type(session), "launch", lose_gpu)
        with pytest.raises(DeviceLostError, match="start another process"):
            call("ij->i", a)
    (lost,) = tried
    with use_fresh_memory():
        assert np.allclose(call("ij->i", a), a.sum(1))
    assert lost not in tried[1:]
    assert tried[1:]


def test_a_contender_that_costs_the_gpu_is_left_out_later(
    stand_in, monkeypatch, tmp_path
):
    """Also if it is right and fails only while it is timed."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    arrays = [RNG.random((40, 300))]
    parsed, site = place_of("ij->i", *arrays)
    opened = site.opened
    kernel = next(building.list_kernel_contenders(parsed, site)).make()
    monkeypatch.setattr(type(opened.session), "timed", lose_gpu)
    with pytest.raises(DeviceLostError):
        building._time_call(flatten_call(kernel, opened, arrays), site)
    assert is_faulty(kernel.parsed.einsum, kernel.kernel.spec, opened)


def test_all_kernels_of_a_contender_are_left_out_later(stand_in, monkeypatch, tmp_path):
    """Where it has several, each of them may have cost the GPU."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "_list_products", lambda *_: iter(()))
    arrays = [RNG.random(shape) for shape in [(3, 4), (4, 5), (5, 6)]]
    parsed, site = place_of("ij,jk,kl->li", *arrays)
    opened = site.opened
    steps = next(
        x for x in building._list_contenders(parsed, site) if x.kind == "steps"
    )
    made = steps.make()
    monkeypatch.setattr(type(opened.session), "timed", lose_gpu)
    with pytest.raises(DeviceLostError):
        building._time_call(flatten_call(made, opened, arrays), site)
    parts = [one.origin for _, one in made.steps]
    assert len(parts) == 2
    for kernel in parts:
        assert is_faulty(kernel.parsed.einsum, kernel.kernel.spec, opened)
