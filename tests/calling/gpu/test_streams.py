"""Streams and memory of calls on a GPU: work waits in its stream, see the fake driver.

So a result is right only if what was launched is ordered after the operands, and before
what the caller does next.
"""

from __future__ import annotations

import numpy as np
import pytest

import feinsum
from feinsum.calling.gpu import building, cached
from feinsum.calling.gpu.builder import read_call, write_call
from feinsum.calling.gpu.flat import FlatCall
from feinsum.calling.kernel_cache import Calls
from feinsum.errors import InvalidEinsumError, MeasurementError
from feinsum.memory import get_remembered, use_fresh_memory
from feinsum.records import InMemoryStore
from tests.calling.gpu.fake_libraries import JaxArray, Tensor, jax, torch
from tests.targets.cuda.fake_driver import Stream, cutensor, fake_gpu, ndarray
from tests.targets.cuda.stand_in import needs_nvrtc
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["cutensor", "fake_gpu", "jax", "torch"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]

RNG = np.random.default_rng(0)
CHAIN = "ij,jk,kl->li"
SHAPES = {"ij,jk->ik": [(9, 8), (8, 7)], CHAIN: [(3, 4), (4, 5), (5, 6)]}


@pytest.fixture(autouse=True)
def own_memory(monkeypatch, fake_gpu):
    """What is predicted to be the fastest is taken, and nothing is known of before."""
    monkeypatch.setattr(building, "PLAUSIBLE", 1.0)
    with use_fresh_memory():
        yield


@pytest.fixture(params=SHAPES)
def subscripts(request, monkeypatch):
    """By a kernel, and by products of cuBLAS with an intermediate result."""
    if request.param == CHAIN:
        monkeypatch.setattr(building, "list_kernel_contenders", lambda *_: iter(()))
    return request.param


def kept_calls():
    """Options with which a library answers the first call; the second one builds."""
    return {"database": InMemoryStore(), "effort": "amortized"}


def hosts_for(subscripts):
    return [RNG.random(shape) for shape in SHAPES[subscripts]]


def on_cupy(values):
    made = ndarray(values.shape, values.dtype)
    made[...] = values
    return made


def on_torch(values):
    made = Tensor(ndarray(values.shape, values.dtype).host)
    made.fill(values)
    return made


def values_of(array):
    """For whoever waits for the stream of its library alone."""
    return array.wait() if isinstance(array, Tensor) else array.get()


def spoil(arrays):
    """Use their memory for something else, next on the streams of their libraries."""
    for array in arrays:
        if isinstance(array, Tensor):
            array.fill(np.nan)
        else:
            array[...] = np.nan


PUT = {"cupy": on_cupy, "torch": on_torch}


@pytest.mark.parametrize("library", PUT)
def test_cutensor_runs_on_the_callers_stream(torch, cutensor, monkeypatch, library):
    """As the other candidates do, and in the memory of no other call."""
    for name in ("_list_products", "_list_plans", "list_kernel_contenders"):
        monkeypatch.setattr(building, name, lambda *_: iter(()))
    monkeypatch.setattr(building, "make_library_call", lambda *_: None)
    hosts = [RNG.random(shape) for shape in ((9, 8), (8, 7))]
    options = {"database": InMemoryStore(), "effort": "estimate"}
    with Stream():
        for _ in range(3):
            arrays = [PUT[library](host) for host in hosts]
            result = feinsum.call_einsum("ij,jk->ki", *arrays, **options)
            spoil(arrays)
            assert np.allclose(values_of(result), (hosts[0] @ hosts[1]).T)


@pytest.mark.parametrize("library", PUT)
def test_calls_run_on_the_callers_stream(torch, monkeypatch, subscripts, library):
    """Of CuPy or of torch: the first one, the one that builds, and prepared ones."""
    hosts, options = hosts_for(subscripts), kept_calls()
    with Stream():
        for k in range(5):
            if k > 2:  # nothing is left but the launches
                monkeypatch.setattr("feinsum.calling.gpu.call.call_on_gpu", None)
            given = [PUT[library](host) for host in hosts]
            result = feinsum.call_einsum(subscripts, *given, **options)
            spoil(given)
            assert type(result) is type(given[0])
            expected = np.einsum(subscripts, *hosts)
            assert np.allclose(values_of(result), expected), k


