"""Memory of intermediates: bounded by a setting, in whatever way a kernel is found."""

from __future__ import annotations

import tracemalloc
from types import SimpleNamespace

import loopy as lp
import numpy as np
import pytest

from feinsum import call_einsum, retrieve
from feinsum.calling import clear_call_cache, prepare_call, read_call
from feinsum.calling.kernel import find_untransformed_path
from feinsum.canonical import canonicalize
from feinsum.codegen import find_contraction_path, generate_loopy
from feinsum.contraction.paths import count_entries_between
from feinsum.errors import MeasurementError
from feinsum.ir import array, einsum
from feinsum.measure import open_device
from feinsum.measure.intermediates import (
    count_temporary_bytes,
    get_intermediate_limit_bytes,
    has_room,
)
from feinsum.options import INTERMEDIATE_VARIABLE
from feinsum.predict import predict_recipes
from feinsum.records import Device, InMemoryStore
from feinsum.transforms.library import CONTRACTION_PATH
from feinsum.transforms.registry import list_proposed
from feinsum.tuning.problem import make_problem
from feinsum.tuning.tuning import _make_search_for
from tests.calling.comparing import NO_FACTS
from tests.retrieval.facts import fact

CPU = Device("host", "a CPU", "", "cpu", "x86_64", 2)
SUBSCRIPTS = "ai,bi,aj,bj->"
SHAPES = [(400, 25), (10, 25), (400, 25), (10, 25)]
"""Fewest operations by way of two products over a and b, 64 kB together; two over i and
j take 10 kB. One nest takes 16 times the operations."""
LARGE, SMALL = 64_000, 10_000


pytestmark = pytest.mark.usefixtures("fresh_calls")


def operands(shapes=SHAPES):
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 3, shape).astype(float) for shape in shapes]


def free(n_bytes):
    """What psutil says where so much is free."""
    return SimpleNamespace(available=n_bytes, total=1 << 34)


def canonical(shapes=SHAPES):
    named = [array(f"A{k}", shape) for k, shape in enumerate(shapes)]
    return canonicalize(einsum(SUBSCRIPTS, *named)).einsum


