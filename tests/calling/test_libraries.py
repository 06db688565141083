"""Calls give back arrays of the library that was given, or refuse them by name."""

import numpy as np
import pytest

import feinsum
from feinsum.errors import InvalidEinsumError
from feinsum.records import InMemoryStore

RNG = np.random.default_rng(45)
A, B = RNG.random((3, 4)), RNG.random((4, 5))
FACTS = InMemoryStore()


def einsum(text, *operands, **options):
    return feinsum.einsum(text, *operands, database=FACTS, **options)


def product(*operands, **options):
    return einsum("ij,jk->ik", *operands, **options)


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def tensors(torch):
    return torch.from_numpy(A.copy()), torch.from_numpy(B.copy())


@pytest.fixture
def jax():
    module = pytest.importorskip("jax", reason="JAX is not installed")
    module.config.update("jax_platforms", "cpu")
    return module


@pytest.mark.parametrize("n_calls", [1, 3])
@pytest.mark.parametrize("text", ["ij,jk->ik", "ij,jk->"])
def test_tensors_give_tensors(torch, tensors, text, n_calls):
    """By every way to call, first and later; of rank 0 without indices."""
    a, b = tensors
    for _ in range(n_calls):
        results = [
            einsum(text, a, b),
            einsum(text, A, b),
            einsum(text, a, b, order="F"),
            einsum(text, a, b, optimize=[(0, 1)]),
            feinsum.call_einsum(text, a, b, database=FACTS),
            feinsum.contract(text, a, b, database=FACTS),
        ]
    for result in results:
        assert type(result) is torch.Tensor
        np.testing.assert_allclose(result.numpy(), np.einsum(text, A, B), rtol=1e-12)


def test_tensordot_and_transpose_of_tensors(torch, tensors):
    a, b = tensors
    assert type(feinsum.tensordot(a, b, 1)) is torch.Tensor
    for axes in (None, (1, 0)):
        turned = feinsum.transpose(a, axes)
        assert type(turned) is torch.Tensor
        assert turned.data_ptr() == a.data_ptr()
        np.testing.assert_array_equal(turned.numpy(), A.T)


def test_the_transpose_of_a_tensor_is_a_view_of_it(tensors):
    a, _ = tensors
    einsum("ij->ji", a)[0, 0] = 99.0
    assert a[0, 0] == 99.0


def test_notes_of_tensors_on_the_host_are_read(torch, tensors):
    """Conjugated and negated ones, which do not have their entries in memory."""
    a, b = tensors
    c = a + 2j * a
    np.testing.assert_allclose(product(c.conj(), b).numpy(), np.conj(c.numpy()) @ B)
    np.testing.assert_allclose(product(c.conj().imag, b).numpy(), -2 * A @ B)
    assert type(product(c.conj(), b)) is torch.Tensor


def test_tensors_for_results(torch, tensors):
    """They are written and returned, like arrays of numpy; casts are checked."""
    out = torch.empty(3, 5, dtype=torch.float64)
    assert product(*tensors, out=out) is out
    assert product(A, B, out=out) is out
    call = feinsum.call_einsum("ij,jk->ik", A, B, out=out, database=FACTS)
    assert call is out
    np.testing.assert_allclose(out.numpy(), A @ B, rtol=1e-12)
    plain = np.empty((3, 5))
    assert product(*tensors, out=plain) is plain
    with pytest.raises(InvalidEinsumError, match="casting"):
        product(*tensors, out=torch.empty(3, 5))
    with pytest.raises(InvalidEinsumError, match="gradient"):
        product(*tensors, out=torch.empty(3, 5, dtype=torch.float64).requires_grad_())
    with pytest.raises(InvalidEinsumError, match="conjugated"):
        product(A, B, out=torch.empty(3, 5, dtype=torch.complex128).conj())


def _of_dual(torch, a, b):
    with torch.autograd.forward_ad.dual_level():
        return product(torch.autograd.forward_ad.make_dual(a, a), b)


def _of_traced(torch, a, b):
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(product)(a, b)


