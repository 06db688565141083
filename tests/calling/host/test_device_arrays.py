"""Operands that lie on a device already."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import call_einsum
from feinsum.errors import DeviceUnavailableError, MeasurementError
from tests.calling.comparing import NO_FACTS
from tests.cpus import any_opencl

cl = pytest.importorskip("pyopencl")
A = np.arange(12.0).reshape(3, 4)


@pytest.fixture(scope="module")
def context():
    """A context that is not the one of feinsum; a queue need not keep it alive."""
    return cl.Context([any_opencl().handle])


@pytest.fixture(scope="module")
def queue(context):
    return cl.CommandQueue(context)


@pytest.fixture(scope="module")
def on_device(queue):
    import pyopencl.array as cl_array

    return lambda array: cl_array.to_device(queue, np.asarray(array))


@pytest.mark.parametrize(
    ("subscripts", "operands"),
    [
        ("ij,kj->ik", [A, A.astype("f4")]),
        ("ij,ij->", [A, A]),
        ("ij,ij->ij", [A, A[:, :1].copy()]),
        ("ij->j", [A[:0]]),
    ],
)
def test_the_result_is_where_the_operands_are(subscripts, operands, on_device, queue):
    """It lies on the device, in the queue of the operands, and is numpy's."""
    result = call_einsum(subscripts, *map(on_device, operands), database=NO_FACTS)
    expected = np.asarray(np.einsum(subscripts, *operands))
    assert result.queue == queue
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert np.array_equal(result.get(), expected)


def test_what_a_kernel_cannot_be_given_is_refused(on_device):
    """Arrays of two places, views that are not contiguous, truth values."""
    x = on_device(A)
    y = on_device(A > 1)
    for operands, why in [
        ((x, A), "host"),
        ((x, x.T), "strides"),
        ((y, y), "booleans"),
    ]:
        with pytest.raises(MeasurementError, match=why):
            call_einsum("ij,jk", *operands, database=NO_FACTS)


def test_the_device_is_that_of_the_operands(on_device):
    """Another one cannot be asked for."""
    with pytest.raises(DeviceUnavailableError, match="omit it"):
        call_einsum("ij->j", on_device(A), database=NO_FACTS, device="pocl")
