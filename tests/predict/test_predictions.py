"""Predictions: in the spaces of their families, in order, of every einsum."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import pytest
from constantdict import constantdict
from hypothesis import given
from hypothesis import strategies as st

from feinsum import array, einsum
from feinsum.canonical import canonicalize
from feinsum.machine import MachineModel
from feinsum.predict import (
    has_vectors,
    make_pruning_test,
    model_machine,
    predict_recipes,
)
from feinsum.records import Device, DevicePeaks, Processor, TransformSpec
from feinsum.records.environment import HOST_PLATFORM
from feinsum.transforms import REGISTRY, check_spec, find_transform, list_configurations
from tests.strategies import einsums

CPU = Device("host", "a CPU", "", "cpu", "x86_64", 2)
ZEN = Processor(
    "AuthenticAMD", 25, 17, 1, "zen4", ("avx2", "avx512f"), 2,
    constantdict({"L2": 1 << 20, "L3": 1 << 25}),
)  # fmt: skip


def matmul(n):
    return canonicalize(
        einsum("ij,jk->ik", array("A", (n, n)), array("B", (n, n)))
    ).einsum


@given(einsums(), st.sampled_from([1, 5, 300]))
def test_every_einsum_has_a_prediction_that_its_family_accepts(e, size):
    """The first few can be applied: they lie in their spaces."""
    canonical = canonicalize(e).einsum
    sizes = {x.name: size for x in canonical.size_params}
    found = predict_recipes(canonical, sizes, CPU)
    assert found
    assert [one.seconds for one in found] == sorted(one.seconds for one in found)
    for one in found[:3]:
        assert isfinite(one.seconds)
        assert one.seconds > 0
        check_spec(one.spec, canonical)


def test_more_work_costs_more():
    """Of one configuration, at larger extents."""
    for one in predict_recipes(matmul(64), {}, CPU)[:20]:
        cost = REGISTRY[one.spec.name, one.spec.version].cost
        assert cost(matmul(400), one.spec.parameters, MachineModel()) > one.seconds


def test_nothing_is_predicted_for_other_devices():
    """The families were made for CPUs and GPUs."""
    other = Device("OpenCL", "an FPGA", "", "accelerator", "", 132)
    assert predict_recipes(matmul(64), {}, other) == []


def test_a_machine_is_what_its_processor_says():
    """Vectors, cores and caches; limits that were measured go before what is usual."""
    device = Device("host", "a CPU", "", "cpu", "x86_64", 2, ZEN)
    machine = model_machine(device)
    assert (machine.vector_bytes, machine.fma_bytes) == (64, 64)
    assert machine.cache_bytes["L3"] == 1 << 25
    peaks = DevicePeaks(device, 1e11, {"<f8": 1e11}, "2026-01-01T00:00:00+00:00")
    assert model_machine(device, peaks).bandwidth_bytes_per_s == 1e11
    assert model_machine(CPU).vector_bytes == 32


def test_one_nest_of_many_operands_is_pruned():
    """It would run for minutes where a path takes milliseconds."""
    arrays = [array(name, (300, 300)) for name in "ABC"]
    canonical = canonicalize(einsum("ab,cd,de->be", *arrays)).einsum
    found = predict_recipes(canonical, {}, CPU)
    is_pruned = make_pruning_test(canonical, {}, CPU, found[0].seconds)
    assert not is_pruned(found[0].spec)
    nest = next(list_configurations(find_transform("generic", 3), canonical))
    assert is_pruned(nest)


ZEN3 = replace(ZEN, microarchitecture="zen3", features=("avx2",))
WIDE = {
    "alone": TransformSpec("turned", 1, {"lanes": 16}),
    "as a step": TransformSpec(
        "contraction_path",
        2,
        {"lanes": 4, "steps": ("turned@1(lanes=16)", "no recipe")},
    ),
}


@pytest.mark.parametrize("spec", WIDE.values(), ids=WIDE)
def test_a_recipe_has_no_longer_vectors_than_the_processor(spec):
    """Longer ones are on the stack with gcc, in registers with LLVM behind OpenCL."""
    single = einsum("ij->ji", array("A", (64, 64), "float32"))
    host = Device(HOST_PLATFORM, "a CPU", "", "cpu", "x86_64", 2, ZEN)
    narrow = replace(host, processor=ZEN3)
    assert has_vectors(spec, single, host)
    assert not has_vectors(spec, single, narrow)
    assert has_vectors(spec, single, replace(narrow, platform="OpenCL"))
    assert has_vectors(spec, single, replace(narrow, processor=None))
    double = einsum("ij->ji", array("A", (64, 64), "float64"))
    assert not has_vectors(spec, double, host)


def test_none_of_such_a_recipe_is_predicted():
    """Nor is it found by a search, which asks the same question."""
    host = Device(HOST_PLATFORM, "a CPU", "", "cpu", "x86_64", 2, ZEN)
    most = {}
    for processor in (ZEN, ZEN3):
        device = replace(host, processor=processor)
        found = predict_recipes(matmul(300), {}, device)
        lanes = [one.spec.parameters.get("lanes", 1) for one in found]
        most[processor.microarchitecture] = max(lanes)
    assert most == {"zen4": 8, "zen3": 4}


def complex_product(subscripts, dtype, *shapes):
    operands = (
        array(name, shape, dtype) for name, shape in zip("AB", shapes, strict=True)
    )
    device = Device(HOST_PLATFORM, "a CPU", "", "cpu", "x86_64", 2, ZEN3)
    return predict_recipes(
        canonicalize(einsum(subscripts, *operands)).einsum, {}, device
    )


def test_sums_of_complex_numbers_are_slow_in_short_vectors():
    """Measured on a Zen 3: several sums at a time took 2.1 times as long as OpenBLAS,
    or, in single precision, 2 to 10 times as long as one sum, or vectors along the
    result, of which 32 terms at a time took 1.5 times as long as eight.
    """
    shapes = (128, 128), (1500, 128)
    best, *_ = complex_product("kn,bn->bk", "complex128", *shapes)
    assert best.spec.name == "library_contraction"
    shapes = (200, 32, 32), (200, 32, 32)
    best, *_ = complex_product("bij,bjk->bik", "complex64", *shapes)
    assert (best.spec.name, best.spec.parameters["step"]) == ("generic", 8)
    shapes = (500, 64, 64), (500, 64)
    best, *_ = complex_product("bij,bj->bi", "complex64", *shapes)
    assert best.spec.parameters.get("step", 1) == 1


def names_of(subscripts, **extents):
    """The families that are predicted for doubles, the fastest first."""
    terms = subscripts.partition("->")[0].split(",")
    arrays = [
        array(f"A{k}", tuple(extents[i] for i in term)) for k, term in enumerate(terms)
    ]
    found = predict_recipes(canonicalize(einsum(subscripts, *arrays)).einsum, {}, CPU)
    return [*dict.fromkeys(one.spec.name for one in found)]


def test_large_turned_results_are_stored_past_the_caches():
    """Nothing else stores them by lines."""
    extents = {"a": 16, "b": 20, "c": 24, "d": 16, "e": 16, "f": 16}
    assert names_of("abc,def->fedcba", **extents)[0] == "turned"


@pytest.mark.parametrize("subscripts", ["ij,jk->ik", "ij,j->i", "ij,ij->"])
def test_the_libraries_of_the_host_are_candidates(subscripts):
    """Of products of matrices and vectors."""
    assert "library_contraction" in names_of(subscripts, i=300, j=310, k=320)
