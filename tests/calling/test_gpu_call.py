"""Calls of arrays on a GPU: with a driver's stand-in, and arrays that are said to be
there.
"""

from __future__ import annotations

import numpy as np
import pytest

import feinsum
from feinsum.calling import gpu_call
from feinsum.errors import (
    BuildError,
    DeviceUnavailableError,
    InvalidEinsumError,
    MeasurementError,
)
from feinsum.records import InMemoryStore
from tests.targets.cuda.stand_in import needs_nvrtc, stand_in
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
    return feinsum.call_einsum(subscripts, *given, database=InMemoryStore(), **options)


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
        ("ij,jk->ik", [(200, 64), (64, 200)], "gpu_product"),
        ("ij->i", [(40, 3000)], "gpu_rows"),
        ("ij->ji", [(50, 70)], "gpu_points"),
    ],
)
def test_the_family_is_the_one_that_is_predicted(
    stand_in, monkeypatch, subscripts, shapes, family
):
    """The first that is right, and spills little."""
    made = []
    predicted = gpu_call.predicted_kernel

    def seen(*given):
        made.append(predicted(*given))
        return made[-1]

    monkeypatch.setattr(gpu_call, "predicted_kernel", seen)
    call(subscripts, *(RNG.random(shape) for shape in shapes))
    assert [found[0].spec.name for found in made] == [family]


def test_a_kernel_that_spills_is_skipped(stand_in, monkeypatch):
    """The next prediction takes its place."""
    monkeypatch.setattr("feinsum.targets.cuda.figures.MOST_SPILLED", -1)
    with pytest.raises(BuildError, match="no family for GPUs works"):
        call("ij->ji", RNG.random((5, 6)))


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
    """On the host, on another GPU, not contiguous, or where there is no GPU."""
    store = InMemoryStore()
    with pytest.raises(MeasurementError, match="operand 1 is a ndarray that is not on"):
        feinsum.call_einsum("i,i", OnGpu(np.ones(3)), np.ones(3), database=store)
    with pytest.raises(MeasurementError, match=r"on the GPUs \[0, 1\]"):
        feinsum.call_einsum("i,i", OnGpu(np.ones(3)), OnGpu(np.ones(3), 1))
    with pytest.raises(DeviceUnavailableError, match="there is no GPU 7"):
        feinsum.call_einsum("i->i", OnGpu(np.ones(3), 7), database=store)
    with pytest.raises(MeasurementError, match="operand 0 has strides"):
        call("ij->i", np.ones((3, 4)).T)
    with pytest.raises(DeviceUnavailableError, match="omit out= and device="):
        call("i->i", np.ones(3), device="host")
    with pytest.raises(InvalidEinsumError, match="complex128 is not computed"):
        call("i,i", np.ones(3) * 1j, np.ones(3))


def test_results_go_to_the_library_of_the_first_operand(stand_in, monkeypatch):
    """By its own ``from_dlpack``, without a copy."""
    from types import SimpleNamespace

    taken = SimpleNamespace(from_dlpack=lambda array: ("taken", array))
    monkeypatch.setitem(__import__("sys").modules, "cupy", taken)
    monkeypatch.setattr(OnGpu, "__module__", "cupy._core")
    kind, array = call("i,i->i", np.arange(3.0), np.ones(3))
    assert kind == "taken"
    assert array.tolist() == [0.0, 1.0, 2.0]
