"""The ladder of kernels that shows where a device saturates."""

from __future__ import annotations

import itertools
import math

import pytest

from feinsum.errors import MeasurementError, WrongResultError
from feinsum.measure import measure_ladder
from feinsum.measure.roofline import STEPS, _Arrays, _Kernel, _write_source

SMALL = 1 << 18


@pytest.mark.parametrize("dtype", ["<f8", "<f4"])
def test_a_rung_has_the_intensity_of_its_steps(device, dtype):
    """K multiply-adds on two loaded entries and one stored; rates are finite."""
    ladder = measure_ladder(device, dtype, (1, 3, 48), array_bytes=SMALL, rounds=3)
    itemsize = int(dtype[-1])
    assert [rung.n_steps for rung in ladder] == [1, 3, 48]
    for rung in ladder:
        assert rung.work.intensity == pytest.approx(2 * rung.n_steps / (3 * itemsize))
        assert len(rung.samples_s) == 3
        low, high = rung.spread
        assert 0 < low <= rung.operations_per_s <= high < math.inf


def test_the_rungs_rise():
    """Each does twice the work of the one below, from the triad on."""
    assert STEPS[0] == 1
    assert all(b == 2 * a for a, b in itertools.pairwise(STEPS))


@pytest.mark.parametrize("is_cpu", [True, False], ids=["neighbours", "strided"])
@pytest.mark.parametrize("width", [1, 8])
def test_every_layout_gives_the_closed_form(device, is_cpu, width):
    """Vectors beside each other or a group's length apart: the result is the same."""
    arrays = _Arrays.of(device, "<f8", SMALL)
    source = _write_source(arrays.layout.dtype.str, width, is_cpu)
    _Kernel(arrays, width, device.program(source, "rung")).check()


def test_a_rung_that_skips_steps_is_refused(device):
    """The result of one multiply-add is not that of many."""
    arrays = _Arrays.of(device, "<f8", SMALL)
    with pytest.raises(WrongResultError, match="multiply-adds"):
        arrays.check(1)  # nothing ran
    _Kernel.of(arrays, 4).run()
    with pytest.raises(WrongResultError, match="expected"):
        arrays.check(64)


def test_other_dtypes_are_refused(device):
    """There are ladders of real floating point numbers only."""
    with pytest.raises(MeasurementError, match="<i4"):
        measure_ladder(device, "<i4")
