"""Programs of the host in the place of a kernel of OpenCL: to the caller like any."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cpus import any_opencl
from tests.transforms.support import LOOPY_WARNINGS
from tests.transforms.test_library_contraction import drawn, library_unit, product

cl = pytest.importorskip("pyopencl")
pytest.importorskip("pyopencl.array")
pytestmark = LOOPY_WARNINGS


@pytest.fixture(scope="module")
def opencl():
    return any_opencl()


def on_device(values, queue):
    return {
        name: cl.array.to_device(queue, x) if isinstance(x, np.ndarray) else x
        for name, x in values.items()
    }


@pytest.mark.parametrize("is_given", [False, True])
@pytest.mark.parametrize("is_host", [False, True])
def test_a_call_is_that_of_a_loopy_kernel(is_given, is_host, opencl):
    """Arrays of host or device, results given or allocated, again at other sizes."""
    case, queue = product(), opencl.queue
    executor = library_unit(case).executor(opencl.context)
    for n in (5, 40, 3):
        values = drawn(n, seed=n)
        passed = dict(values) if is_host else on_device(values, queue)
        empty = np.empty((n, n))
        out = empty if is_host else cl.array.to_device(queue, empty)
        event, (result,) = executor(
            queue, **passed, **({"out": out} if is_given else {})
        )
        event.wait()
        assert isinstance(result, np.ndarray) == is_host
        assert result is out or not is_given
        found = result if is_host else result.get()
        np.testing.assert_allclose(found, case.expected(values)["out"], rtol=1e-13)


def test_shared_virtual_memory_is_taken(opencl):
    """So is an array that lies in memory which host and device share."""
    case, queue = product(), opencl.queue
    allocator = cl.tools.SVMAllocator(opencl.context, 0, queue=queue)
    values = drawn(9)
    passed = {
        name: cl.array.to_device(queue, x, allocator=allocator)
        if isinstance(x, np.ndarray)
        else x
        for name, x in values.items()
    }
    executor = library_unit(case).executor(opencl.context)
    _, (result,) = executor(queue, **passed, allocator=allocator)
    np.testing.assert_allclose(result.get(), case.expected(values)["out"], rtol=1e-13)


SLOW = """
__kernel void slow(__global double *a, double x, int n) {
    double y = 0;
    for (int k = 0; k < 20000000; ++k) y = y * 0.999 + x;
    for (int k = 0; k < n; ++k) a[k] = y > 0 ? x : 0;
}
"""


@pytest.mark.parametrize("how", ["same queue", "events of the array", "wait_for"])
def test_what_is_enqueued_before_is_waited_for(how, opencl):
    """A kernel that writes an operand is done before the library reads it."""
    case, queue = product(), opencl.queue
    other = queue if how == "same queue" else cl.CommandQueue(opencl.context)
    values = drawn(20)
    passed = on_device(values, queue)
    executor = library_unit(case).executor(opencl.context)
    slow = cl.Program(opencl.context, SLOW).build().slow
    n = np.int32(values["A"].size)
    event = slow(other, (1,), None, passed["A"].base_data, np.float64(2), n)
    other.flush()
    if how == "events of the array":
        passed["A"].add_event(event)
    waits = {"wait_for": [event]} if how == "wait_for" else {}
    _, (result,) = executor(queue, **passed, **waits)
    values["A"][:] = 2
    np.testing.assert_allclose(result.get(), case.expected(values)["out"], rtol=1e-13)


def test_what_is_enqueued_after_it_reads_its_results(opencl):
    """A kernel on another queue that waits for the event finds the results."""
    case, queue = product(), opencl.queue
    other, values = cl.CommandQueue(opencl.context), drawn(20)
    executor = library_unit(case).executor(opencl.context)
    event, (result,) = executor(queue, **on_device(values, queue))
    copy = np.empty(result.shape)
    cl.enqueue_copy(other, copy, result.base_data, wait_for=[event])
    np.testing.assert_allclose(copy, case.expected(values)["out"], rtol=1e-13)
