"""Half precision on GPUs: sums in single precision, rounded once.

Results are compared with numpy's in single precision, by work-groups in numpy and by
fibers, at ragged extents.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import loopy as lp
import numpy as np
import pytest

from feinsum import array, batched_einsum, einsum
from feinsum.dtypes import FLOAT16
from feinsum.ir.dtypes import BFLOAT16
from feinsum.measure import compile_kernel, open_device
from feinsum.measure.gpu_figures import get_recipe_figures
from feinsum.targets.cuda import CudaTarget
from feinsum.targets.cuda.code import generate_cuda
from feinsum.transforms import list_configurations
from feinsum.transforms.gpu import GPU_MMA, GPU_POINTS, GPU_PRODUCT, GPU_ROWS
from feinsum.transforms.gpu.heuristics import HALF_STARTS
from tests.emulation.work_groups import execute_groups
from tests.loopy_kernels import build_kernel
from tests.portions import spread
from tests.targets.cuda.stand_in import needs_nvrtc, stand_in
from tests.transforms.support import LOOPY_WARNINGS, generated, written

__all__ = ["stand_in"]

pytestmark = LOOPY_WARNINGS


def halves(**shapes):
    return [array(name, shape, FLOAT16) for name, shape in shapes.items()]


SMALL = {
    "across": 32, "along": 32, "depth": 16, "columns": 16, "rows": 16, "stages": 2,
    "copies": "asynchronous", "shares": 1,
}  # fmt: skip
PRODUCTS = {
    "rows by columns": einsum("ik,kj->ij", *halves(A=("n", "k"), B=("k", "m"))),
    "rows by rows": einsum("ik,jk->ij", *halves(A=("n", "k"), B=("m", "k"))),
    "columns by rows": einsum("ki,kj->ij", *halves(A=(21, 35), B=(21, 38))),
    "of even rows": einsum("ik,kj->ij", *halves(A=("n", 40), B=(40, 24))),
    "scores of attention": einsum(
        "bhsd,bhtd->bhst", *halves(Q=(1, 2, "n", 24), K=(1, 2, "m", 24))
    ),
    "values of attention": einsum(
        "bhst,bhtd->bhsd", *halves(P=(1, 2, "n", "m"), V=(1, 2, "m", 24))
    ),
    "heads last": einsum("bshd,bthd->bhst", *halves(Q=(2, 9, 3, 16), K=(2, 19, 3, 16))),
    "four output indices": einsum(
        "aebf,dfce->abcd", *halves(A=(3, 8, 4, 4), B=(6, 4, 5, 8))
    ),
    "two rows": batched_einsum(
        "ik,kj->ij",
        [halves(**{"A": ("n", 20), name: (20, "m")}) for name in "BC"],
    ),
}
CHANGES = [
    {},
    {"copies": "registers", "stages": 3},
    {"across": 64, "rows": 32, "columns": 32, "depth": 32, "stages": 3},
]
DTYPES = [dtype for dtype in (FLOAT16, BFLOAT16) if dtype is not None]
CASES = [
    (name, changes, dtype)
    for name in PRODUCTS
    for changes in CHANGES
    for dtype in DTYPES
]
EXTENTS = [(37, 21, 18), (8, 16, 40), (1, 3, 2)]


def spec_of(transform, e, changes):
    recommended = next(list_configurations(transform, e)).parameters
    return transform.spec({**recommended, **changes})


def in_dtype(e, dtype):
    rows = [tuple(replace(op, dtype=dtype) for op in row) for row in e.rows]
    return replace(e, rows=tuple(rows))


def sizes_of(e, extents):
    return dict(zip([x.name for x in e.size_params], extents, strict=False))


def draw(e, sizes):
    """Arrays, and the results in single precision."""
    rng = np.random.default_rng(0)
    arrays = {
        op.name: rng.uniform(
            -1, 1, [n if isinstance(n, int) else sizes[n.name] for n in op.shape]
        ).astype(op.dtype)
        for op in e.operands
    }
    expected = [
        np.einsum(e.subscripts, *(arrays[op.name].astype(np.float32) for op in row))
        for row in e.rows
    ]
    return arrays, expected


def assert_rounded_once(result, expected):
    """Half a unit in the last place, and what the order of sums costs."""
    eps = 2.0**-11 if result.dtype == FLOAT16 else 2.0**-8
    assert np.allclose(result.astype(np.float32), expected, rtol=1.01 * eps, atol=1e-5)


def run_in_groups(case, unit, arrays, sizes, expected):
    outputs = {
        name: np.zeros(value.shape, case.einsum.output_dtypes[0])
        for name, value in zip(case.nest.outputs, expected, strict=True)
    }
    execution = execute_groups(unit, {**arrays, **sizes, **outputs})
    assert execution.races == ()
    return [execution.outputs[name] for name in case.nest.outputs]


def compiled(unit):
    return compile_kernel(unit, open_device("cuda"))


def run_by_fibers(case, kernel, arrays, sizes):
    bound = kernel.bind({**arrays, **sizes})
    bound.poison()
    bound.run()
    results = bound.read()
    return [results[name] for name in case.nest.outputs]


@pytest.mark.parametrize(("name", "changes", "dtype"), spread(CASES, 8))
def test_a_product_has_no_race_and_is_rounded_once(name, changes, dtype):
    """Work-group by work-group."""
    case = generated(in_dtype(PRODUCTS[name], dtype))
    unit = case.apply(spec_of(GPU_MMA, case.einsum, {**SMALL, **changes}))
    sizes = sizes_of(case.einsum, (5, 3, 18))
    arrays, expected = draw(case.einsum, sizes)
    results = run_in_groups(case, unit, arrays, sizes, expected)
    for result, value in zip(results, expected, strict=True):
        assert_rounded_once(result, value)


@needs_nvrtc
@pytest.mark.parametrize(("name", "changes", "dtype"), spread(CASES[1:], 8))
def test_the_code_for_cuda_is_rounded_once(name, changes, dtype, stand_in):
    """At run-time extents at which rows are aligned, and at which they are not."""
    case = generated(in_dtype(PRODUCTS[name], dtype))
    unit = case.apply(spec_of(GPU_MMA, case.einsum, {**SMALL, **changes}))
    kernel = compiled(unit)
    for extents in EXTENTS if case.einsum.size_params else [()]:
        sizes = sizes_of(case.einsum, extents)
        arrays, expected = draw(case.einsum, sizes)
        results = run_by_fibers(case, kernel, arrays, sizes)
        for result, value in zip(results, expected, strict=True):
            assert_rounded_once(result, value)


ON_TILES = [
    ("asynchronous", (37, 40, 18)),
    ("asynchronous", (16, 21, 35)),
    ("registers", (16, 21, 35)),
    ("registers", (37, 40, 18)),
    ("arguments", (37, 40, 18)),
    ("arguments", (16, 21, 35)),
]
"""Every way to copy with each kind of rows; every run has each way and each kind."""
GATED = """
out[i, j] = sum(k, (scale*(A[i, k] + G[i, k]) + shift)*B[k, j])
"""


def gated(n, k, m):
    """The kernel of a product whose left factor is a function, zero for no zeros."""
    unit = build_kernel(
        f"{{[i, j, k]: 0<=i<{n} and 0<=j<{m} and 0<=k<{k}}}",
        GATED,
        {"A,G": f"{n}, {k}", "B": f"{k}, {m}", "out": f"{n}, {m}"},
        lp.ValueArg("scale", np.float16),
        lp.ValueArg("shift", np.float16),
        dtype=np.float16,
    )
    return written(unit, lambda arguments: arguments)


@needs_nvrtc
@pytest.mark.parametrize(("copies", "extents"), spread(ON_TILES, 3))
def test_functions_are_evaluated_on_tiles(copies, extents, stand_in):
    """Their values are halves; beyond the sum they are zero."""
    case = gated(*extents)
    unit = case.apply(spec_of(GPU_MMA, case.einsum, {**SMALL, "copies": copies}))
    rng = np.random.default_rng(0)
    n, k, m = extents
    arrays = {
        name: rng.uniform(-1, 1, shape).astype(FLOAT16)
        for name, shape in {"A": (n, k), "G": (n, k), "B": (k, m)}.items()
    }
    scalars = {"scale": np.float16(0.75), "shift": np.float16(0.5)}
    wide = {name: value.astype(np.float32) for name, value in arrays.items()}
    factor = np.float32(0.75) * (wide["A"] + wide["G"]) + np.float32(0.5)
    expected = factor.astype(FLOAT16).astype(np.float32) @ wide["B"]
    (result,) = run_by_fibers(case, compiled(unit), arrays, scalars)
    assert np.allclose(result.astype(np.float32), expected, rtol=2.0**-10, atol=1e-3)
    zeros = {"out": np.zeros((n, m), FLOAT16)}
    execution = execute_groups(unit, {**arrays, **scalars, **zeros})
    assert execution.races == ()
    # numpy also rounds within the function
    assert np.allclose(execution.outputs["out"], expected, rtol=2.0**-10, atol=5e-3)


LARGE = einsum("ik,kj->ij", *halves(A=("n", "k"), B=("k", "m")))


@needs_nvrtc
@pytest.mark.parametrize(
    ("parameters", "dtype", "architecture"),
    spread(product(HALF_STARTS, DTYPES, ["sm_80", "sm_90"]), 4),
    ids=str,
)
def test_large_tiles_stay_in_registers(parameters, dtype, architecture):
    """Of every start, at run-time extents.

    Every run has each dtype for each architecture, with another start.
    """
    e = in_dtype(LARGE, dtype)
    names = GPU_MMA.get_space(e)
    spec = GPU_MMA.spec(dict(zip(names, (*parameters, 1, 1), strict=True)))
    for launch in get_recipe_figures(spec, e, architecture):
        assert launch.figures.spill_bytes == launch.figures.stack_bytes == 0
        assert launch.occupancy > 0


@needs_nvrtc
def test_entries_go_together(stand_in):
    """Eight of a row are copied at once, also where their number is unknown; pairs of
    results are stored together; and no fragment is loaded entry by entry.
    """
    spec = spec_of(GPU_MMA, LARGE, SMALL)
    unit = generated(LARGE).apply(spec).copy(target=CudaTarget())
    source = generate_cuda(unit).source
    assert "feinsum_copy(4, " in source
    assert "feinsum_copy(1, " not in source
    even = in_dtype(PRODUCTS["of even rows"], FLOAT16)
    unit = generated(even).apply(spec_of(GPU_MMA, even, SMALL))
    source = generate_cuda(unit.copy(target=CudaTarget())).source
    assert "feinsum_store_pair(out" in source
    assert "feinsum_load_blocks<true>(" in source


@needs_nvrtc
@pytest.mark.parametrize("transform", [GPU_POINTS, GPU_PRODUCT, GPU_ROWS])
def test_other_families_round_once(transform, stand_in):
    """They add up in single precision, too."""
    e = einsum("ik,kj->ij", *halves(A=("n", 700), B=(700, "m")))
    case = generated(e)
    unit = case.apply(spec_of(transform, e, {}))
    sizes = {"n": 37, "m": 18}
    arrays, expected = draw(e, sizes)
    (result,) = run_by_fibers(case, compiled(unit), arrays, sizes)
    assert_rounded_once(result, expected[0])
