"""Calls of arrays on a GPU: with a driver's stand-in, and arrays that are said to be
there.
"""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import feinsum
from feinsum.calling import gpu_building
from feinsum.calling.options import CallOptions
from feinsum.calling.reading import read_shapes
from feinsum.errors import (
    DeviceUnavailableError,
    InvalidEinsumError,
    MeasurementError,
)
from feinsum.measure import open_device
from feinsum.records import InMemoryStore
from tests.targets.cuda.stand_in import StandInDriver, needs_nvrtc, stand_in
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["stand_in"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]


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


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("ij,jk->ik", [(9, 40), (40, 70)]),
        ("ij,j->i", [(5, 33), (33,)]),
        ("i,j->ij", [(5,), (3,)]),
        ("ij->ji", [(5, 7)]),
        ("ij,j,k->ik", [(5, 4), (4,), (3,)]),
        ("...ij,jk", [(2, 5, 4), (4, 3)]),
        ("ij,jk->ik", [(0, 4), (4, 3)]),
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
        ("ij->ji", [(50, 70)], "gpu_points"),
        ("ij->", [(90, 170)], "gpu_split_sum"),
    ],
)
def test_the_family_is_the_one_that_is_predicted(
    stand_in, monkeypatch, subscripts, shapes, family
):
    """The first that is right, and spills little."""
    made = []
    predicted = gpu_building.predicted_kernel

    def seen(*given):
        made.append(predicted(*given))
        return made[-1]

    monkeypatch.setattr(gpu_building, "predicted_kernel", seen)
    monkeypatch.setattr(gpu_building, "_is_quicker", lambda *_: False)
    call(subscripts, *(RNG.random(shape).astype("float32") for shape in shapes))
    assert [found[0].spec.name for found in made] == [family]


def test_a_kernel_that_spills_is_skipped(stand_in, monkeypatch):
    """If there is no other one, libraries compute the einsum."""
    monkeypatch.setattr("feinsum.targets.cuda.figures.MOST_SPILLED", -1)
    session = open_device("cuda").session
    session.launches.clear()
    a = RNG.random((5, 6))
    assert np.array_equal(call("ij->ji", a), a.T)
    assert session.launches[-1] == "library"


def test_many_operands_are_multiplied_in_pairs(stand_in):
    """One nest would take eight times as many operations."""
    arrays = [RNG.random((11, 11)) for _ in range(4)]
    subscripts = "ij,jk,kl,lm->im"
    assert np.allclose(call(subscripts, *arrays), np.einsum(subscripts, *arrays))


def test_integers_are_summed_as_numpy_does(stand_in):
    """In the dtype of the result."""
    arrays = [np.arange(12, dtype=np.int32).reshape(3, 4), np.arange(4, dtype=np.int32)]
    result = call("ij,j->i", *arrays)
    assert result.dtype == np.int32
    assert np.array_equal(result, arrays[0] @ arrays[1])


def test_arrays_elsewhere_are_refused(stand_in):
    """On the host, on another GPU, or where there is no GPU; also for the result."""
    store = InMemoryStore()
    with pytest.raises(MeasurementError, match="operand 1 is a ndarray that is not on"):
        feinsum.call_einsum("i,i", OnGpu(np.ones(3)), np.ones(3), database=store)
    with pytest.raises(MeasurementError, match=r"on the GPUs \[0, 1\]"):
        feinsum.call_einsum("i,i", OnGpu(np.ones(3)), OnGpu(np.ones(3), 1))
    with pytest.raises(DeviceUnavailableError, match="there is no GPU 7"):
        feinsum.call_einsum("i->i", OnGpu(np.ones(3), 7), database=store)
    with pytest.raises(DeviceUnavailableError, match="omit device="):
        call("i->i", np.ones(3), device="host")
    with pytest.raises(MeasurementError, match="operand 1 is a ndarray that is not on"):
        call("i->i", np.ones(3), out=np.ones(3))
    with pytest.raises(InvalidEinsumError, match="out has shape"):
        call("i->i", np.ones(3), out=OnGpu(np.ones(4)))


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,jk->ki", "ij,ik->jk"])
@pytest.mark.parametrize("dtype", ["complex128", "complex64"])
def test_complex_numbers_are_for_libraries(stand_in, subscripts, dtype):
    """Families for GPUs have no complex numbers."""
    arrays = [(RNG.random((4, 4)) + 1j * RNG.random((4, 4))).astype(dtype)] * 2
    result = call(subscripts, *arrays)
    assert result.dtype == dtype
    assert np.allclose(result, np.einsum(subscripts, *arrays))


def test_large_products_are_for_libraries(stand_in):
    """Unless a recipe is expected to be far faster; small ones are for kernels."""
    session = open_device("cuda").session
    for n, is_library in ((1000, True), (3, False)):
        session.launches.clear()
        arrays = RNG.random((n, n)), RNG.random((n, n))
        assert np.allclose(call("ij,jk->ik", *arrays), arrays[0] @ arrays[1])
        assert ("library" in session.launches) == is_library


