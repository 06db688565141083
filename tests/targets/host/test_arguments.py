"""Arguments of kernels on the host: as they lie in memory, or refused."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum.errors import BuildError, MeasurementError
from tests.targets.host.kernels import doubling, make


def scaled(sizes="n,m", **layout):
    """``y[i,j] = 2*x[i,j]`` for arrays of a layout."""
    arrays = [
        lp.GlobalArg(name, np.float64, shape=("n", "m"), **layout) for name in "xy"
    ]
    return make(
        "{[i,j]: 0<=i<n and 0<=j<m}",
        "y[i,j] = 2*x[i,j]",
        {},
        *arrays,
        lp.ValueArg(sizes, np.int64),
    )


def test_arrays_of_either_order_are_taken_as_they_are():
    """The kernel says which order it is for, and is given that."""
    x = np.arange(15.0).reshape(3, 5)
    for order in "CF":
        given = np.asarray(x, order=order)
        out = np.zeros_like(given)
        scaled(order=order).executor()(x=given, y=out, n=3, m=5)
        np.testing.assert_array_equal(out, 2 * x)


@pytest.mark.parametrize("order", "CF")
def test_an_array_of_the_other_order_is_refused(order):
    """Nothing is computed from it."""
    x = np.asarray(np.arange(15.0).reshape(3, 5), order="F" if order == "C" else "C")
    with pytest.raises(Exception, match="strides"):
        scaled(order=order).executor()(x=x, y=np.zeros_like(x), n=3, m=5)


@pytest.mark.parametrize(
    ("step", "step_in_row"), [(1, 1), (2, 3), (-1, 1), (1, -2), (-2, -2)]
)
def test_any_strides_are_taken_that_a_kernel_is_told(step, step_in_row):
    """Of views, forwards and backwards; what lies between stays as it was."""
    x = np.arange(120.0).reshape(10, 12)[::step, ::step_in_row]
    whole = np.full((10, 12), -1.0)
    y = whole[::step, ::step_in_row]
    t_unit = scaled("n,m,s,t", dim_tags=["stride:s", "stride:t"])
    sizes = dict(zip("nm", x.shape, strict=True))
    strides = {"s": x.strides[0] // 8, "t": x.strides[1] // 8}
    t_unit.executor()(x=x, y=y, **sizes, **strides)
    np.testing.assert_array_equal(y, 2 * x)
    assert np.count_nonzero(whole == -1) == whole.size - y.size


def test_a_kernel_may_begin_within_an_array():
    """At an offset that is given at run time."""
    t_unit = make(
        "{[i]: 0<=i<n}",
        "y[i] = 2*x[i]",
        {"y": "n"},
        lp.GlobalArg("x", np.float64, shape="n", offset=lp.auto),
    )
    whole = np.arange(20.0)
    _, (y,) = t_unit.executor()(x=whole[5:9])
    np.testing.assert_array_equal(y, 2 * whole[5:9])


def test_memory_of_any_alignment_will_do():
    """Arrays begin at any multiple of their entries' size, with vectors as well."""
    t_unit = make("{[i,k]: 0<=i<5 and 0<=k<8}", "y[i,k] = 2*x[i,k]", {"x,y": "5,8"})
    t_unit = lp.tag_array_axes(t_unit, "x,y", "N0,vec")
    executor = lp.tag_inames(t_unit, {"k": "vec"}).executor()
    values = np.arange(40.0).reshape(5, 8)
    for shift in range(0, 64, 8):
        x, y = (np.zeros(64 + 8 * 40, np.uint8)[shift : shift + 8 * 40] for _ in "xy")
        x, y = (array.view(np.float64).reshape(5, 8) for array in (x, y))
        x[:] = values
        executor(x=x, y=y)
        np.testing.assert_array_equal(y, 2 * values)


WRONG = {
    "dtype": ({"x": np.zeros(4, np.float32)}, "dtype"),
    "complex": ({"x": np.zeros(4, np.complex128)}, "dtype"),
    "too many axes": ({"x": np.zeros((4, 1))}, "shape"),
    "sizes that differ": ({"x": np.zeros(4), "y": np.zeros(5)}, "shape"),
    "a size that is another": ({"x": np.zeros(4), "n": 5}, "shape"),
    "strided": ({"x": np.zeros(8)[::2]}, "strides"),
    "no array": ({"x": [1.0]}, "'x' is a list; expected a numpy array"),
    "nothing": ({}, "x"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_kernel_was_not_made_for_is_refused(case):
    """Before anything runs, with the name of the argument or what is wrong with it."""
    arguments, why = WRONG[case]
    with pytest.raises(Exception, match=why) as caught:
        doubling().executor()(**arguments)
    assert not isinstance(caught.value, BuildError)


def test_a_result_is_not_written_to_a_read_only_array():
    """It is named, and the array stays as it is."""
    y = np.zeros(4)
    y.flags.writeable = False
    with pytest.raises(MeasurementError, match="'y', which is read-only"):
        doubling().executor()(x=np.ones(4), y=y)
    assert not y.any()
    doubling().executor()(x=y)  # but it may be read


def test_an_argument_that_is_not_known_is_refused():
    """A wrong name is none that is left out."""
    with pytest.raises(TypeError, match="z"):
        doubling().executor()(x=np.ones(4), z=np.ones(4))