@pytest.mark.parametrize("limit", [10**9, SMALL + 2000, 0])
def test_a_call_keeps_to_the_limit(limit, monkeypatch):
    """The result is right, and all temporaries of the kernel fit; so does the rest."""
    monkeypatch.setenv(INTERMEDIATE_VARIABLE, str(limit))
    arrays = operands()
    call = prepare_call(SUBSCRIPTS, *arrays, database=NO_FACTS, device="host")
    assert count_temporary_bytes(call.kernel.t_unit, {}) <= limit
    tracemalloc.start()
    found = call.run(arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == np.einsum(SUBSCRIPTS, *arrays, optimize=True)
    assert peak < SMALL


@pytest.mark.parametrize(("limit", "n_steps"), [(LARGE, 3), (SMALL, 3), (0, 1)])
def test_an_untransformed_kernel_keeps_to_the_limit(limit, n_steps, monkeypatch):
    """The cheapest order that fits is taken, and one nest if there is none."""
    monkeypatch.setenv(INTERMEDIATE_VARIABLE, str(limit))
    e = canonical()
    path = find_untransformed_path(e, {})
    assert (1 if path is None else len(path)) == n_steps
    unit = generate_loopy(e, path=path)
    assert count_temporary_bytes(unit, {}) <= limit
    if path is not None:
        n_entries = count_entries_between(e.inputs, e.output, e.extents, path)
        assert count_temporary_bytes(unit, {}) == 8 * n_entries


@pytest.mark.parametrize("limit", [LARGE, SMALL, 0])
def test_a_prediction_keeps_to_the_limit(limit):
    """No recipe that needs more is proposed; there is one at every limit."""
    found = predict_recipes(canonical(), {}, CPU, intermediate_bytes=limit)
    assert found
    assert all(has_room(one.spec, canonical(), {}, limit) for one in found)
    paths = [one for one in found if one.spec.name == "contraction_path"]
    assert bool(paths) == (limit >= SMALL)


@pytest.mark.parametrize("limit", [LARGE, SMALL, 0])
def test_what_is_predicted_is_what_a_kernel_takes(limit, monkeypatch):
    """The intermediates of a recipe are the temporaries of the kernel."""
    monkeypatch.setenv(INTERMEDIATE_VARIABLE, str(limit))
    unit = generate_loopy(canonical())
    found = retrieve(unit, database=NO_FACTS, device="host", effort="estimate")
    assert found is not unit
    assert count_temporary_bytes(found, {}) <= limit


def test_a_search_keeps_to_the_limit(monkeypatch):
    """No recipe that needs more is tried."""
    problem = make_problem(canonical())
    for limit, has_paths in ((10**9, True), (0, False)):
        monkeypatch.setenv(INTERMEDIATE_VARIABLE, str(limit))
        left = _make_search_for(problem, open_device("host").device, "random", 0).left
        assert left
        assert has_paths == any(s.name == "contraction_path" for s in left)


def test_a_recorded_recipe_that_needs_more_is_passed_over(monkeypatch):
    """In calls and in retrievals; without the limit it is used."""
    parsed = read_call(SUBSCRIPTS, *operands())
    e = canonicalize(parsed.einsum).einsum
    (spec, *_) = [
        CONTRACTION_PATH.spec(parameters)
        for parameters in list_proposed(CONTRACTION_PATH, e)
        if not has_room(CONTRACTION_PATH.spec(parameters), e, {}, SMALL)
    ]
    store = InMemoryStore()
    store.add(fact(parsed.einsum, spec))
    for limit, is_used in ((10**9, True), (SMALL, False)):
        monkeypatch.setenv(INTERMEDIATE_VARIABLE, str(limit))
        clear_call_cache()
        call = prepare_call(SUBSCRIPTS, *operands(), database=store, device="host")
        assert call.kernel.is_retrieved == is_used
        assert count_temporary_bytes(call.kernel.t_unit, {}) <= limit


def test_calls_share_no_kernel_that_needs_more_than_they_may(monkeypatch):
    """A kernel of a short axis has products that would be large for a long one."""
    monkeypatch.setenv(INTERMEDIATE_VARIABLE, "200000")
    kernels = {}
    for n in (600, 5000, 700):
        arrays = operands([(n, 25), (10, 25), (n, 25), (10, 25)])
        subscripts = "ai,bi,aj,bj->a"
        call = prepare_call(subscripts, *arrays, database=NO_FACTS, device="host")
        kernels[n] = call.kernel
        arguments = call.kernel.t_unit.default_entrypoint.args
        sizes = {x.name: n for x in arguments if isinstance(x, lp.ValueArg)}
        assert sizes
        assert count_temporary_bytes(call.kernel.t_unit, sizes) <= 200_000
        expected = np.einsum(subscripts, *arrays, optimize=True)
        assert np.array_equal(call.run(arrays), expected)
    assert kernels[600] is kernels[700]
    assert kernels[600] is not kernels[5000]


def test_by_default_a_part_of_the_free_memory_is_the_limit(monkeypatch):
    """And no less than the largest array, which has a place as well."""
    monkeypatch.delenv(INTERMEDIATE_VARIABLE, raising=False)
    for n_bytes, limit in ((9 << 30, 2 << 30), (1 << 10, 400 * 25 * 8)):
        monkeypatch.setattr("psutil.virtual_memory", lambda n=n_bytes: free(n))
        assert get_intermediate_limit_bytes(canonical(), {}) == limit


def test_with_little_free_memory_no_large_product_is_made(monkeypatch):
    """MTTKRP of a long tensor: the result is that of one nest."""
    monkeypatch.delenv(INTERMEDIATE_VARIABLE, raising=False)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free(1 << 12))
    x, a, b = operands([(6, 7, 8), (7, 90), (8, 90)])
    path = find_contraction_path(read_call("ijk,ja,ka->ia", x, a, b).einsum)
    assert len(path) == 2
    assert (
        find_untransformed_path(read_call("ijk,ja,ka->ia", x, a, b).einsum, {}) is None
    )
    found = call_einsum("ijk,ja,ka->ia", x, a, b, database=NO_FACTS, device="host")
    assert np.array_equal(found, np.einsum("ijk,ja,ka->ia", x, a, b, optimize=True))


@pytest.mark.parametrize("value", ["much", "-1", "1e9"])
def test_a_limit_that_is_no_number_is_an_error(value, monkeypatch):
    """Named, before anything is built."""
    monkeypatch.setenv(INTERMEDIATE_VARIABLE, value)
    with pytest.raises(MeasurementError, match=INTERMEDIATE_VARIABLE):
        call_einsum(SUBSCRIPTS, *operands(), database=NO_FACTS, device="host")
