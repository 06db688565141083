"""Pictures of rooflines."""

from __future__ import annotations

import sys

import pytest
from matplotlib.image import imread

from feinsum.drawing import Chart, Dot, LadderKernel, draw_roofline
from feinsum.errors import FeinsumError

DOTS = (
    Dot("dgfem gradient", 0.7, 16.0, is_measured=True),
    Dot("dgfem gradient", 6.0, 60.0, is_measured=True),
    Dot("tccg ccsd", 400.0, 100.0, is_measured=False),
)
STEPS = (LadderKernel(0.1, 4.0, 3.0, 5.0), LadderKernel(40.0, 95.0, 90.0, 99.0))
CHART = Chart("Roofline", 50.0, {"float64": 100.0, "float32": 200.0}, DOTS, STEPS)


def test_everything_is_within_the_axes():
    """The range of intensities holds the dots, the ladder and the ridges."""
    low, high = CHART.intensities
    assert low < 0.1
    assert high > 400
    low, high = Chart("no workload", 50.0, {"float64": 100.0}, ()).intensities
    assert low < 2 < high


@pytest.mark.parametrize(("dots", "steps"), [(DOTS, STEPS), ((), ())])
def test_a_chart_becomes_a_png(dots, steps, tmp_path):
    """With or without workloads and ladder; the same chart is the same file."""
    chart = Chart("Roofline", 50.0, {"float64": 100.0}, dots, steps)
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    draw_roofline(chart, one)
    draw_roofline(chart, two)
    assert one.read_bytes() == two.read_bytes()
    height, width, _ = imread(one).shape
    assert (height, width) == (550, 990)


def test_a_missing_library_is_named(monkeypatch, tmp_path):
    """Without matplotlib there is an error that says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.delitem(sys.modules, "feinsum.drawing.notebook", raising=False)
    with pytest.raises(FeinsumError, match="feinsum\\[plots\\]"):
        draw_roofline(CHART, tmp_path / "x.png")
