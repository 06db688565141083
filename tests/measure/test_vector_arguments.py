"""Arrays whose last axis is that of vectors are arguments like others."""

from __future__ import annotations

import loopy as lp
import numpy as np

from feinsum.measure import compile_kernel, open_device
from feinsum.targets.layout import array_layout


def test_an_array_of_vectors_lies_as_one_of_entries():
    """It is bound, read and written with an axis for the lanes."""
    vectors = {"dtype": np.float64, "shape": ("n", 2, 4), "dim_tags": "N1,N0,vec"}
    unit = lp.make_kernel(
        "{[i, j, lane]: 0 <= i < n and 0 <= j < 2 and 0 <= lane < 4}",
        "y[i, j, lane] = 2.0*x[i, j, lane]",
        [lp.GlobalArg("x", **vectors), lp.GlobalArg("y", **vectors), lp.ValueArg("n")],
        lang_version=(2018, 2),
        silenced_warnings=["v1_scheduler_fallback"],
    )
    unit = lp.tag_inames(unit, {"lane": "vec"})
    kernel = compile_kernel(unit, open_device("host"))
    layout = array_layout(kernel.t_unit.default_entrypoint.arg_dict["y"], {"n": 3})
    assert (layout.shape, layout.strides) == ((3, 2, 4), (8, 4, 1))
    x = np.arange(24.0).reshape(3, 2, 4)
    call = kernel.bind({"x": x})
    call.run()
    assert np.array_equal(call.read()["y"], 2 * x)
