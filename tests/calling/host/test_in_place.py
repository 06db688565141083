"""Operands and results in place: the host reads and writes arrays where they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feinsum import call_einsum
from feinsum.calling import prepare_call
from feinsum.errors import InvalidEinsumError
from tests.calling.comparing import NO_FACTS

A = np.arange(60.0).reshape(5, 12)


class ByDLPack:
    """An array of another library, on the host or not."""

    def __init__(self, array, device=None):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()


class ByInterface:
    """An array that tells where its memory is."""

    def __init__(self, array):
        self.held, self.__array_interface__ = array, array.__array_interface__


class Sharded(ByInterface):
    """An array in several places."""

    def __dlpack_device__(self):
        raise BufferError("only supported for unsharded arrays")


VIEWS = {
    "transposed": A.T,
    "backwards": A[::-1, ::-1],
    "broadcast": np.broadcast_to(A[0], (7, 12)),
    "Fortran's order": np.asfortranarray(A),
    "an axis of one entry": A[:, :1].T,
    "one column": A[:, 3:4],
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_read_where_it_is(name):
    """Whatever its strides, nothing is copied, and the result is numpy's."""
    view, B = VIEWS[name], np.arange(3.0 * VIEWS[name].shape[1]).reshape(-1, 3)
    call = prepare_call("ij,jk->ki", view, B, database=NO_FACTS, device="host")
    assert all(take is None for _, take in call.inputs)
    np.testing.assert_allclose(call.run([view, B]), (view @ B).T, rtol=1e-14)


@st.composite
def views(draw):
    """A three-dimensional view of any strides."""
    base = np.arange(9 * 8 * 7, dtype=draw(st.sampled_from(["f8", "c8", "i4"])))
    axes = draw(st.permutations(range(3)))
    view = base.reshape(9, 8, 7).transpose(axes)
    for axis in range(3):
        step = draw(st.sampled_from([1, 2, 3, -1, -2]))
        start = draw(st.integers(0, 2))
        view = np.moveaxis(np.moveaxis(view, axis, 0)[start::step][:4], 0, axis)
    return view


@settings(max_examples=12)
@given(views(), st.permutations("abc"))
def test_any_view_gives_the_result_of_numpy(view, output):
    """Of sums over one index, in any order of the others."""
    subscripts = f"abc->{''.join(output[:2])}"
    found = call_einsum(subscripts, view, database=NO_FACTS, device="host")
    assert np.array_equal(found, np.einsum(subscripts, view))


def test_views_of_other_strides_share_a_kernel():
    """A program that slices with ever other steps compiles once."""
    B = np.ones(12)
    views = [A[:4:2], A[1::-1], A[4::-3]]
    calls = [prepare_call("ij,j->i", view, B, database=NO_FACTS) for view in views]
    assert len({call.kernel for call in calls}) == 1
    for view, call in zip(views, calls, strict=True):
        assert np.array_equal(call.run([view, B]), view @ B)


COPIED = {
    "other byte order": A.astype(">f8"),
    "single precision": A.astype("f4"),
    "in a record": np.rec.fromarrays([A, A.astype("i1")], names="x,y").x,
    "not aligned": np.frombuffer(b"." + A.tobytes(), "f8", offset=1).reshape(A.shape),
}


@pytest.mark.parametrize("name", COPIED)
def test_what_a_kernel_cannot_read_is_copied(name):
    """Another dtype or byte order, or entries at odd addresses: the result is right."""
    array = COPIED[name]
    call = prepare_call("ij,j->i", array, np.ones(12), database=NO_FACTS)
    assert call.inputs[0][1] is not None
    assert np.array_equal(call.run([array, np.ones(12)]), A.sum(axis=1))


@pytest.mark.parametrize("kind", [ByDLPack, ByInterface])
def test_arrays_of_other_libraries_are_read_where_they_are(kind):
    """By DLPack, or by the array interface: a later change of the memory is seen."""
    memory = A.copy()
    offered = kind(memory)
    memory[0] = 7
    found = call_einsum("ij->i", offered, database=NO_FACTS)
    assert np.array_equal(found, memory.sum(axis=1))


def test_memory_that_is_not_on_the_host_is_refused():
    """DLPack says where it is; the error says what to do."""
    with pytest.raises(InvalidEinsumError, match="copy it to the host"):
        call_einsum("ij->i", ByDLPack(A, device=(10, 0)), database=NO_FACTS)


OUTPUTS = {
    "in C's order": lambda: np.empty((5, 3)),
    "in Fortran's order": lambda: np.empty((5, 3), order="F"),
    "a part of an array": lambda: np.empty((9, 8))[2:7, 1:7:2],
    "backwards": lambda: np.empty((5, 3))[::-1],
    "not aligned": lambda: np.frombuffer(bytearray(121), "f8", offset=1).reshape(5, 3),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_result_is_written_where_it_is_asked_for(name):
    """Into arrays of any strides, and nowhere else."""
    out, B = OUTPUTS[name](), np.arange(36.0).reshape(12, 3)
    around = out.base if out.base is not None and out.base.ndim == 2 else None
    if around is not None:
        around[...] = -1.0
    found = call_einsum("ij,jk->ik", A, B, database=NO_FACTS, out=out)
    assert found is out
    np.testing.assert_allclose(out, A @ B, rtol=1e-14)
    if around is not None and around.size > out.size:
        assert np.count_nonzero(around == -1.0) == around.size - out.size


def test_entries_that_share_memory_are_not_written_in_parallel():
    """Such a result is copied from another array, entry by entry, as numpy does."""
    shared = np.lib.stride_tricks.as_strided(np.zeros(4), (4, 4), (0, 8))
    call_einsum("ij->ij", np.full((4, 4), 2.0), out=shared, database=NO_FACTS)
    assert np.array_equal(shared[0], [2.0] * 4)


def test_a_result_that_cannot_be_written_is_refused():
    """A read-only array, one of another shape or dtype: named, and not touched."""
    fixed = np.zeros(5)
    fixed.flags.writeable = False
    for out, why in (
        (fixed, "read-only"),
        (np.zeros(4), r"shape \(4,\)"),
        (np.zeros(5, "f4"), "float32"),
        ([0.0] * 5, "list"),
    ):
        with pytest.raises(InvalidEinsumError, match=why):
            call_einsum("ij->i", A, database=NO_FACTS, out=out)


def test_an_array_in_several_places_is_numpys_to_read():
    """No single device has it, and DLPack does not name one."""
    result = call_einsum("ij->i", Sharded(A), database=NO_FACTS)
    np.testing.assert_allclose(result, A.sum(1), rtol=1e-14)