@pytest.mark.parametrize("is_kernel", [True, False])
def test_a_recorded_recipe_is_timed_against_the_library(
    stand_in, monkeypatch, is_kernel
):
    """Once, and the faster one is taken."""
    session = open_device("cuda").session
    monkeypatch.setattr(
        gpu_building,
        "recorded_kernel",
        lambda einsum, sizes, _, opened, __: gpu_building._predicted(
            einsum, sizes, opened
        ),
    )

    def timed(_self, run, _stream):
        session.launches.clear()
        run()
        return float(("library" in session.launches) == is_kernel)

    monkeypatch.setattr(type(session), "timed", timed)
    arrays = RNG.random((40, 50)), RNG.random((50, 60))
    database = InMemoryStore()
    for _ in range(2):
        session.launches.clear()
        result = feinsum.call_einsum(
            "ij,jk->ik", *map(OnGpu, arrays), database=database
        )
        assert np.allclose(result, arrays[0] @ arrays[1])
    assert session.launches == ["launch" if is_kernel else "library"]


def test_a_call_is_kept(stand_in, monkeypatch):
    """A library answers the first one of such arrays, the second one builds a kernel,
    and later ones only launch it.
    """
    session = open_device("cuda").session
    given = OnGpu(RNG.random((5, 33)))
    options = {"database": InMemoryStore(), "effort": "amortized"}
    made = gpu_building._build
    session.launches.clear()
    for k in range(4):
        result = feinsum.call_einsum("ij->i", given, **options)
        assert np.allclose(result, given.host.sum(1))
        assert (session.launches[0] == "library") == (k == 0)
        session.launches.clear()
        gc.collect()
        forbidden = made if k == 0 else lambda *_: pytest.fail("made again")
        monkeypatch.setattr(gpu_building, "_build", forbidden)


@pytest.mark.parametrize("shape", [(7, 5), (0, 5)])
def test_a_result_can_be_given_an_array(stand_in, shape):
    """With any strides; it is returned."""
    out = OnGpu(np.ones(shape[::-1]).T)
    a, b = RNG.random((shape[0], 3)), RNG.random((3, shape[1]))
    assert call("ij,jk->ik", a, b, out=out) is out
    assert np.allclose(out.host, a @ b)


def test_arrays_with_other_strides_are_copied(stand_in):
    """There, where they are."""
    a = RNG.random((30, 40))
    assert np.allclose(call("ij->i", a.T), a.sum(0))
    assert np.allclose(call("ij,ij->ij", a[::2, ::-1], a[::2]), a[::2, ::-1] * a[::2])


def test_tensors_of_torch_go_to_torch(stand_in, monkeypatch):
    """Where a library computes the einsum; its own notation is letters."""
    torch = pytest.importorskip("torch")
    a, b = torch.rand(600, 700), torch.rand(700, 800)
    opened = open_device("cuda")
    arrays = [x.numpy() for x in (a, b)]
    options = CallOptions(InMemoryStore(), effort="estimate")
    made = gpu_building.gpu_call("ij,jk", arrays, [a, b], opened, options, None)
    assert isinstance(made, gpu_building.LibraryCall)
    assert torch.allclose(made.with_torch(torch, [a, b]), a @ b, rtol=1e-4)


def test_results_go_to_the_library_of_the_first_operand(stand_in, monkeypatch):
    """By its own ``from_dlpack``, without a copy."""
    taken = SimpleNamespace(from_dlpack=lambda array: ("taken", array))
    monkeypatch.setitem(sys.modules, "cupy", taken)
    monkeypatch.setattr(OnGpu, "__module__", "cupy._core")
    kind, array = call("i,i->i", np.arange(3.0), np.ones(3))
    assert kind == "taken"
    assert array.tolist() == [0.0, 1.0, 2.0]


def test_a_repeated_call_does_not_ask_the_driver(stand_in, monkeypatch):
    """Listing its GPUs takes a driver longer than a small call."""
    a, b = RNG.random((9, 8)), RNG.random((8, 7))
    assert np.allclose(call("ij,jk->ik", a, b), a @ b)
    monkeypatch.setattr(StandInDriver, "gpus", None)
    assert np.allclose(call("ij,jk->ik", a, b), a @ b)


@pytest.mark.parametrize(
    ("subscripts", "shapes", "is_in_pairs"),
    [
        ("ja,a,ka,ikcd->ijcd", [(40, 90), (90,), (40, 90), (40, 40, 90, 90)], True),
        ("ab,cd,de->be", [(900, 900)] * 3, True),
        ("xre,rij,ej->xei", [(3, 3, 90000), (3, 20, 20), (90000, 20)], False),
    ],
)
def test_what_one_kernel_computes_more_slowly_is_computed_in_pairs(
    stand_in, subscripts, shapes, is_in_pairs
):
    """By what is predicted; an operator of elements is one kernel."""
    given = [(shape, np.dtype(np.float64)) for shape in shapes]
    reading = read_shapes(subscripts, given, tuple(range(len(shapes))))
    site = gpu_building._Site([], None, open_device("cuda"), CallOptions(None), ())
    path = gpu_building.untransformed_path(reading.einsum, reading.sizes)
    assert path is not None
    found = gpu_building._is_quicker_in_pairs(reading, site.opened, path)
    assert found is is_in_pairs
