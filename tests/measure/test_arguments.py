"""Random arguments: shapes, dtypes, reproducibility, indices; arrays of vectors."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum.errors import BuildError, MeasurementError
from feinsum.measure import compile_kernel, draw_arguments, open_device
from feinsum.targets.layout import compute_layout
from tests.loopy_kernels import build_kernel


def rng():
    return np.random.default_rng(3)


def scaled_kernel(dtype, scalar):
    return lp.make_kernel(
        "{[i,j]: 0<=i<2*N+1 and 0<=j<M}",
        "y[i,j] = s*x[i,j]",
        [
            lp.GlobalArg("x", dtype, shape=("2*N + 1", "M")),
            lp.GlobalArg("y", dtype, shape=("2*N + 1", "M")),
            lp.ValueArg("s", scalar),
            lp.ValueArg("N, M", np.int32),
        ],
        lang_version=(2018, 2),
    )


@pytest.mark.parametrize("dtype", ["f4", "c16", "i8", "u2"])
def test_shapes_and_dtypes(dtype):
    """Arrays have the declared shapes at the sizes, and the declared dtypes;
    arrays that are only written are left out; sizes are the given ones.
    """
    kernel = scaled_kernel(np.dtype(dtype), np.dtype(dtype))
    values = draw_arguments(kernel, {"N": 3, "M": 4}, rng())
    assert set(values) == {"x", "s", "N", "M"}
    assert values["x"].shape == (7, 4)
    assert values["x"].dtype == np.dtype(dtype)
    assert values["s"].dtype == np.dtype(dtype)
    assert (values["N"], values["M"]) == (3, 4)
    assert len(np.unique(values["x"])) > 1


def test_same_seed_same_values():
    """The values are a function of kernel, sizes and generator."""
    kernel = scaled_kernel(np.float64, np.float64)
    first, second = (draw_arguments(kernel, {"N": 3, "M": 4}, rng()) for _ in "ab")
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_interval():
    """Real and imaginary parts lie in the interval, by default in [0.5, 1.5)."""
    kernel = scaled_kernel(np.complex128, np.float64)
    sizes = {"N": 20, "M": 20}
    for options, (low, high) in (({}, (0.5, 1.5)), ({"interval": (-3, -2)}, (-3, -2))):
        x = draw_arguments(kernel, sizes, rng(), **options)["x"]
        for part in (x.real, x.imag):
            assert low <= part.min()
            assert part.max() < high


def test_open_dtypes_are_inferred(matvec):
    """A size without a declared dtype gets the kernel's index dtype."""
    values = draw_arguments(matvec(), {"N": 3}, rng())
    assert values["N"] == 3
    assert values["u"].shape == (3, 4)


def test_dtype_that_cannot_be_inferred():
    """An input whose dtype nothing tells is refused by name."""
    kernel = lp.make_kernel("{[i]: 0<=i<4}", "y[i] = 2*x[i]", lang_version=(2018, 2))
    with pytest.raises(BuildError, match="x"):
        draw_arguments(kernel, {}, rng())


def test_missing_size():
    """A shape whose size is not given is refused, naming array and size."""
    kernel = scaled_kernel(np.float64, np.float64)
    with pytest.raises(MeasurementError, match=r"M\) of 'x' needs the size M"):
        draw_arguments(kernel, {"N": 3}, rng())


def gather_kernel(index):
    return build_kernel(
        "{[i]: 0<=i<50}",
        f"y[i] = x[{index}] * w[i]",
        {"x": "3", "w, y": "50"},
        lp.GlobalArg("map", np.int32, shape=(50,)),
    )


@pytest.mark.parametrize(
    ("index", "values"), [("map[i]", {0, 1, 2}), ("2*map[i]", {0})]
)
def test_indirect_access_stays_inside(index, values, device):
    """Entries that index an array are within its extent; zero if the index is a
    larger expression. The kernel then reads what numpy reads.
    """
    kernel = gather_kernel(index)
    arguments = draw_arguments(kernel, {}, rng())
    assert set(arguments["map"].tolist()) == values
    bound = compile_kernel(kernel, device).bind(arguments)
    bound.run()
    expected = arguments["x"][arguments["map"]] * arguments["w"]
    np.testing.assert_allclose(bound.read()["y"], expected, rtol=1e-14)


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
    layout = compute_layout(kernel.t_unit.default_entrypoint.arg_dict["y"], {"n": 3})
    assert (layout.shape, layout.strides) == ((3, 2, 4), (8, 4, 1))
    x = np.arange(24.0).reshape(3, 2, 4)
    call = kernel.bind({"x": x})
    call.run()
    assert np.array_equal(call.read()["y"], 2 * x)
