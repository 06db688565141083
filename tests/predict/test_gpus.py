"""Predictions for GPUs: which family is for what, and laws of costs."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import isfinite

import pytest

from feinsum import array, einsum
from feinsum.canonical import canonicalize
from feinsum.predict import make_pruning_test, model_machine, predict_recipes
from feinsum.records import Device, DevicePeaks, TransformSpec
from feinsum.transforms import check_spec, find_transform
from feinsum.transforms.cost import Gpu
from feinsum.transforms.gpu.cost import LaunchWork, predict_launch_s
from tests.portions import spread

H100 = Device("CUDA", "H100", "", "gpu", "sm_90", 132)
DEVICES = [
    H100,
    replace(H100, architecture="sm_70", compute_units=80),
    replace(H100, architecture="sm_80", compute_units=108),
    replace(H100, architecture="sm_120", compute_units=170),
    Device("OpenCL", "a GPU", "", "gpu", "somebody", 60),
]
CASES = {
    "a large product": ("gpu_product", "ij,jk->ik", [(2048, 2048), (2048, 2048)]),
    "many products": ("gpu_product", "bij,bjk->bik", [(64, 512, 512), (64, 512, 512)]),
    "a long sum": ("gpu_rows", "ij->i", [(4096, 16384)]),
    "sums of columns": ("gpu_columns", "ijk->ik", [(200, 300, 100)]),
    "a whole sum": ("gpu_split_sum", "i,i->", [(1 << 24,), (1 << 24,)]),
    "few long sums": ("gpu_split_sum", "ij,j->i", [(8, 1 << 20), (1 << 20,)]),
    "a matrix times a vector": ("gpu_rows", "ij,j->i", [(4096, 16384), (16384,)]),
    "a copy": ("gpu_turned", "ij->ji", [(4096, 4096)]),
    "a pointwise product": ("gpu_points", "ij,ij->ij", [(4096, 4096)] * 2),
    "a gradient": ("gpu_operator", "xre,rij,ej->xei",
                   [(3, 3, 100_000), (3, 20, 20), (100_000, 20)]),
    "a divergence": ("gpu_operator", "xre,rij,xej->ei",
                     [(3, 3, 100_000), (3, 35, 35), (3, 100_000, 35)]),
    "two matrices": ("gpu_elements", "e,ij,jk,ek->ei",
                     [(100_000,), (20, 20), (20, 20), (100_000, 20)]),
}  # fmt: skip


NEED_TENSOR_CORES = {
    "gpu_matrices": "a large product",
    "gpu_mma": "a large product",
    "gpu_operator_mma": "a gradient",
}


def made(subscripts, shapes, dtype="float64"):
    arrays = [array(n, s, dtype) for n, s in zip("ABCD", shapes, strict=False)]
    return canonicalize(einsum(subscripts, *arrays)).einsum


@pytest.mark.parametrize(("device", "case"), spread(product(DEVICES, CASES), 12))
def test_the_family_is_the_one_that_is_made_for_it(device, case):
    """On every GPU, whatever its figures; and its recipe can be applied."""
    family, subscripts, shapes = CASES[case]
    e = made(subscripts, shapes, "float32")
    best = predict_recipes(e, {}, device)[0]
    library = "gpu_matrices" if family == "gpu_product" else family
    assert best.spec.name in (family, library)
    check_spec(best.spec, e)


@pytest.mark.parametrize("case", spread(CASES, 4))
def test_more_work_never_costs_less(case):
    """Of one recipe, with each array twice as long along its longest index."""
    _, subscripts, shapes = CASES[case]
    longest = max(max(shape) for shape in shapes)
    longer = [tuple(2 * n if n == longest else n for n in shape) for shape in shapes]
    e, more = made(subscripts, shapes), made(subscripts, longer)
    machine = model_machine(H100)
    for one in predict_recipes(e, {}, H100)[::10]:
        cost = find_transform(one.spec.name, one.spec.version).cost
        assert cost(more, one.spec.parameters, machine) >= one.seconds


@pytest.mark.parametrize("case", spread(CASES, 6))
def test_a_better_gpu_never_takes_longer(case):
    """More bandwidth, a higher clock, a larger cache."""
    _, subscripts, shapes = CASES[case]
    e, gpu = made(subscripts, shapes), model_machine(H100).gpu
    best = predict_recipes(e, {}, H100)[0]
    cost = find_transform(best.spec.name, best.spec.version).cost
    for field in ("bandwidth_bytes_per_s", "cycles_per_s", "cache_bytes"):
        better = replace(gpu, **{field: 2 * getattr(gpu, field)})
        machine = replace(model_machine(H100), gpu=better)
        assert cost(e, best.spec.parameters, machine) <= best.seconds


def test_large_products_of_doubles_go_to_the_library():
    """Where it has tensor cores that are faster than the other units."""
    e = made("ij,jk->ik", [(4096, 4096), (4096, 4096)])
    names = {
        device.architecture: predict_recipes(e, {}, device)[0].spec.name
        for device in DEVICES
    }
    assert names == {
        "sm_90": "gpu_matrices", "sm_80": "gpu_matrices", "sm_70": "gpu_product",
        "sm_120": "gpu_product", "somebody": "gpu_product",
    }  # fmt: skip


@pytest.mark.parametrize("device", [H100, DEVICES[1], DEVICES[-1]], ids=str)
@pytest.mark.parametrize("case", ["a large product", "a gradient"])
def test_what_takes_tensor_cores_is_predicted_where_they_are(device, case):
    """Other GPUs refuse it, or gain nothing by it."""
    _, subscripts, shapes = CASES[case]
    found = predict_recipes(made(subscripts, shapes), {}, device)
    names = {one.spec.name for one in found} & {*NEED_TENSOR_CORES}
    expected = {name for name, of in NEED_TENSOR_CORES.items() if of == case}
    assert names == (expected if device == H100 else set())


def test_entries_that_lie_apart_cost_more():
    """Where neighbouring work-items read neighbours, a warp reads few sectors."""
    shape = (1024, 1024)
    same, turned = made("ij->ij", [shape]), made("ij->ji", [shape])
    costs = [predict_recipes(e, {}, H100)[0].seconds for e in (same, turned)]
    assert costs[0] < costs[1]


def test_single_precision_costs_no_more():
    """Half the bytes, and as many multiply-adds or more, without tensor cores."""
    without = DEVICES[1]
    for _, subscripts, shapes in CASES.values():
        single, double = (
            predict_recipes(made(subscripts, shapes, dtype), {}, without)[0].seconds
            for dtype in ("float32", "float64")
        )
        assert single <= double


LAUNCH = LaunchWork(1e4, 256, 8, 1e9, 1e6, 1e8, 1e8, 1)


@pytest.mark.parametrize(
    "field",
    ["multiply_adds", "requests", "cached_bytes", "distinct_bytes", "steps"],
)
def test_no_count_makes_a_launch_cheaper(field):
    """Ten times as much of anything takes as long or longer."""
    gpu = model_machine(H100).gpu
    more = replace(LAUNCH, **{field: 10 * getattr(LAUNCH, field)})
    assert predict_launch_s(gpu, more) >= predict_launch_s(gpu, LAUNCH)


def test_a_group_that_fits_no_multiprocessor_is_never_predicted():
    """Its cost is infinite."""
    gpu = model_machine(H100).gpu
    assert not isfinite(predict_launch_s(gpu, replace(LAUNCH, shared_bytes=1 << 20)))
    crowded = replace(LAUNCH, shared_bytes=200 << 10)
    assert predict_launch_s(gpu, crowded) >= predict_launch_s(gpu, LAUNCH)


def test_too_few_groups_leave_multiprocessors_idle():
    """The same work in one group takes longer than in a thousand."""
    gpu = model_machine(H100).gpu
    alone = replace(LAUNCH, n_groups=1)
    assert predict_launch_s(gpu, alone) > predict_launch_s(
        gpu, replace(LAUNCH, n_groups=1056)
    )


def test_measured_limits_go_before_known_ones():
    """Those of the device itself."""
    rates = {"<f8": 33e12, "<f4": 66e12}
    peaks = DevicePeaks(H100, 3e12, rates, "2026-01-01T00:00:00+00:00")
    gpu, known = model_machine(H100, peaks).gpu, model_machine(H100).gpu
    assert isinstance(gpu, Gpu)
    assert gpu.bandwidth_bytes_per_s == 3e12 != known.bandwidth_bytes_per_s
    each = 2 * gpu.n_multiprocessors * gpu.cycles_per_s
    assert gpu.multiply_adds[8] * each == pytest.approx(33e12)


def test_costs_of_families_for_cpus_say_nothing_of_gpus():
    """They are neither predicted nor pruned there."""
    e = made("ij,jk->ik", [(64, 64), (64, 64)])
    names = {one.spec.name for one in predict_recipes(e, {}, H100)}
    assert all(name.startswith("gpu_") for name in names)
    nest = TransformSpec("generic", 3, {})
    assert not make_pruning_test(e, {}, H100, 1e-30)(nest)
    worst = predict_recipes(e, {}, H100)[-1].spec
    assert make_pruning_test(e, {}, H100, 1e-30)(worst)