@pytest.mark.parametrize("library", PUT)
def test_a_call_of_another_process_runs_on_the_callers_stream(
    torch, monkeypatch, subscripts, library
):
    """From the first call on, as one that was built here."""
    hosts, options = hosts_for(subscripts), kept_calls()

    def run(options):
        given = [PUT[library](host) for host in hosts]
        result = feinsum.call_einsum(subscripts, *given, **options)
        spoil(given)
        assert np.allclose(values_of(result), np.einsum(subscripts, *hosts))
        return get_remembered(Calls).gpu.values()

    with Stream():
        run(options)
        (here,) = run(options)
        content = write_call(here.repeated)
        monkeypatch.setattr(
            cached, "load_built", lambda _, gpu: read_call(content, gpu)
        )
        for _ in range(3):
            *_, elsewhere = run({"effort": "amortized"})
    assert elsewhere is not here
    assert elsewhere.build is None
    assert type(elsewhere.repeated) is FlatCall


@pytest.mark.parametrize(
    ("library", "into"), [("cupy", "torch"), ("torch", "torch"), ("torch", "cupy")]
)
def test_out_is_written_in_the_order_of_its_stream(torch, subscripts, library, into):
    """After what was to be done with it, and before what comes next; also if operands
    are of another library.
    """
    hosts, options = hosts_for(subscripts), kept_calls()
    expected = np.einsum(subscripts, *hosts)
    with Stream():
        for _ in range(3):
            given = [PUT[library](host) for host in hosts]
            out = PUT[into](np.full_like(expected, np.nan))
            said = feinsum.call_einsum(subscripts, *given, out=out, **options)
            spoil(given)
            assert said is out
            for array in given:
                values_of(array)
            assert np.allclose(values_of(out), expected)


def test_torch_waits_if_it_is_one_of_several_libraries(torch):
    """It may use the memory of an operand for something else."""
    a, b = hosts_for("ij,jk->ik")
    options = {"database": InMemoryStore(), "effort": "estimate"}
    with Stream():
        given = on_cupy(a), on_torch(b)
        result = feinsum.call_einsum("ij,jk->ik", *given, **options)
        spoil(given)
        values_of(given[1])
        assert np.allclose(values_of(result), a @ b)


def test_arrays_of_jax_come_and_go(jax, subscripts):
    """In C's order; nobody tells its stream, so their memory is free at the return."""
    hosts, options = hosts_for(subscripts), kept_calls()
    for _ in range(3):
        given = [JaxArray(host.copy()) for host in hosts]
        result = feinsum.call_einsum(subscripts, *given, **options)
        for array in given:
            array.host[:] = np.nan
        assert type(result) is JaxArray
        assert np.allclose(result.wait(), np.einsum(subscripts, *hosts))
    view = feinsum.call_einsum("ij->ji", JaxArray(hosts[0]), **options)
    assert np.array_equal(view.wait(), hosts[0].T)


def test_arrays_that_cannot_be_written_are_refused(torch, jax):
    """Those of JAX, and tensors whose memory has other entries than they have."""
    a = on_torch(np.ones(3))
    with pytest.raises(MeasurementError, match="out is an array of JAX"):
        feinsum.call_einsum("i->i", a, out=JaxArray(np.ones(3)))
    with pytest.raises(MeasurementError, match="negated or conjugated; give a plain"):
        feinsum.call_einsum("i->i", a, out=Tensor(np.ones(3), is_neg=True))


def test_tensors_with_a_gradient_are_refused(torch):
    """Nothing here computes one; the message is torch's."""
    a = Tensor(np.ones(3), requires_grad=True)
    said = "a Tensor cannot be imported by DLPack: Can't export .* require gradient"
    with pytest.raises(MeasurementError, match=said):
        feinsum.call_einsum("i->i", a)
    with pytest.raises(MeasurementError, match=said):
        feinsum.call_einsum("i->i", on_cupy(np.ones(3)), out=a)


def test_negated_tensors_are_read_as_what_they_are(torch):
    """Their memory has other entries, also when a call is repeated."""
    options = kept_calls()
    for _ in range(5):
        a = Tensor(np.arange(6.0).reshape(2, 3), is_neg=True)
        result = feinsum.call_einsum("ij->i", a, **options)
        assert values_of(result).tolist() == [-3.0, -12.0]