LOSING = {
    "gradient": lambda torch, a, b: product(a.requires_grad_(), b),
    "parameter": lambda torch, a, b: product(torch.nn.Parameter(a), b),
    "grad": lambda torch, a, b: torch.func.grad(lambda x: product(x, b).sum())(a),
    "jvp": lambda torch, a, b: torch.func.jvp(lambda x: product(x, b), (a,), (a,)),
    "dual": _of_dual,
    "vmap": lambda torch, a, b: torch.vmap(lambda x: einsum("j,jk->k", x, b))(a),
    "make_fx": _of_traced,
    "masked": lambda torch, a, b: product(torch.masked.masked_tensor(a, a > 0.5), b),
    "sparse": lambda torch, a, b: product(a.to_sparse(), b),
    "csr": lambda torch, a, b: product(a.to_sparse_csr(), b),
    "meta": lambda torch, a, b: product(a.to("meta"), b),
    "bfloat16": lambda torch, a, b: product(a.bfloat16(), b),
    "nested": lambda torch, a, b: einsum(
        "ijk->", torch.nested.nested_tensor([a], layout=torch.jagged)
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", LOSING)
def test_tensors_that_would_lose_something_are_refused(torch, tensors, kind):
    """Gradients, tangents, batches, traces, masks, layouts, devices, dtypes."""
    with pytest.raises(InvalidEinsumError, match=r"tensor|torch"):
        LOSING[kind](torch, *tensors)


def test_without_gradients_parameters_are_arrays(torch, tensors):
    a, b = tensors
    with torch.no_grad():
        result = product(torch.nn.Parameter(a), b)
    assert not result.requires_grad
    np.testing.assert_allclose(result.numpy(), A @ B, rtol=1e-12)


def test_compiled_functions_of_torch_call_feinsum(torch, tensors):
    """Between two graphs, whatever is called; the backend needs no compiler."""
    a, b = tensors
    expression = feinsum.contract_expression("ij,jk->ik", a.shape, b.shape)
    calls = [
        product,
        lambda x, y: feinsum.contract("ij,jk->ik", x, y, database=FACTS),
        lambda x, y: feinsum.call_einsum("ij,jk->ik", x, y, database=FACTS),
        lambda x, y: feinsum.tensordot(x, y, 1),
        lambda x, y: expression(x, y, database=FACTS),
    ]
    for call in calls:

        @torch.compile(backend="eager")
        def compiled(x, y, call=call):
            return call(2 * x, y) + 1

        np.testing.assert_allclose(compiled(a, b).numpy(), 2 * A @ B + 1, rtol=1e-12)


def test_arrays_of_jax_give_arrays_of_jax(jax):
    """On the device of the operand; of rank 0 without indices."""
    a, b = jax.numpy.asarray(A), jax.numpy.asarray(B)
    for text in ("ij,jk->ik", "ij,jk->"):
        for operands in ((a, b), (A, b), (a, B)):
            for _ in range(3):
                result = einsum(text, *operands)
                assert isinstance(result, jax.Array)
                assert result.devices() == a.devices()
                right = np.einsum(text, A, B)
                np.testing.assert_allclose(np.asarray(result), right, rtol=1e-5)
    assert isinstance(einsum("ij->ji", a), jax.Array)
    out = np.empty((3, 5), a.dtype)
    assert product(a, b, out=out) is out


def test_arrays_of_jax_without_entries_are_refused(jax):
    """Traced and deleted ones; nothing is written into one."""
    a, b = jax.numpy.asarray(A), jax.numpy.asarray(B)

    def loss(x):
        return einsum("ij,jk->", x, b)

    for transformed in (
        jax.jit(loss),
        jax.grad(loss),
        jax.vmap(lambda x: einsum("i->", x)),
    ):
        with pytest.raises(InvalidEinsumError, match="traces this call"):
            transformed(a)
    with pytest.raises(InvalidEinsumError, match="out"):
        product(a, b, out=b)
    a.delete()
    with pytest.raises(InvalidEinsumError, match="deleted"):
        product(a, b)


def test_masked_entries_are_refused():
    """They would be summed; an array that hides none is an array."""
    with pytest.raises(InvalidEinsumError, match="hides entries"):
        product(np.ma.masked_less(A, 0.5), B)
    np.testing.assert_allclose(product(np.ma.asarray(A), B), A @ B)


class Unit(np.lib.mixins.NDArrayOperatorsMixin):
    """A quantity that overrides einsum alone."""

    def __init__(self, values, unit="m"):
        self.values, self.unit = values, unit
        self.shape, self.ndim, self.dtype = values.shape, values.ndim, values.dtype

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("the unit would be lost")

    def __array_function__(self, function, types, arguments, options):
        if function is not np.einsum:
            return NotImplemented
        text, *operands = arguments
        values = [getattr(x, "values", x) for x in operands]
        return Unit(np.einsum(text, *values, **options), self.unit)


@pytest.mark.parametrize(
    "call",
    [
        product,
        lambda a, b: einsum("{row}{mid}, {mid}{col} -> {row}{col}", a, b),
        lambda a, b: feinsum.einsum(a, [0, 1], b, [1, 2]),
        lambda a, b: product(a, b, dtype="f8"),
        lambda a, b: product(a, b, optimize=[(0, 1)]),
        lambda a, b: feinsum.contract("ij,jk->ik", a, b),
        lambda a, b: feinsum.call_einsum("ij,jk->ik", a, b),
        lambda a, b: feinsum.tensordot(a, b, 1),
    ],
)
def test_overrides_of_numpys_einsum_answer(call):
    """Quantities keep their unit, in every way to call."""
    for operands in ((Unit(A), B), (A, Unit(B))):
        result = call(*operands)
        assert type(result) is Unit
        np.testing.assert_allclose(result.values, A @ B)


def test_failures_of_overrides_are_named():
    class Other(Unit):
        def __array_function__(self, function, types, arguments, options):
            return NotImplemented

    with pytest.raises(InvalidEinsumError, match="Other, ndarray override"):
        product(Other(A), B)
    with pytest.raises(InvalidEinsumError, match="omit out"):
        product(Unit(A), B, out=np.empty((3, 5)))


def test_arrays_of_dask_stay_lazy():
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    lazy = product(da.from_array(A, chunks=2), B)
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy.compute(scheduler="synchronous"), A @ B)


@pytest.mark.parametrize("operand", [None, {1}, (x for x in A)])
def test_what_is_no_array_is_refused_by_type(operand):
    with pytest.raises(InvalidEinsumError, match=f"type {type(operand).__name__}"):
        einsum("->", operand)


def test_what_numpy_reads_is_read(tmp_path):
    """Buffers, lists, ranges, matrices and subclasses, and arrays in files."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        stored = file.create_dataset("a", data=A)
        kinds = [memoryview(A), A.tolist(), A.view(np.matrix), stored]
        for given in (*kinds, A.view(type("Own", (np.ndarray,), {}))):
            result = product(given, B)
            assert type(result) is np.ndarray
            np.testing.assert_allclose(result, A @ B)
    assert einsum("i->", range(4)) == 6