def test_integers_of_torch_are_computed_here(torch):
    """It multiplies none on a GPU."""
    options = kept_calls()
    for _ in range(4):
        a = on_torch(np.arange(6).reshape(2, 3))
        result = feinsum.call_einsum("ij,kj->ik", a, a, **options)
        assert type(result) is Tensor
        assert values_of(result).tolist() == [[5, 14], [14, 50]]


def test_an_order_in_memory_is_refused_for_tensors(torch):
    """They have no such property that could be kept."""
    with pytest.raises(InvalidEinsumError, match=r"order='F' is for .* for a Tensor"):
        feinsum.einsum("ij->ji", on_torch(np.ones((2, 3))), order="F", **kept_calls())


def test_tensors_without_strides_are_refused(torch):
    """As sparse ones are; also if tensors with strides were given before."""
    options, a = kept_calls(), on_torch(np.ones((2, 3)))
    for _ in range(3):
        feinsum.call_einsum("ij->i", a, **options)
    a.stride = a.__dlpack__ = without_strides
    with pytest.raises(MeasurementError, match=r"by DLPack: .* have no strides"):
        feinsum.call_einsum("ij->i", a, **options)


def without_strides(stream=None):
    raise RuntimeError("sparse tensors have no strides")


def test_results_that_a_library_does_not_take_are_explained(torch, monkeypatch):
    """With its dtype, and the library's words."""
    monkeypatch.setattr(torch, "from_dlpack", lambda _: without_strides())
    said = "torch cannot import a result of float64: sparse tensors have"
    with pytest.raises(MeasurementError, match=said):
        feinsum.call_einsum("ij->ji", on_torch(np.ones((2, 3))), **kept_calls())


@pytest.mark.parametrize("n_calls", [0, 2])
def test_torch_without_memory_is_explained(torch, n_calls):
    """Where torch computes the einsum, and where prepared launches do."""
    a, options = on_torch(np.ones((50, 40))), kept_calls()
    for _ in range(n_calls):
        feinsum.call_einsum("ij->i", a, **options)
    torch.is_full = True
    said = r"\(50,\) entries of float64.*lacks the memory; compute it in parts.*8\.00"
    with pytest.raises(MeasurementError, match=said):
        feinsum.call_einsum("ij->i", a, **options)


@pytest.mark.parametrize("effort", ["amortized", "estimate"])
def test_a_result_that_does_not_fit_is_refused_before_a_launch(
    fake_gpu, monkeypatch, effort
):
    """With what it takes and what is free; nothing is built for it."""
    monkeypatch.setattr(building, "_list_contenders", None)
    a = on_cupy(np.ones(3000))
    fake_gpu.free, fake_gpu.fault = 10_000_000, AssertionError("launched")
    said = r"of 0\.07 GB does not fit .* 0\.01 GB are free: compute it in parts"
    with pytest.raises(MeasurementError, match=said):
        feinsum.call_einsum(
            "i,j->ij", a, on_cupy(np.ones(3000)), database=InMemoryStore(),
            effort=effort,
        )  # fmt: skip


@pytest.mark.parametrize("subscripts", [CHAIN], indirect=True)
def test_intermediate_results_count(fake_gpu, subscripts):
    """Each array would fit, but not all of a call; once it fits, later calls are not
    checked.
    """
    arrays, options = [*map(on_cupy, hosts_for(CHAIN))], kept_calls()
    feinsum.call_einsum(CHAIN, *arrays, **options)
    free, fake_gpu.free = fake_gpu.free, 300  # bytes: 144 of the result, 256 handed on
    for _ in range(2):
        with pytest.raises(MeasurementError, match=r"a call needs of 0\.00 GB does n"):
            feinsum.call_einsum(CHAIN, *arrays, **options)
    fake_gpu.free = free
    feinsum.call_einsum(CHAIN, *arrays, **options)
    fake_gpu.free = 300
    feinsum.call_einsum(CHAIN, *arrays, **options)


def test_a_contender_that_lacks_memory_is_skipped(monkeypatch):
    """Another one may need less."""

    def lacking(*_):
        raise MeasurementError("an array does not fit")

    monkeypatch.setattr(building, "PLAUSIBLE", np.inf)
    monkeypatch.setattr(building, "_build_steps", lacking)
    hosts, database = hosts_for(CHAIN), InMemoryStore()
    arrays = map(on_cupy, hosts)
    result = feinsum.call_einsum(CHAIN, *arrays, database=database, effort="estimate")
    assert np.allclose(result.get(), np.einsum(CHAIN, *hosts))
